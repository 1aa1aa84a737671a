//! The table of subflows.

use super::{Cell, ConnectionRows, PerDirection, Table, by_direction, per_direction};
use crate::export::document::{Connection, DirectionStats, DurationStats, RttSource, Subflow};

/// One row per subflow, with the statistics of both directions.
#[derive(Debug)]
pub enum SubflowTable {}

type Column = super::Column<SubflowTable>;

/// A subflow: the connection's id, its number in the connection, and itself.
type SubflowRow<'a> = (u64, usize, &'a Subflow);

type Columns = PerDirection<Column>;

impl Table for SubflowTable {
    const NAME: &'static str = "subflows";
    const ROW: &'static str = "a TCP connection that carries a connection or a part of one";
    type Row<'a> = SubflowRow<'a>;

    fn columns() -> Vec<Column> {
        let mut columns = vec![
            Column::new("connection", "The connection's id.", |it| it.0),
            Column::new(
                "subflow",
                "Its number in the connection, from 1 in the order in which they were first seen.",
                |it| it.1,
            ),
            Column::new("src_address", "The address of the connection's client in this subflow.", |it| {
                it.2.src.ip()
            }),
            Column::new("src_port", "The client's port.", |it| it.2.src.port()),
            Column::new("dst_address", "The address of the connection's server in this subflow.", |it| {
                it.2.dst.ip()
            }),
            Column::new("dst_port", "The server's port.", |it| it.2.dst.port()),
            Column::new("joined", "Whether it was opened with MP_JOIN.", |it| it.2.joined),
            Column::new("accepted", "Whether the peer accepted it; otherwise it is an attempt.", |it| {
                it.2.accepted
            }),
            Column::new(
                "authentic",
                "Whether the HMACs of its join are valid; null where that is unknown.",
                |it| it.2.authentic,
            ),
            Column::new(
                "backup",
                "Whether a side requested backup priority, at its opening or with the last MP_PRIO.",
                |it| it.2.backup,
            ),
            Column::new("start", "Time of its first captured packet.", |it| it.2.start),
            Column::new("duration_s", "From its first to its last captured packet.", |it| it.2.duration_s),
            Column::new(
                "syn_rtt_s",
                "Round-trip time of the three-way handshake; null if it was not captured or was retransmitted.",
                |it| it.2.syn_rtt_ms.map(seconds),
            ),
            Column::new(
                "close",
                "How it ended: `open` (not within the capture), `half_closed`, `fin`, `reset`, `fastclose`.",
                |it| it.2.close.kind,
            ),
            Column::new(
                "close_by",
                "The direction in which the side that closed it sends; null if both did, or none.",
                |it| it.2.close.by,
            ),
            Column::new("close_reason", "Reason code of MP_TCPRST (RFC 8684 table 2).", |it| {
                it.2.close.reason
            }),
        ];
        columns.extend(by_direction(direction_columns()));
        columns
    }
}

impl ConnectionRows for SubflowTable {
    fn rows(connection: &Connection) -> impl Iterator<Item = SubflowRow<'_>> {
        let numbered = (1..).zip(&connection.subflows);
        numbered.map(|(number, subflow)| (connection.id, number, subflow))
    }
}

