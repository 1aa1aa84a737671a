//! Lines of `ss -tMinoOH`: metrics of TCP and MPTCP sockets.

use super::Collector;

const SOURCE: &str = "ss";

/// Metrics written as `name:value`, with unit and factor.
const METRICS: [(&str, &str, f64); 7] = [
    ("rtt", "ms", 1.0),
    ("cwnd", "segments", 1.0),
    ("unacked", "segments", 1.0),
    ("bytes_sent", "B", 1.0),
    ("bytes_acked", "B", 1.0),
    ("bytes_received", "B", 1.0),
    ("bytes_retrans", "B", 1.0),
];

/// Metrics written as `name value`, with a rate in bits per second as value.
const RATES: [&str; 2] = ["delivery_rate", "pacing_rate"];

pub(super) fn add(time: f64, line: &str, collector: &mut Collector) {
    let mut words = line.split_whitespace();
    let protocol = words.next();
    if !matches!(protocol, Some("tcp" | "mptcp")) {
        return;
    }
    // State and both queues.
    let (Some(local), Some(peer)) = (words.nth(3), words.next()) else { return };
    let subject = format!("{} -> {}", without_interface(local), without_interface(peer));
    let subject = if protocol == Some("mptcp") { format!("connection {subject}") } else { subject };
    let words: Vec<&str> = words.collect();
    for (index, word) in words.iter().enumerate() {
        if let Some((name, value)) = word.split_once(':')
            && let Some((_, unit, scale)) = METRICS.iter().find(|(known, ..)| *known == name)
            // The round-trip time is followed by a slash and its deviation.
            && let Some(Ok(value)) = value.split('/').next().map(str::parse::<f64>)
        {
            collector.add(SOURCE, &subject, name, unit, (time, value * scale));
        } else if RATES.contains(word)
            && let Some(rate) = words.get(index + 1).and_then(|rate| rate_in_mbps(rate))
        {
            collector.add(SOURCE, &subject, word, "Mb/s", (time, rate));
        }
    }
}

/// An address as in `10.0.0.1%eth0:80`, without the interface.
fn without_interface(address: &str) -> String {
    match (address.find('%'), address.rfind(':')) {
        (Some(percent), Some(colon)) if percent < colon => {
            // IPv6 addresses are in brackets.
            let bracket = if address[percent..colon].ends_with(']') { "]" } else { "" };
            format!("{}{bracket}{}", &address[..percent], &address[colon..])
        }
        _ => address.into(),
    }
}

/// A rate as in `28774624bps` or `1.2Gbps`.
fn rate_in_mbps(text: &str) -> Option<f64> {
    let text = text.strip_suffix("bps")?;
    let (number, scale) = match text.strip_suffix(['K', 'M', 'G', 'T']) {
        Some(number) if text.ends_with('K') => (number, 1e-3),
        Some(number) if text.ends_with('M') => (number, 1.0),
        Some(number) if text.ends_with('G') => (number, 1e3),
        Some(number) => (number, 1e6),
        None => (text, 1e-6),
    };
    number.parse::<f64>().ok().map(|number| number * scale)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{points, read};

    #[test]
    fn reads_sockets() {
        // Output of iproute2 6.1, shortened.
        let found = read(
            "1795244126.5\n\
             tcp   ESTAB 0  96736  10.77.2.1%wlan:49769 10.77.1.2:5201 bbr wscale:10,10 rto:228 rtt:26.621/2.159 cwnd:40 \
             bytes_acked:1302089 send 17405807bps delivery_rate 18047280bps tcp-ulp-mptcp flags:Jjec\n\
             tcp ESTAB 0 0 [fe80::1%eth]:1 [fe80::2]:2 cubic rtt:1/0.5 pacing_rate 1.2Gbps\n\
             mptcp ESTAB 0  0  10.77.1.1:55698 10.77.1.2:5201 subflows:2 token:a1dc00a2 bytes_retrans:7\n",
        );
        let subflow = "10.77.2.1:49769 -> 10.77.1.2:5201";
        assert_eq!(points(&found, subflow, "rtt"), [(1795244126.5, 26.621)]);
        assert_eq!(points(&found, subflow, "cwnd"), [(1795244126.5, 40.0)]);
        assert_eq!(points(&found, subflow, "delivery_rate"), [(1795244126.5, 18.04728)]);
        assert_eq!(points(&found, "[fe80::1]:1 -> [fe80::2]:2", "pacing_rate"), [(1795244126.5, 1200.0)]);
        let connection = "connection 10.77.1.1:55698 -> 10.77.1.2:5201";
        assert_eq!(points(&found, connection, "bytes_retrans"), [(1795244126.5, 7.0)]);
    }
}
