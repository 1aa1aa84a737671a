//! `iperf3 -J`: throughput, and the sender's TCP metrics of each stream. The start time has a resolution of one second,
//! or of one millisecond from iperf 3.18 on.

use serde_json::Value;

use super::Collector;

const SOURCE: &str = "iperf3";

pub(super) fn add(document: &Value, collector: &mut Collector) {
    let timestamp = &document["start"]["timestamp"];
    let seconds = timestamp["timesecs"].as_f64();
    let Some(start) = timestamp["timemillisecs"].as_f64().map(|time| time / 1e3).or(seconds) else { return };
    for interval in document["intervals"].as_array().into_iter().flatten() {
        for sum in ["sum", "sum_bidir_reverse"] {
            throughput(start, "all streams", &interval[sum], collector);
        }
        for stream in interval["streams"].as_array().into_iter().flatten() {
            let subject = format!("stream {}", stream["socket"]);
            throughput(start, &subject, stream, collector);
            let Some(end) = stream["end"].as_f64() else { continue };
            for (metric, unit, scale) in
                [("rtt", "ms", 1e-3), ("snd_cwnd", "B", 1.0), ("retransmits", "segments", 1.0)]
            {
                if let Some(value) = stream[metric].as_f64() {
                    collector.add(SOURCE, &subject, metric, unit, (start + end, value * scale));
                }
            }
        }
    }
}

/// Adds a throughput in the middle of its interval.
fn throughput(start: f64, subject: &str, part: &Value, collector: &mut Collector) {
    if let (Some(from), Some(to), Some(rate)) =
        (part["start"].as_f64(), part["end"].as_f64(), part["bits_per_second"].as_f64())
    {
        let metric = if part["sender"] == false { "received" } else { "sent" };
        collector.add(SOURCE, subject, metric, "Mb/s", (start + (from + to) / 2.0, rate / 1e6));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{points, read};

    /// Output of iperf 3.12, shortened.
    const DOCUMENT: &str = r#"{
        "start": {"timestamp": {"time": "Sat, 21 Nov 2026 06:55:25 GMT", "timesecs": 1795244125}},
        "intervals": [{
            "streams": [{"socket": 5, "start": 0, "end": 0.5, "bits_per_second": 84862704.5, "retransmits": 40,
                "snd_cwnd": 243264, "rtt": 60863, "sender": true}],
            "sum": {"start": 0, "end": 0.5, "bits_per_second": 84862704.5, "retransmits": 40, "sender": true}
        }]
    }"#;

    #[test]
    fn reads_intervals() {
        let lines = DOCUMENT.replacen('{', "{\n", 1);
        let found = read(&lines);
        assert_eq!(points(&found, "all streams", "sent"), [(1795244125.25, 84.8627045)]);
        assert_eq!(points(&found, "stream 5", "rtt"), [(1795244125.5, 60.863)]);
        assert_eq!(points(&found, "stream 5", "snd_cwnd"), [(1795244125.5, 243264.0)]);
        let one_line: String = DOCUMENT.lines().map(str::trim).collect();
        assert_eq!(read(&one_line), found);
    }
}
