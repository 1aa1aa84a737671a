//! Recordings of `plait capture`: `samples.jsonl` and `counters.jsonl`, one object per line (docs/guide/capture.md).

use serde_json::Value;

use super::{Collector, nstat};

const SOURCE: &str = "plait";

/// Metrics of a subflow: name in a sample, name of the metric, unit and factor.
const METRICS: [(&str, &str, &str, f64); 8] = [
    ("rtt_us", "rtt", "ms", 1e-3),
    ("cwnd", "cwnd", "segments", 1.0),
    ("bytes_sent", "bytes_sent", "B", 1.0),
    ("bytes_acked", "bytes_acked", "B", 1.0),
    ("bytes_received", "bytes_received", "B", 1.0),
    ("bytes_retransmitted", "bytes_retransmitted", "B", 1.0),
    ("delivery_rate", "delivery_rate", "Mb/s", 8e-6),
    ("pacing_rate", "pacing_rate", "Mb/s", 8e-6),
];

pub(super) fn add(line: &Value, collector: &mut Collector) {
    let Some(time) = line["time"].as_f64() else { return };
    collector.is_plait_recording |= line["kernel"].is_object() || line["subflows"].is_array();
    nstat::add_json(time, line, collector);
    for subflow in line["subflows"].as_array().into_iter().flatten() {
        let (Some(local), Some(remote)) = (subflow["local"].as_str(), subflow["remote"].as_str()) else {
            continue;
        };
        let subject = format!("{local} -> {remote}");
        for (name, metric, unit, scale) in METRICS {
            if let Some(value) = subflow[name].as_f64() {
                collector.add(SOURCE, &subject, metric, unit, (time, value * scale));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{points, read};

    #[test]
    fn reads_samples_and_counters() {
        let found = read(
            "{\"time\":7.5,\"token\":\"a77ae883\",\"connection\":null,\"subflows\":[{\"local\":\"192.0.2.2:40002\",\
             \"remote\":\"192.0.2.1:80\",\"rtt_us\":1500,\"cwnd\":10,\"delivery_rate\":1000000,\"pacing_rate\":null}]}\n\
             {\"time\":7.5,\"kernel\":{\"TcpRetransSegs\":1}}\n{\"time\":8.5,\"kernel\":{\"TcpRetransSegs\":2}}\n",
        );
        let subflow = "192.0.2.2:40002 -> 192.0.2.1:80";
        assert_eq!(points(&found, subflow, "rtt"), [(7.5, 1.5)]);
        assert_eq!(points(&found, subflow, "cwnd"), [(7.5, 10.0)]);
        assert_eq!(points(&found, subflow, "delivery_rate"), [(7.5, 8.0)]);
        assert_eq!(points(&found, "host", "TcpRetransSegs"), [(7.5, 1.0), (8.5, 2.0)]);
        assert_eq!(found.len(), 4);
    }
}
