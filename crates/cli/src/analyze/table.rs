//! What was found, for people.

use std::io::{self, Write};

use plait_trace::document::{Connection, Sent, Subflow};

use super::Summary;

/// One table for each connection, then what was left out.
pub(super) fn write(summary: &Summary, out: &mut impl Write) -> io::Result<()> {
    for connection in &summary.connections {
        write_connection(connection, out)?;
    }
    write!(out, "{} packets read, {}", summary.totals.packets, summary.totals.skipped)?;
    if summary.totals.unmapped_bytes > 0 {
        write!(out, "; {} payload bytes belong to no known place in a stream", summary.totals.unmapped_bytes)?;
    }
    Ok(())
}

fn write_connection(connection: &Connection, out: &mut impl Write) -> io::Result<()> {
    let Connection { id, bytes, new_bytes, .. } = connection;
    let protocol = match connection.version {
        Some(version) => format!("MPTCPv{version}"),
        None => "TCP".into(),
    };
    write!(out, "Connection {id}: {protocol}, {:.3} s", connection.duration_s)?;
    if connection.partial {
        write!(out, ", partial (its opening was not captured)")?;
    }
    if let Some(cause) = connection.fallback {
        write!(out, ", fell back to TCP ({cause})")?;
    }
    writeln!(out)?;
    for (way, bytes, new) in [
        ("client to server", bytes.client_to_server, new_bytes.client_to_server),
        ("server to client", bytes.server_to_client, new_bytes.server_to_client),
    ] {
        writeln!(out, "  {way}: {bytes} bytes, {new} of them new")?;
    }
    if connection.reinjected.segments > 0 {
        let reinjected = &connection.reinjected;
        writeln!(out, "  reinjected: {} segments, {} bytes", reinjected.segments, reinjected.bytes)?;
    }
    let heading =
        ["", "", "bytes", "share", "RTT ms", "sigma", "median", "p95", "retrans.", "reinj.", "exposed"];
    let mut rows = vec![heading.map(String::from)];
    for (subflow, number) in connection.subflows.iter().zip(1..) {
        writeln!(out, "  {number}  {}", described(subflow))?;
        rows.push(row(number, "sent", &subflow.directions.client_to_server));
        rows.push(row(number, "received", &subflow.directions.server_to_client));
    }
    write_aligned(&rows, out)?;
    for event in &connection.events {
        write!(out, "  {:.6}  subflow {}  {}", event.time, event.subflow, event.event)?;
        if let Some(address) = &event.address {
            write!(out, "  {address}")?;
        }
        writeln!(out, "  {}", event.direction.replace('_', " "))?;
    }
    writeln!(out)
}

fn described(subflow: &Subflow) -> String {
    let mut text = format!("{} -> {}", subflow.src, subflow.dst);
    if subflow.joined {
        text += ", joined";
    }
    if !subflow.accepted {
        text += ", not accepted";
    }
    if subflow.backup {
        text += ", backup";
    }
    if let Some(rtt) = subflow.syn_rtt_ms {
        text += &format!(", SYN RTT {rtt:.3} ms");
    }
    text += ", ";
    text += &subflow.close.how.replace('_', " ");
    if let Some(by) = subflow.close.by {
        text += if by == "client_to_server" { " by the client" } else { " by the server" };
    }
    if let Some(reason) = subflow.close.reason {
        text += &format!(" (MP_TCPRST reason {reason})");
    }
    text
}

/// From the client's point of view.
fn row(number: usize, way: &str, sent: &Sent) -> [String; 11] {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let rtt = sent.rtt_ms.as_ref();
    let time = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
    [
        number.to_string(),
        way.into(),
        sent.bytes.to_string(),
        sent.share.map_or("-".into(), percent),
        time(rtt.map(|rtt| rtt.mean)),
        time(rtt.map(|rtt| rtt.stddev)),
        time(rtt.map(|rtt| rtt.p50)),
        time(rtt.map(|rtt| rtt.p95)),
        sent.retransmitted.segments.to_string(),
        sent.reinjected.segments.to_string(),
        percent(sent.exposure.fraction),
    ]
}

/// The first two columns to the left, figures to the right.
fn write_aligned<const N: usize>(rows: &[[String; N]], out: &mut impl Write) -> io::Result<()> {
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    });
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            match column {
                0 | 1 => write!(out, "  {cell:<width$}")?,
                _ => write!(out, "  {cell:>width$}")?,
            }
        }
        writeln!(out)?;
    }
    Ok(())
}