fn direction_columns() -> Vec<Columns> {
    let mut columns = vec![
        column("packets", "Packets, with and without payload.", |it| it.packets),
        column("bytes", "Payload bytes, all copies.", |it| it.bytes),
        column(
            "share",
            "Share of the connection's bytes in this direction, 0 to 1; null if there are none.",
            |it| it.share,
        ),
        column("new_bytes", "Bytes that no subflow had carried before: the goodput.", |it| it.new_bytes),
        column("repeated_bytes", "Bytes of the stream that this subflow had carried before.", |it| {
            it.repeated_bytes
        }),
        column("unmapped_bytes", "Bytes that no DSS mapping covers.", |it| it.unmapped_bytes),
        column(
            "reinjected_segments",
            "Segments with data that another subflow had carried before and this one had not.",
            |it| it.reinjected.segments,
        ),
        column("reinjected_bytes", "Bytes of such data.", |it| it.reinjected.bytes),
        column("retransmitted_segments", "Segments sent again by TCP sequence number.", |it| {
            it.retransmitted.segments
        }),
        column("retransmitted_bytes", "Bytes sent again by TCP sequence number.", |it| {
            it.retransmitted.bytes
        }),
        column("duplicate_bytes", "Retransmitted bytes that had already been acknowledged.", |it| {
            it.duplicate_bytes
        }),
        column(
            "out_of_order_segments",
            "Segments captured after data with higher sequence numbers, and not seen before.",
            |it| it.out_of_order.segments,
        ),
        column("out_of_order_bytes", "Bytes in these segments.", |it| it.out_of_order.bytes),
        column(
            "rtt_source",
            "`acks`: `rtt` was measured at the sender. `timestamps`: at the receiver. Null without samples.",
            |it| it.rtt_source.map(RttSource::name),
        ),
        column("jitter_samples", "Number of packets after the first.", |it| {
            it.jitter_ms.as_ref().map(|it| it.samples)
        }),
        column(
            "jitter_mean_s",
            "Interarrival jitter (RFC 3550 6.4.1), mean over all packets; null without TCP timestamps.",
            |it| it.jitter_ms.as_ref().map(|it| seconds(it.mean)),
        ),
        column("jitter_max_s", "Maximum over all packets.", |it| {
            it.jitter_ms.as_ref().map(|it| seconds(it.max))
        }),
        column("jitter_last_s", "After the last packet.", |it| {
            it.jitter_ms.as_ref().map(|it| seconds(it.last))
        }),
        column("interarrival_samples", "Number of packets with data after the first.", |it| {
            it.interarrival_ms.as_ref().map(|it| it.samples)
        }),
        column("interarrival_mean_s", "Time between consecutive packets with data, mean.", |it| {
            it.interarrival_ms.as_ref().map(|it| seconds(it.mean))
        }),
        column("interarrival_stddev_s", "Population standard deviation.", |it| {
            it.interarrival_ms.as_ref().map(|it| seconds(it.stddev))
        }),
        column("interarrival_min_s", "Minimum.", |it| it.interarrival_ms.as_ref().map(|it| seconds(it.min))),
        column("interarrival_max_s", "Maximum.", |it| it.interarrival_ms.as_ref().map(|it| seconds(it.max))),
        column(
            "window_min_bytes",
            "Smallest receive window that this side announced; null if the window scale is unknown.",
            |it| it.window.map(|it| it.min),
        ),
        column("window_max_bytes", "Largest.", |it| it.window.map(|it| it.max)),
        column("window_last_bytes", "Last.", |it| it.window.map(|it| it.last)),
        column(
            "checksums_valid",
            "DSS checksums that match their data; null if none could be verified.",
            |it| it.checksums.map(|it| it.valid),
        ),
        column("checksums_invalid", "DSS checksums that do not.", |it| it.checksums.map(|it| it.invalid)),
        column("exposure_bytes", "Bytes of the stream that crossed this subflow, each counted once.", |it| {
            it.exposure.bytes
        }),
        column("exposure_fraction", "Their share of the stream, 0 to 1.", |it| it.exposure.fraction),
        column("exposure_longest_run_bytes", "Length of the longest contiguous run.", |it| {
            it.exposure.longest_run
        }),
        column("exposure_runs", "Number of contiguous runs.", |it| it.exposure.runs),
    ];
    columns.extend(duration_columns(RTT, |it| it.rtt_ms.as_ref()));
    columns.extend(duration_columns(ACK_RTT, |it| it.ack_rtt_ms.as_ref()));
    columns.extend(duration_columns(ACK_RTT_TIMESTAMPS, |it| it.ack_rtt_timestamps_ms.as_ref()));
    columns.extend(duration_columns(HEAD_OF_LINE, |it| it.head_of_line_ms.as_ref()));
    columns
}

/// Names and descriptions of the statistics of durations.
type Names = [(&'static str, &'static str); 7];

macro_rules! names {
    ($prefix:literal, $meaning:literal) => {
        [
            (concat!($prefix, "_samples"), concat!($meaning, " Number of samples.")),
            (concat!($prefix, "_mean_s"), "Arithmetic mean."),
            (concat!($prefix, "_stddev_s"), "Population standard deviation."),
            (concat!($prefix, "_min_s"), "Minimum."),
            (concat!($prefix, "_p50_s"), "Median, at most 0.8 % too high."),
            (concat!($prefix, "_p95_s"), "95th percentile, at most 0.8 % too high."),
            (concat!($prefix, "_max_s"), "Maximum."),
        ]
    };
}

const RTT: Names = names!(
    "rtt",
    "Round-trip times of the path, measured with this data; null if the capture was taken between the ends, or where is unknown."
);
const ACK_RTT: Names = names!(
    "ack_rtt",
    "From segments to the acknowledgements that cover them at the place of the capture, wherever that is; null without samples."
);
const ACK_RTT_TIMESTAMPS: Names = names!("ack_rtt_timestamps", "The same by TCP timestamps.");
const HEAD_OF_LINE: Names = names!(
    "head_of_line",
    "Head-of-line blocking: how long its data waited for earlier data of another subflow; null without data."
);

fn duration_columns(
    [samples, mean, stddev, min, p50, p95, max]: Names,
    of: fn(&DirectionStats) -> Option<&DurationStats>,
) -> [Columns; 7] {
    let column_s = |(name, description), statistic: fn(&DurationStats) -> f64| {
        column(name, description, move |it| of(it).map(|it| seconds(statistic(it))))
    };
    [
        column(samples.0, samples.1, move |it| of(it).map(|it| it.samples)),
        column_s(mean, |it| it.mean),
        column_s(stddev, |it| it.stddev),
        column_s(min, |it| it.min),
        column_s(p50, |it| it.p50),
        column_s(p95, |it| it.p95),
        column_s(max, |it| it.max),
    ]
}

fn column<C: Cell>(
    name: &'static str,
    description: &'static str,
    value: impl Fn(&DirectionStats) -> C + Copy + Send + Sync + 'static,
) -> Columns {
    per_direction::<SubflowTable, _>(name, description, move |row, direction| {
        value(row.2.directions.in_direction(direction))
    })
}

fn seconds(milliseconds: f64) -> f64 {
    milliseconds / 1e3
}
