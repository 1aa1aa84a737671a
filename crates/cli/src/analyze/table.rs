//! The tables that `plait analyze` prints.

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::time::Duration;

use anstyle::Style;
use plait_trace::document::{Connection, DirectionStats, Event, Failover, Subflow, Time, Totals};
use plait_trace::export::Exporter;
use plait_trace::{Direction, Interval};

use super::rates::{Rates, SubflowRates};
use crate::stdout::{ATTENTION, BAD, BOLD, Stdout, StyledText, aligned};

/// Maximum number of connections without `--all`, and of parts of each.
const MAX_CONNECTIONS: usize = 20;
const MAX_SUBFLOWS: usize = 50;
const MAX_FAILOVERS: usize = 20;
const MAX_EVENTS: usize = 20;

/// One table per connection: all of them as they end, or the largest ones at the end.
pub(super) struct Table {
    out: Stdout,
    all: bool,
    interval: Duration,
    rates: Rates,
    largest: Vec<Rendered>,
    smaller: u64,
    smaller_bytes: u64,
}

/// The table of a connection.
struct Rendered {
    id: u64,
    bytes: u64,
    text: StyledText,
}

impl Table {
    pub(super) fn new(out: Stdout, all: bool, interval: Duration) -> Self {
        let rates = Rates::new(interval);
        Self { out, all, interval, rates, largest: Vec::new(), smaller: 0, smaller_bytes: 0 }
    }
}

impl Exporter for Table {
    fn wants_intervals(&self) -> bool {
        true
    }

    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        self.rates.count(interval);
        Ok(())
    }

    fn connection(&mut self, connection: &Connection) -> io::Result<()> {
        let rates = self.rates.take(connection.id);
        let mut text = StyledText::default();
        // Writing to it cannot fail.
        let _ = write_connection(connection, &rates, self.interval, &mut text);
        if self.all {
            return self.out.write_styled(&text);
        }
        let bytes = connection.bytes.client_to_server + connection.bytes.server_to_client;
        if self.largest.len() == MAX_CONNECTIONS {
            let least = self.largest.iter().enumerate().min_by_key(|(_, shown)| (shown.bytes, shown.id));
            let Some((least, smallest)) = least.map(|(index, shown)| (index, shown.bytes)) else {
                return Ok(());
            };
            self.smaller += 1;
            self.smaller_bytes += bytes.min(smallest);
            if bytes <= smallest {
                return Ok(());
            }
            self.largest.swap_remove(least);
        }
        self.largest.push(Rendered { id: connection.id, bytes, text });
        Ok(())
    }

    fn finish(mut self, totals: &Totals) -> io::Result<()> {
        self.largest.sort_by_key(|shown| shown.id);
        let out = &mut self.out;
        self.largest.iter().try_for_each(|shown| out.write_styled(&shown.text))?;
        if self.smaller > 0 {
            let (count, bytes) = (self.smaller, self.smaller_bytes);
            writeln!(out, "{count} smaller connections with {bytes} bytes in total; --all prints them too")?;
        }
        write!(out, "{} packets read, {}", totals.packets, totals.skipped)?;
        if totals.unmapped_bytes > 0 {
            write!(out, "; {} payload bytes without a DSS mapping", totals.unmapped_bytes)?;
        }
        if totals.unanswered_joins > 0 {
            write!(out, "; {} joins were not answered", totals.unanswered_joins)?;
        }
        if totals.evicted_connections > 0 {
            let evicted = totals.evicted_connections;
            write!(
                out,
                "; {evicted} connections were dropped before they ended, too many were open at once"
            )?;
        }
        if totals.partial_connections > 0 {
            write!(out, "; the opening of {} connections was not captured", totals.partial_connections)?;
        }
        writeln!(out)?;
        out.flush()
    }
}

/// Whether acknowledgements were measured, but not the round trips of the path.
fn hides_rtt(subflow: &Subflow) -> bool {
    let sent = |direction| subflow.directions.in_direction(direction);
    Direction::BOTH.into_iter().any(|way| sent(way).rtt_ms.is_none() && sent(way).ack_rtt_ms.is_some())
}

