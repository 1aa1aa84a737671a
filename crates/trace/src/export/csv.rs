//! `connections.csv` and `subflows.csv` (RFC 4180). Columns per direction end in the direction's name; a cell is empty
//! where the document has `null`.

use std::io::{self, Write};

use crate::direction::Direction;
use crate::export::document::{Connection, DirectionStats, DurationStats, RttSource, Subflow};

/// One row per connection.
pub(crate) struct ConnectionTable<W: Write>(csv::Writer<W>);

impl<W: Write> ConnectionTable<W> {
    pub(crate) fn new(out: W) -> io::Result<Self> {
        let mut heading = names(CONNECTION);
        for direction in Direction::BOTH {
            heading
                .extend(CONNECTION_DIRECTIONS.iter().map(|(name, _)| format!("{name}_{}", direction.name())));
        }
        let mut out = csv::Writer::from_writer(out);
        out.write_record(heading)?;
        Ok(Self(out))
    }

    pub(crate) fn write(&mut self, connection: &Connection) -> io::Result<()> {
        let mut row = values(CONNECTION, connection);
        for direction in Direction::BOTH {
            row.extend(CONNECTION_DIRECTIONS.iter().map(|(_, value)| value(connection, direction)));
        }
        Ok(self.0.write_record(row)?)
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        self.0.into_inner().map_err(|error| error.into_error())
    }
}

/// One row per subflow, with the statistics of both directions.
pub(crate) struct SubflowTable<W: Write>(csv::Writer<W>);

impl<W: Write> SubflowTable<W> {
    pub(crate) fn new(out: W) -> io::Result<Self> {
        let mut sent = names(DIRECTION_STATS);
        for (spread, _) in DURATIONS {
            sent.extend(STATISTICS.iter().map(|(name, _)| format!("{spread}_{name}")));
        }
        let mut heading = vec!["connection".to_owned(), "subflow".to_owned()];
        heading.extend(names(SUBFLOW));
        for direction in Direction::BOTH {
            heading.extend(sent.iter().map(|name| format!("{name}_{}", direction.name())));
        }
        let mut out = csv::Writer::from_writer(out);
        out.write_record(heading)?;
        Ok(Self(out))
    }

