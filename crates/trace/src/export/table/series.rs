//! The table of time series.

use std::time::Duration;

use super::Table;
use crate::interval::{Interval, RttSamples};

/// One row per interval in which a side sent anything on a subflow.
#[derive(Debug)]
pub enum SeriesTable {}

type Column = super::Column<SeriesTable>;

/// An interval and its length.
#[derive(Debug)]
pub struct IntervalRow<'a> {
    /// The interval.
    pub interval: &'a Interval,
    /// Its length, the same for all rows.
    pub length: Duration,
}

impl Table for SeriesTable {
    const NAME: &'static str = "series";
    const ROW: &'static str =
        "what one side sent in one subflow in one interval; intervals in which it sent nothing are omitted";
    type Row<'a> = IntervalRow<'a>;

    fn columns() -> Vec<Column> {
        vec![
            Column::new("connection", "The connection's id.", |it| it.interval.connection),
            Column::new("subflow", "The subflow's number.", |it| it.interval.subflow + 1),
            Column::new("direction", "`client_to_server` or `server_to_client`.", |it| it.interval.direction),
            Column::new("time", "Start of the interval, a multiple of its length since 1970.", |it| {
                it.interval.start
            }),
            Column::new("interval_s", "Length of the interval.", |it| it.length.as_secs_f64()),
            Column::new("packets", "Packets, with and without payload.", |it| it.interval.counts.packets),
            Column::new("bytes", "Payload bytes, all copies.", |it| it.interval.counts.bytes),
            Column::new("new_bytes", "Bytes that no subflow had carried before.", |it| {
                it.interval.counts.new
            }),
            Column::new(
                "reinjected_bytes",
                "Bytes that another subflow had carried before and this one had not.",
                |it| it.interval.counts.reinjected,
            ),
            Column::new("retransmitted_bytes", "Bytes sent again by TCP sequence number.", |it| {
                it.interval.counts.retransmitted
            }),
            Column::new("throughput_bps", "Bits per second, of `bytes`.", |it| {
                it.bits_per_second(it.interval.counts.bytes)
            }),
            Column::new("goodput_bps", "Bits per second, of `new_bytes`.", |it| {
                it.bits_per_second(it.interval.counts.new)
            }),
            Column::new(
                "rtt_samples",
                "Round trips of the path that were completed within the interval.",
                |it| it.interval.counts.rtt.map_or(0, |rtt| rtt.count),
            ),
            Column::new("rtt_mean_s", "Their mean; null without samples.", |it| it.rtt(RttSamples::mean)),
            Column::new("rtt_min_s", "Their minimum.", |it| it.rtt(|rtt| rtt.min)),
            Column::new("rtt_max_s", "Their maximum.", |it| it.rtt(|rtt| rtt.max)),
            Column::new(
                "jitter_s",
                "Interarrival jitter (RFC 3550 6.4.1) after the last packet of the interval; null if unknown.",
                |it| it.interval.counts.jitter.map(|jitter| jitter.as_secs_f64()),
            ),
            Column::new(
                "position_start_bytes",
                "Start of the range of the stream that it carried, from the stream's start; null without payload.",
                |it| it.interval.counts.positions.as_ref().map(|positions| positions.start),
            ),
            Column::new("position_end_bytes", "End of that range.", |it| {
                it.interval.counts.positions.as_ref().map(|positions| positions.end)
            }),
            Column::new(
                "window_bytes",
                "The receive window that this side announced last; null if unknown.",
                |it| it.interval.counts.window,
            ),
        ]
    }
}

impl IntervalRow<'_> {
    fn bits_per_second(&self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / self.length.as_secs_f64()
    }

    fn rtt(&self, part: fn(&RttSamples) -> Duration) -> Option<f64> {
        Some(part(self.interval.counts.rtt.as_ref()?).as_secs_f64())
    }
}
