//! Kernel counters, as nstat prints them: those of MPTCP and of TCP retransmissions.

use serde_json::Value;

use super::Collector;

pub(super) const SOURCE: &str = "nstat";

/// `nstat -asz --json`.
pub(super) fn add_json(time: f64, document: &Value, collector: &mut Collector) {
    for (name, value) in document["kernel"].as_object().into_iter().flatten() {
        if let Some(value) = value.as_f64() {
            counter(time, name, value, collector);
        }
    }
}

/// A line of `nstat -asz`: a name, a value, a rate.
pub(super) fn add_text(time: f64, line: &str, collector: &mut Collector) {
    let mut words = line.split_whitespace();
    if let (Some(name), Some(Ok(value))) = (words.next(), words.next().map(str::parse)) {
        counter(time, name, value, collector);
    }
}

fn counter(time: f64, name: &str, value: f64, collector: &mut Collector) {
    if name.starts_with("MPTcp") || ["TcpRetransSegs", "TcpExtTCPTimeouts"].contains(&name) {
        collector.add(SOURCE, "host", name, "", (time, value));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{points, read};

    #[test]
    fn keeps_counters_that_changed() {
        let text = "100.5\n#kernel\nIpInReceives 7 0.0\nMPTcpExtMPTCPRetrans  1  0.0\nMPTcpExtAddAddr 1 0.0\n\
                    101.5\nMPTcpExtMPTCPRetrans  3  0.0\nMPTcpExtAddAddr 1 0.0\n";
        let found = read(text);
        assert_eq!(points(&found, "host", "MPTcpExtMPTCPRetrans"), [(100.5, 1.0), (101.5, 3.0)]);
        assert_eq!(found.len(), 1);
        let json = "100.5\n{\"kernel\":{\"MPTcpExtMPTCPRetrans\":1,\"MPTcpExtAddAddr\":1}}\n\
                    101.5\n{\"kernel\":{\"MPTcpExtMPTCPRetrans\":3,\"MPTcpExtAddAddr\":1}}\n";
        assert_eq!(read(json), found);
    }
}