    pub(crate) fn write(&mut self, connection: &Connection) -> io::Result<()> {
        for (subflow, number) in connection.subflows.iter().zip(1_u64..) {
            let mut row = vec![connection.id.to_string(), number.to_string()];
            row.extend(values(SUBFLOW, subflow));
            for direction in Direction::BOTH {
                let sent = subflow.directions.in_direction(direction);
                row.extend(values(DIRECTION_STATS, sent));
                for (_, spread) in DURATIONS {
                    let times = spread(sent);
                    row.extend(STATISTICS.iter().map(|(_, value)| times.map(value).unwrap_or_default()));
                }
            }
            self.0.write_record(row)?;
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        self.0.into_inner().map_err(|error| error.into_error())
    }
}

fn names<T>(columns: &[Column<T>]) -> Vec<String> {
    columns.iter().map(|(name, _)| (*name).to_owned()).collect()
}

fn values<T>(columns: &[Column<T>], row: &T) -> Vec<String> {
    columns.iter().map(|(_, value)| value(row)).collect()
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A column's name and value.
type Column<T> = (&'static str, fn(&T) -> String);

const CONNECTION: &[Column<Connection>] = &[
    ("connection", |it| it.id.to_string()),
    ("version", |it| optional(it.version)),
    ("partial", |it| it.partial.to_string()),
    ("evicted", |it| it.evicted.to_string()),
    ("fallback", |it| optional(it.fallback)),
    ("token_client", |it| optional(it.token_client.as_deref())),
    ("token_server", |it| optional(it.token_server.as_deref())),
    ("src", |it| optional(it.subflows.first().map(|first| first.src))),
    ("dst", |it| optional(it.subflows.first().map(|first| first.dst))),
    ("start", |it| it.start.to_string()),
    ("duration_s", |it| it.duration_s.to_string()),
    ("subflows", |it| it.subflows.len().to_string()),
    ("reinjected_segments", |it| it.reinjected.segments.to_string()),
    ("reinjected_bytes", |it| it.reinjected.bytes.to_string()),
    ("failovers", |it| it.failovers.len().to_string()),
    ("longest_stall_s", |it| {
        optional(it.failovers.iter().filter_map(|failover| failover.stall_s).max_by(f64::total_cmp))
    }),
];

/// A column's name and its value for a direction.
type DirectionColumn = (&'static str, fn(&Connection, Direction) -> String);

const CONNECTION_DIRECTIONS: &[DirectionColumn] = &[
    ("bytes", |it, direction| it.bytes.in_direction(direction).to_string()),
    ("new_bytes", |it, direction| it.new_bytes.in_direction(direction).to_string()),
    ("completion_s", |it, direction| optional(*it.completion_s.in_direction(direction))),
    ("aggregation_benefit", |it, direction| optional(*it.aggregation_benefit.in_direction(direction))),
];

const SUBFLOW: &[Column<Subflow>] = &[
    ("src", |it| it.src.to_string()),
    ("dst", |it| it.dst.to_string()),
    ("joined", |it| it.joined.to_string()),
    ("accepted", |it| it.accepted.to_string()),
    ("authentic", |it| optional(it.authentic)),
    ("backup", |it| it.backup.to_string()),
    ("start", |it| it.start.to_string()),
    ("duration_s", |it| it.duration_s.to_string()),
    ("syn_rtt_ms", |it| optional(it.syn_rtt_ms)),
    ("close", |it| it.close.kind.to_owned()),
    ("close_by", |it| optional(it.close.by.map(Direction::name))),
    ("close_reason", |it| optional(it.close.reason)),
];

const DIRECTION_STATS: &[Column<DirectionStats>] = &[
    ("packets", |it| it.packets.to_string()),
    ("bytes", |it| it.bytes.to_string()),
    ("share", |it| optional(it.share)),
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
    ("rtt_source", |it| optional(it.rtt_source.map(RttSource::name))),
    ("jitter_samples", |it| optional(it.jitter_ms.as_ref().map(|jitter| jitter.samples))),
    ("jitter_mean_ms", |it| optional(it.jitter_ms.as_ref().map(|jitter| jitter.mean))),
    ("jitter_max_ms", |it| optional(it.jitter_ms.as_ref().map(|jitter| jitter.max))),
    ("jitter_last_ms", |it| optional(it.jitter_ms.as_ref().map(|jitter| jitter.last))),
    ("interarrival_samples", |it| optional(it.interarrival_ms.as_ref().map(|times| times.samples))),
    ("interarrival_mean_ms", |it| optional(it.interarrival_ms.as_ref().map(|times| times.mean))),
    ("interarrival_stddev_ms", |it| optional(it.interarrival_ms.as_ref().map(|times| times.stddev))),
    ("interarrival_min_ms", |it| optional(it.interarrival_ms.as_ref().map(|times| times.min))),
    ("interarrival_max_ms", |it| optional(it.interarrival_ms.as_ref().map(|times| times.max))),
    ("window_min", |it| optional(it.window.as_ref().map(|window| window.min))),
    ("window_max", |it| optional(it.window.as_ref().map(|window| window.max))),
    ("window_last", |it| optional(it.window.as_ref().map(|window| window.last))),
    ("checksums_valid", |it| optional(it.checksums.as_ref().map(|checksums| checksums.valid))),
    ("checksums_invalid", |it| optional(it.checksums.as_ref().map(|checksums| checksums.invalid))),
    ("exposure_bytes", |it| it.exposure.bytes.to_string()),
    ("exposure_fraction", |it| it.exposure.fraction.to_string()),
    ("exposure_longest_run", |it| it.exposure.longest_run.to_string()),
    ("exposure_runs", |it| it.exposure.runs.to_string()),
];

/// The prefix of a group of columns, and its statistics.
type DurationColumn = (&'static str, fn(&DirectionStats) -> Option<&DurationStats>);

const DURATIONS: &[DurationColumn] = &[
    ("rtt", |it| it.rtt_ms.as_ref()),
    ("ack_rtt", |it| it.ack_rtt_ms.as_ref()),
    ("ack_rtt_timestamps", |it| it.ack_rtt_timestamps_ms.as_ref()),
    ("head_of_line", |it| it.head_of_line_ms.as_ref()),
];

const STATISTICS: &[Column<DurationStats>] = &[
    ("samples", |it| it.samples.to_string()),
    ("mean_ms", |it| it.mean.to_string()),
    ("stddev_ms", |it| it.stddev.to_string()),
    ("min_ms", |it| it.min.to_string()),
    ("p50_ms", |it| it.p50.to_string()),
    ("p95_ms", |it| it.p95.to_string()),
    ("max_ms", |it| it.max.to_string()),
];
