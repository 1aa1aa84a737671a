//! Throughput and goodput over time, as CSV.

use std::io::Write;
use std::time::Duration;

use plait_trace::Connections;

/// One line for each interval in which a side sent anything in a subflow.
pub(super) fn write(found: &Connections, interval: Duration, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "connection,subflow,direction,time_s,bytes,new_bytes,throughput_mbps,goodput_mbps")?;
    let mbps = |bytes: u64| bytes as f64 * 8.0 / 1e6 / interval.as_secs_f64();
    for plait_trace::Interval { connection, subflow, direction, start, counts } in &found.intervals {
        let (subflow, name) = (subflow + 1, direction.name());
        let (bytes, new) = (counts.bytes, counts.new);
        let (throughput, goodput) = (mbps(bytes), mbps(new));
        writeln!(out, "{connection},{subflow},{name},{start},{bytes},{new},{throughput:.6},{goodput:.6}")?;
    }
    Ok(())
}
