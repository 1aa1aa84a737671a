//! The counters of a link, as text and JSON.

use std::fmt::Write as _;
use std::time::Duration;

use plait_emulator::{Backend, Counters, Statistics};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Report {
    backend: Backend,
    duration_s: f64,
    #[serde(flatten)]
    statistics: Statistics,
    /// Why measurements over the link are not valid.
    pub(super) invalid_because: Option<String>,
}

impl Report {
    pub(super) fn new(
        backend: Backend,
        duration: Duration,
        statistics: Statistics,
        limit: Option<Duration>,
    ) -> Self {
        let invalid_because = match (limit, &statistics.lateness) {
            (None, _) => None,
            (Some(_), None) => Some(format!(
                "cannot check the lateness: the backend {backend} delivers frames in the kernel, which does not \
                 measure it"
            )),
            (Some(limit), Some(lateness)) => lateness.exceeds(limit),
        };
        Self { backend, duration_s: duration.as_secs_f64(), statistics, invalid_because }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{} for {:.3} s\n\n", self.backend, self.duration_s);
        let Statistics { a_to_b, b_to_a, lateness } = &self.statistics;
        let _ = writeln!(text, "{:24}{:>16}{:>16}", "", "a to b", "b to a");
        for (name, of) in ROWS {
            let cell = |counters| of(counters).map_or_else(|| "-".into(), |count: u64| count.to_string());
            let _ = writeln!(text, "{name:24}{:>16}{:>16}", cell(a_to_b), cell(b_to_a));
        }
        if let Some(lateness) = lateness {
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            let _ = writeln!(
                text,
                "\nlateness of {} frames: p50 {:.3} ms, p99 {:.3} ms, p99.9 {:.3} ms, max {:.3} ms ({})",
                lateness.frames,
                ms(lateness.p50),
                ms(lateness.p99),
                ms(lateness.p999),
                ms(lateness.max),
                if lateness.real_time { "at real-time priority" } else { "without real-time priority" }
            );
        }
        text
    }
}

type Row = (&'static str, fn(&Counters) -> Option<u64>);

const ROWS: [Row; 12] = [
    ("frames in", |counters| Some(counters.frames_in)),
    ("bytes in", |counters| Some(counters.bytes_in)),
    ("frames out", |counters| Some(counters.frames_out)),
    ("bytes out", |counters| Some(counters.bytes_out)),
    ("lost", |counters| counters.lost),
    ("duplicated", |counters| counters.duplicated),
    ("dropped: early, by RED", |counters| counters.early),
    ("dropped: queue full", |counters| counters.queue_full),
    ("dropped: no path", |counters| counters.no_path),
    ("dropped: refused", |counters| counters.refused),
    ("overruns", |counters| counters.overruns),
    ("longest queue in bytes", |counters| counters.queue_max_bytes),
];
