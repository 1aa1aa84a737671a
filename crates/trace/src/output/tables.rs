//! `connections.csv` and `subflows.csv` (RFC 4180). A column that exists for either direction has the direction's name
//! at its end; a cell is empty where the document says `null`.

use std::io::{self, Write};

use crate::Direction;
use crate::document::{Connection, Sent, Subflow, Times};

const WAYS: [Direction; 2] = [Direction::ClientToServer, Direction::ServerToClient];

/// One row for each connection.
pub(super) struct ConnectionTable<W: Write>(csv::Writer<W>);

impl<W: Write> ConnectionTable<W> {
    pub(super) fn new(out: W) -> io::Result<Self> {
        let mut heading = names(CONNECTION);
        for way in WAYS {
            heading.extend(CONNECTION_SIDES.iter().map(|(name, _)| format!("{name}_{}", way.name())));
        }
        let mut out = csv::Writer::from_writer(out);
        out.write_record(heading)?;
        Ok(Self(out))
    }

    pub(super) fn write(&mut self, connection: &Connection) -> io::Result<()> {
        let mut row = values(CONNECTION, connection);
        for way in WAYS {
            row.extend(CONNECTION_SIDES.iter().map(|(_, value)| value(connection, way)));
        }
        Ok(self.0.write_record(row)?)
    }

    pub(super) fn finish(self) -> io::Result<W> {
        self.0.into_inner().map_err(|error| error.into_error())
    }
}

/// One row for each subflow, with what either side sent in it.
pub(super) struct SubflowTable<W: Write>(csv::Writer<W>);

impl<W: Write> SubflowTable<W> {
    pub(super) fn new(out: W) -> io::Result<Self> {
        let mut sent = names(SENT);
        for (spread, _) in SPREADS {
            sent.extend(TIMES.iter().map(|(name, _)| format!("{spread}_{name}")));
        }
        let mut heading = vec!["connection".to_owned(), "subflow".to_owned()];
        heading.extend(names(SUBFLOW));
        for way in WAYS {
            heading.extend(sent.iter().map(|name| format!("{name}_{}", way.name())));
        }
        let mut out = csv::Writer::from_writer(out);
        out.write_record(heading)?;
        Ok(Self(out))
    }

