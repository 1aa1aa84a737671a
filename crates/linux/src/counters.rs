//! The kernel's counters of this network namespace (`/proc/net/netstat` and `/proc/net/snmp`), named as `nstat`
//! names them: `TcpRetransSegs`, `TcpExtTCPTimeouts`, `MPTcpExtMPJoinSynRx`.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Every counter since the namespace was created, by name. Some, such as `MPTcpExtMPCurrEstab`, are gauges.
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

/// Lines come in pairs: `Group: name name ...` and `Group: value value ...`. Other lines are ignored.
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
    fn pairs_of_lines_are_names_and_values() {
        let text = "Tcp: RtoMin MaxConn\nTcp: 200 -1\nMPTcpExt: MPJoinSynRx\nMPTcpExt: 3\n";
        let found: BTreeMap<_, _> = parse(text).collect();
        let expected = [("MPTcpExtMPJoinSynRx", 3), ("TcpMaxConn", -1), ("TcpRtoMin", 200)];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn this_kernel_has_those_of_tcp() {
        assert!(counters().expect("the counters").contains_key("TcpRetransSegs"));
    }

    proptest! {
        #[test]
        fn nothing_panics(text: String) {
            let _ = parse(&text).count();
        }
    }
}
