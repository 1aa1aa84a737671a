//! Throughput and goodput over time, as CSV.

use std::io::Write;
use std::time::Duration;

use plait_trace::{Connections, Direction};

use super::summary::name;

/// One line for each interval in which a side sent payload in a subflow.
pub(super) fn write(found: &Connections, interval: Duration, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "connection,subflow,direction,time_s,bytes,new_bytes,throughput_mbps,goodput_mbps")?;
    let mbps = |bytes: u64| bytes as f64 * 8.0 / 1e6 / interval.as_secs_f64();
    for (connection, id) in found.connections.iter().zip(1..) {
        for (subflow, number) in connection.subflows.iter().zip(1..) {
            for direction in [Direction::ClientToServer, Direction::ServerToClient] {
                let name = name(direction);
                for bin in subflow.sent(direction).series.bins() {
                    let (time, throughput, goodput) = (bin.start(interval), mbps(bin.bytes), mbps(bin.new));
                    let (bytes, new) = (bin.bytes, bin.new);
                    writeln!(out, "{id},{number},{name},{time},{bytes},{new},{throughput:.6},{goodput:.6}")?;
                }
            }
        }
    }
    Ok(())
}
