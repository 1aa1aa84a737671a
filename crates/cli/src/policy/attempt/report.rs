//! What happened to each packet, and to all of them.

use std::io::Write as _;

use plait_policy::Hook;
use plait_policy::engine::{Matched, Ran, Trial, Verdict};
use plait_wire::capture::Record;
use serde::Serialize;
use serde_json::json;

use crate::policy::stats::table;
use crate::policy::trace;
use crate::stdout::Stdout;

/// Prints packet by packet.
pub(super) struct Report {
    out: Stdout,
    json: bool,
    packets: u64,
    matched: u64,
    changed: u64,
    dropped: u64,
}

/// A packet, as `--json` has it.
#[derive(Serialize)]
struct Line<'a> {
    number: u64,
    time: f64,
    hook: Hook,
    source: Option<String>,
    destination: Option<String>,
    kinds: Vec<&'static str>,
    matched: &'a [Matched],
    verdict: Verdict,
    redirected_to: Option<&'a str>,
    changed: bool,
    changes: &'a [Change],
}

/// Bytes of a packet that became others.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Change {
    at: usize,
    from: String,
    to: String,
}

impl Report {
    pub(super) fn new(json: bool) -> Report {
        Report { out: Stdout::new(), json, packets: 0, matched: 0, changed: 0, dropped: 0 }
    }

    /// Those that were reported.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn packet(&mut self, record: &Record<'_>, hook: Hook, ran: &Ran) -> anyhow::Result<()> {
        let changes = changes(record.data, &ran.bytes);
        self.packets += 1;
        self.matched += u64::from(!ran.chains.is_empty());
        self.changed += u64::from(!changes.is_empty());
        self.dropped += u64::from(ran.verdict == Verdict::Drop);
        let segment = record.segment().ok();
        let line = Line {
            number: self.packets,
            time: record.time.0 as f64 / 1e9,
            hook,
            source: segment.map(|segment| segment.source.to_string()),
            destination: segment.map(|segment| segment.destination.to_string()),
            kinds: ran.kinds.iter().map(|kind| kind.name()).collect(),
            matched: &ran.chains,
            verdict: ran.verdict,
            redirected_to: ran.redirected_to.as_deref(),
            changed: !changes.is_empty(),
            changes: &changes,
        };
        if self.json {
            writeln!(self.out, "{}", serde_json::to_string(&line)?)?;
        } else if !ran.chains.is_empty() {
            writeln!(self.out, "{}", text(&line))?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, trial: &Trial) -> anyhow::Result<()> {
        let Report { packets, matched, changed, dropped, .. } = self;
        let statistics = trial.statistics()?;
        if self.json {
            let chains: Vec<_> = statistics.policies.iter().flat_map(|policy| &policy.chains).collect();
            let document = json!({
                "packets": packets,
                "matched": matched,
                "changed": changed,
                "dropped": dropped,
                "chains": chains,
                "left_alone": statistics.left_alone,
                "subflows": trial.flows()?,
            });
            writeln!(self.out, "{}", serde_json::to_string(&document)?)?;
        } else {
            let gap = if matched > 0 { "\n" } else { "" };
            writeln!(
                self.out,
                "{gap}{packets} packets: {matched} matched, {changed} changed, {dropped} dropped\n"
            )?;
            write!(self.out, "{}", table(&statistics, false))?;
        }
        Ok(self.out.flush()?)
    }
}

fn text(line: &Line<'_>) -> String {
    let matched: Vec<_> = line.matched.iter().map(trace::name).collect();
    let ends = match (&line.source, &line.destination) {
        (Some(source), Some(destination)) => format!("{source} > {destination}"),
        _ => "not TCP".into(),
    };
    let verdict = match line.redirected_to {
        Some(interface) => format!("redirect to {interface}"),
        None => trace::word(line.verdict).into(),
    };
    let changes: Vec<_> =
        line.changes.iter().map(|Change { at, from, to }| format!("{at}: {from} -> {to}")).collect();
    let changes = if changes.is_empty() { String::new() } else { format!("; bytes {}", changes.join(", ")) };
    format!(
        "{:>6}  {:7}  {ends} [{}]  {}: {verdict}{changes}",
        line.number,
        line.hook,
        line.kinds.join(" "),
        matched.join(", ")
    )
}

/// Where two forms of a packet differ; of different lengths, from the first difference to the last as one.
fn changes(before: &[u8], after: &[u8]) -> Vec<Change> {
    let change =
        |at: usize, from: &[u8], to: &[u8]| Change { at, from: hex::encode(from), to: hex::encode(to) };
    if before.len() != after.len() {
        let shorter = before.len().min(after.len());
        let same = |pairs: &mut dyn Iterator<Item = (&u8, &u8)>| pairs.take_while(|(a, b)| a == b).count();
        let at = same(&mut before.iter().zip(after));
        let end = same(&mut before.iter().rev().zip(after.iter().rev())).min(shorter - at);
        return vec![change(at, &before[at..before.len() - end], &after[at..after.len() - end])];
    }
    let mut changes = Vec::new();
    let mut at = 0;
    while let Some(first) = (at..before.len()).find(|&place| before[place] != after[place]) {
        let end = (first..before.len()).find(|&place| before[place] == after[place]).unwrap_or(before.len());
        changes.push(change(first, &before[first..end], &after[first..end]));
        at = end;
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_the_bytes_that_differ() {
        let change = |at, from: &str, to: &str| Change { at, from: from.into(), to: to.into() };
        assert_eq!(changes(b"abcdef", b"abcdef"), []);
        assert_eq!(changes(b"abcdef", b"aBcdEF"), [change(1, "62", "42"), change(4, "6566", "4546")]);
        assert_eq!(changes(b"abcd", b"abXYcd"), [change(2, "", "5859")]);
        assert_eq!(changes(b"aaa", b"aa"), [change(2, "61", "")]);
        assert_eq!(changes(b"", b"a"), [change(0, "", "61")]);
    }
}
