//! What `plait capture` records: `samples.jsonl` and `counters.jsonl`, one object a line (docs/capture.md).

use serde_json::Value;

use super::{Figures, nstat};

const SOURCE: &str = "plait";

/// Figures of a subflow, with their unit and what to multiply by.
const FIGURES: [(&str, &str, f64); 8] = [
    ("rtt_us", "ms", 1e-3),
    ("cwnd", "segments", 1.0),
    ("bytes_sent", "B", 1.0),
    ("bytes_acked", "B", 1.0),
    ("bytes_received", "B", 1.0),
    ("bytes_retransmitted", "B", 1.0),
    ("delivery_rate", "Mb/s", 8e-6),
    ("pacing_rate", "Mb/s", 8e-6),
];

pub(super) fn add(line: &Value, figures: &mut Figures) {
    let Some(time) = line["time"].as_f64() else { return };
    nstat::add_json(time, line, figures);
    for subflow in line["subflows"].as_array().into_iter().flatten() {
        let (Some(local), Some(remote)) = (subflow["local"].as_str(), subflow["remote"].as_str()) else {
            continue;
        };
        let of = format!("{local} -> {remote}");
        for (name, unit, scale) in FIGURES {
            if let Some(value) = subflow[name].as_f64() {
                figures.add(SOURCE, &of, name, unit, (time, value * scale));
            }
        }
    }
}
