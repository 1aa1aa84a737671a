//! The kernel's counters of this network namespace (`/proc/net/netstat` and `/proc/net/snmp`), with the names of
//! `nstat`: `TcpRetransSegs`, `TcpExtTCPTimeouts`, `MPTcpExtMPJoinSynRx`.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// All counters since the namespace was created, by name. Some, such as `MPTcpExtMPCurrEstab`, are gauges.
///
/// # Errors
/// `/proc` cannot be read.
pub fn counters() -> io::Result<BTreeMap<String, i64>> {
    let mut found = BTreeMap::new();
    for file in ["/proc/thread-self/net/netstat", "/proc/thread-self/net/snmp"] {
        let text = fs::read_to_string(file).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot read the kernel's counters from {file}: {error}"))
        })?;
        found.extend(parse(&text));
    }
    Ok(found)
}

/// Parses pairs of lines: `Group: name name ...` and `Group: value value ...`. Ignores other lines.
fn parse(text: &str) -> impl Iterator<Item = (String, i64)> {
    let mut lines = text.lines();
    std::iter::from_fn(move || Some((lines.next()?, lines.next()?)))
        .filter_map(|(names, values)| {
            let ((group, names), (same, values)) = (names.split_once(':')?, values.split_once(':')?);
            (group == same).then(|| (group, names.split_whitespace().zip(values.split_whitespace())))
        })
        .flat_map(|(group, pairs)| {
            pairs.filter_map(move |(name, value)| Some((format!("{group}{name}"), value.parse().ok()?)))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_pairs_of_lines() {
        let text = "Tcp: RtoMin MaxConn\nTcp: 200 -1\nMPTcpExt: MPJoinSynRx\nMPTcpExt: 3\n";
        let found: BTreeMap<_, _> = parse(text).collect();
        let expected = [("MPTcpExtMPJoinSynRx", 3), ("TcpMaxConn", -1), ("TcpRtoMin", 200)];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn kernel_has_tcp_counters() {
        assert!(counters().expect("counters are readable").contains_key("TcpRetransSegs"));
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text: String) {
            let _ = parse(&text).count();
        }
    }
}