fn write_connection(
    connection: &Connection,
    rates: &SubflowRates,
    interval: Duration,
    out: &mut StyledText,
) -> fmt::Result {
    let protocol = match connection.version {
        Some(version) => format!("MPTCPv{version}"),
        None => "TCP".into(),
    };
    out.push(BOLD, format_args!("Connection {}", connection.id));
    write!(out, ": {protocol}, {:.3} s", connection.duration_s)?;
    if connection.partial {
        write!(out, ", partial (its opening was not captured: version, client and server are guesses)")?;
    }
    if connection.evicted {
        write!(out, ", dropped before it ended (too many were open at once)")?;
    }
    if let Some(cause) = connection.fallback {
        out.push(ATTENTION, format_args!(", fell back to TCP ({cause})"));
    }
    writeln!(out)?;
    write_direction("client to server", connection, Direction::ClientToServer, out)?;
    write_direction("server to client", connection, Direction::ServerToClient, out)?;
    if connection.reinjected.segments > 0 {
        let reinjected = &connection.reinjected;
        writeln!(out, "  reinjected: {} segments, {} bytes", reinjected.segments, reinjected.bytes)?;
    }
    let mut rows = vec![HEADING.map(String::from)];
    for (subflow, index) in connection.subflows.iter().zip(0..).take(MAX_SUBFLOWS) {
        write!(out, "  {}  ", index + 1)?;
        let style = match subflow.authentic {
            Some(false) => BAD,
            _ if !subflow.accepted => ATTENTION,
            _ => Style::new(),
        };
        out.push(style, describe_subflow(subflow));
        writeln!(out)?;
        for (way, direction) in [("sent", Direction::ClientToServer), ("received", Direction::ServerToClient)]
        {
            let rate = rates.get(&(index, direction)).map(|rate| rate.mean_and_stddev(interval));
            rows.push(row(index + 1, way, subflow.directions.in_direction(direction), rate));
        }
    }
    if connection.subflows.len() > 1 {
        rows.push(total("sent", connection, Direction::ClientToServer));
        rows.push(total("received", connection, Direction::ServerToClient));
    }
    let heading = std::iter::once(BOLD).chain(std::iter::repeat(Style::new()));
    for (line, style) in aligned(&rows, &[0, 1]).iter().zip(heading) {
        out.push(style, format_args!("  {line}\n"));
    }
    if connection.subflows.iter().any(hides_rtt) {
        writeln!(
            out,
            "  RTT -: the captures do not show the round trips of the path; see ack_rtt_ms in --json"
        )?;
    }
    for failover in connection.failovers.iter().take(MAX_FAILOVERS) {
        out.push(ATTENTION, format_args!("  {}\n", describe_failover(failover, connection.start)));
    }
    for event in connection.events.iter().take(MAX_EVENTS) {
        writeln!(out, "  {}", describe_event(event, connection.start))?;
    }
    let more = |list: usize, shown: usize| list.saturating_sub(shown) as u64;
    for (more, what) in [
        (more(connection.subflows.len(), MAX_SUBFLOWS), "subflows"),
        (more(connection.failovers.len(), MAX_FAILOVERS), "failovers"),
        (more(connection.events.len(), MAX_EVENTS), "events"),
    ] {
        if more > 0 {
            writeln!(out, "  and {more} more {what}, see --json")?;
        }
    }
    writeln!(out)
}

fn write_direction(
    name: &str,
    connection: &Connection,
    direction: Direction,
    out: &mut StyledText,
) -> fmt::Result {
    let bytes = connection.bytes.in_direction(direction);
    write!(out, "  {name}: {bytes} bytes, {} of them new", connection.new_bytes.in_direction(direction))?;
    if let Some(time) = connection.completion_s.in_direction(direction) {
        write!(out, ", in {time:.3} s")?;
    }
    let carriers =
        connection.subflows.iter().filter(|subflow| *subflow.bytes.in_direction(direction) > 0).count();
    match connection.aggregation_benefit.in_direction(direction) {
        Some(benefit) if carriers > 1 => write!(out, ", {benefit:.2} x the best subflow")?,
        _ => {}
    }
    writeln!(out)
}