    pub(super) fn write(&mut self, connection: &Connection) -> io::Result<()> {
        for (subflow, number) in connection.subflows.iter().zip(1_u64..) {
            let mut row = vec![connection.id.to_string(), number.to_string()];
            row.extend(values(SUBFLOW, subflow));
            for way in WAYS {
                let sent = subflow.directions.in_direction(way);
                row.extend(values(SENT, sent));
                for (_, spread) in SPREADS {
                    let times = spread(sent);
                    row.extend(TIMES.iter().map(|(_, value)| times.map(value).unwrap_or_default()));
                }
            }
            self.0.write_record(row)?;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> io::Result<W> {
        self.0.into_inner().map_err(|error| error.into_error())
    }
}

fn names<T>(columns: &[Column<T>]) -> Vec<String> {
    columns.iter().map(|(name, _)| (*name).to_owned()).collect()
}

fn values<T>(columns: &[Column<T>], row: &T) -> Vec<String> {
    columns.iter().map(|(_, value)| value(row)).collect()
}

fn maybe<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A column's name and what is in it.
type Column<T> = (&'static str, fn(&T) -> String);

const CONNECTION: &[Column<Connection>] = &[
    ("connection", |it| it.id.to_string()),
    ("version", |it| maybe(it.version)),
    ("partial", |it| it.partial.to_string()),
    ("evicted", |it| it.evicted.to_string()),
    ("fallback", |it| maybe(it.fallback)),
    ("token_client", |it| maybe(it.token_client.as_deref())),
    ("token_server", |it| maybe(it.token_server.as_deref())),
    ("src", |it| maybe(it.subflows.first().map(|first| first.src))),
    ("dst", |it| maybe(it.subflows.first().map(|first| first.dst))),
    ("start", |it| it.start.to_string()),
    ("duration_s", |it| it.duration_s.to_string()),
    ("subflows", |it| it.subflows.len().to_string()),
    ("reinjected_segments", |it| it.reinjected.segments.to_string()),
    ("reinjected_bytes", |it| it.reinjected.bytes.to_string()),
    ("failovers", |it| it.failovers.len().to_string()),
    ("longest_stall_s", |it| {
        maybe(it.failovers.iter().filter_map(|failover| failover.stall_s).max_by(f64::total_cmp))
    }),
];

/// A column's name and what is in it for either direction.
type SidedColumn = (&'static str, fn(&Connection, Direction) -> String);

const CONNECTION_SIDES: &[SidedColumn] = &[
    ("bytes", |it, way| it.bytes.in_direction(way).to_string()),
    ("new_bytes", |it, way| it.new_bytes.in_direction(way).to_string()),
    ("completion_s", |it, way| maybe(*it.completion_s.in_direction(way))),
    ("aggregation_benefit", |it, way| maybe(*it.aggregation_benefit.in_direction(way))),
];

const SUBFLOW: &[Column<Subflow>] = &[
    ("src", |it| it.src.to_string()),
    ("dst", |it| it.dst.to_string()),
    ("joined", |it| it.joined.to_string()),
    ("accepted", |it| it.accepted.to_string()),
    ("authentic", |it| maybe(it.authentic)),
    ("backup", |it| it.backup.to_string()),
    ("start", |it| it.start.to_string()),
    ("duration_s", |it| it.duration_s.to_string()),
    ("syn_rtt_ms", |it| maybe(it.syn_rtt_ms)),
    ("close", |it| it.close.how.to_owned()),
    ("close_by", |it| maybe(it.close.by)),
    ("close_reason", |it| maybe(it.close.reason)),
];

const SENT: &[Column<Sent>] = &[
    ("packets", |it| it.packets.to_string()),
    ("bytes", |it| it.bytes.to_string()),
    ("share", |it| maybe(it.share)),
    ("new_bytes", |it| it.new_bytes.to_string()),
    ("repeated_bytes", |it| it.repeated_bytes.to_string()),
    ("unmapped_bytes", |it| it.unmapped_bytes.to_string()),
    ("reinjected_segments", |it| it.reinjected.segments.to_string()),
    ("reinjected_bytes", |it| it.reinjected.bytes.to_string()),
    ("retransmitted_segments", |it| it.retransmitted.segments.to_string()),
    ("retransmitted_bytes", |it| it.retransmitted.bytes.to_string()),
    ("duplicate_bytes", |it| it.duplicate_bytes.to_string()),
    ("out_of_order_segments", |it| it.out_of_order.segments.to_string()),
    ("out_of_order_bytes", |it| it.out_of_order.bytes.to_string()),
    ("window_min", |it| maybe(it.window.as_ref().map(|window| window.min))),
    ("window_max", |it| maybe(it.window.as_ref().map(|window| window.max))),
    ("window_last", |it| maybe(it.window.as_ref().map(|window| window.last))),
    ("checksums_right", |it| maybe(it.checksums.as_ref().map(|checksums| checksums.right))),
    ("checksums_wrong", |it| maybe(it.checksums.as_ref().map(|checksums| checksums.wrong))),
    ("exposure_bytes", |it| it.exposure.bytes.to_string()),
    ("exposure_fraction", |it| it.exposure.fraction.to_string()),
    ("exposure_longest_run", |it| it.exposure.longest_run.to_string()),
    ("exposure_runs", |it| it.exposure.runs.to_string()),
];

/// What has times, and where they are.
type Spread = (&'static str, fn(&Sent) -> Option<&Times>);

const SPREADS: &[Spread] = &[
    ("rtt", |it| it.rtt_ms.as_ref()),
    ("rtt_timestamps", |it| it.rtt_timestamps_ms.as_ref()),
    ("head_of_line", |it| it.head_of_line_ms.as_ref()),
];

const TIMES: &[Column<Times>] = &[
    ("samples", |it| it.samples.to_string()),
    ("mean_ms", |it| it.mean.to_string()),
    ("stddev_ms", |it| it.stddev.to_string()),
    ("min_ms", |it| it.min.to_string()),
    ("p50_ms", |it| it.p50.to_string()),
    ("p95_ms", |it| it.p95.to_string()),
    ("max_ms", |it| it.max.to_string()),
];