fn describe_subflow(subflow: &Subflow) -> String {
    let mut text = format!("{} -> {}", subflow.src, subflow.dst);
    if subflow.joined {
        text += ", joined";
    }
    if !subflow.accepted {
        text += ", not accepted";
    }
    if subflow.authentic == Some(false) {
        text += ", invalid HMAC";
    }
    if subflow.backup {
        text += ", backup";
    }
    if let Some(rtt) = subflow.syn_rtt_ms {
        text += &format!(", SYN RTT {rtt:.3} ms");
    }
    text += ", ";
    text += &subflow.close.kind.replace('_', " ");
    if let Some(by) = subflow.close.by {
        text += if by == Direction::ClientToServer { " by the client" } else { " by the server" };
    }
    if let Some(reason) = subflow.close.reason {
        text += &format!(" (MP_TCPRST reason {reason})");
    }
    text
}

const HEADING: [&str; 14] = [
    "", "", "bytes", "share", "Mbit/s", "stddev", "RTT ms", "stddev", "median", "p95", "jitter", "retrans.",
    "reinj.", "exposed",
];

/// `way` is from the client's point of view.
fn row(number: usize, way: &str, sent: &DirectionStats, rate: Option<(f64, f64)>) -> [String; 14] {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let rtt = sent.rtt_ms.as_ref();
    let decimal = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
    [
        number.to_string(),
        way.into(),
        sent.bytes.to_string(),
        sent.share.map_or("-".into(), percent),
        decimal(rate.map(|(mean, _)| mean)),
        decimal(rate.map(|(_, stddev)| stddev)),
        decimal(rtt.map(|rtt| rtt.mean)),
        decimal(rtt.map(|rtt| rtt.stddev)),
        decimal(rtt.map(|rtt| rtt.p50)),
        decimal(rtt.map(|rtt| rtt.p95)),
        decimal(sent.jitter_ms.as_ref().map(|jitter| jitter.mean)),
        sent.retransmitted.segments.to_string(),
        sent.reinjected.segments.to_string(),
        percent(sent.exposure.fraction),
    ]
}

/// The sum of all subflows. Its standard deviation is unknown, since subflows are counted one by one.
fn total(way: &str, connection: &Connection, direction: Direction) -> [String; 14] {
    let bytes = *connection.bytes.in_direction(direction);
    let mbps = bytes as f64 * 8.0 / 1e6 / connection.duration_s;
    let segments = |part: fn(&DirectionStats) -> u64| -> u64 {
        connection.subflows.iter().map(|subflow| part(subflow.directions.in_direction(direction))).sum()
    };
    let mut row: [String; 14] = std::array::from_fn(|_| "-".into());
    row[0] = "total".into();
    row[1] = way.into();
    row[2] = bytes.to_string();
    if mbps.is_finite() {
        row[4] = format!("{mbps:.3}");
    }
    row[11] = segments(|sent| sent.retransmitted.segments).to_string();
    row[12] = segments(|sent| sent.reinjected.segments).to_string();
    row
}

/// Times are relative to the connection's start.
fn describe_failover(failover: &Failover, start: Time) -> String {
    let Failover { path, subflow, from, .. } = failover;
    let mut text =
        format!("failover: {path} (subflow {subflow}) silent from {:.3} s", from.seconds_since(start));
    match failover.to {
        Some(to) => text += &format!(" to {:.3} s", to.seconds_since(start)),
        None => text += " until the end",
    }
    if let (Some(path), Some(subflow)) = (&failover.taken_over_by, failover.taken_over_by_subflow) {
        text += &format!(", taken over by {path} (subflow {subflow})");
    }
    if let Some(stall) = failover.stall_s {
        text += &format!(", stall {stall:.3} s");
    }
    let reinjected = &failover.reinjected;
    text += &format!(", reinjected {} segments, {} bytes", reinjected.segments, reinjected.bytes);
    match failover.resumed {
        Some(time) => text + &format!(", data resumed at {:.3} s", time.seconds_since(start)),
        None => text + ", data did not resume",
    }
}

fn describe_event(event: &Event, start: Time) -> String {
    let mut text =
        format!("{:.6} s  subflow {}  {}", event.time.seconds_since(start), event.subflow, event.event);
    if let Some(address) = &event.address {
        text += &format!("  {address}");
    }
    if event.authentic == Some(false) {
        text += "  (invalid HMAC)";
    }
    text + "  " + &event.direction.name().replace('_', " ")
}
