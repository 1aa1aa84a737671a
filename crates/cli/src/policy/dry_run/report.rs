//! Prints the result of each packet, and totals.

use std::io::Write as _;

use plait_policy::Hook;
use plait_policy::engine::{ChainMatch, DryRun, TestRun, Verdict};
use plait_wire::capture::Record;
use serde::Serialize;
use serde_json::json;

use crate::policy::stats::table;
use crate::policy::trace;
use crate::stdout::{Stdout, json_line};

/// Prints results.
pub(super) struct Report {
    out: Stdout,
    json: bool,
    packets: u64,
    matched: u64,
    changed: u64,
    dropped: u64,
}

/// The result of a packet in `--json`.
#[derive(Serialize)]
struct Line<'a> {
    number: u64,
    time: f64,
    hook: Hook,
    source: Option<String>,
    destination: Option<String>,
    kinds: Vec<&'static str>,
    matched: &'a [ChainMatch],
    verdict: Verdict,
    redirected_to: Option<&'a str>,
    changed: bool,
    changes: &'a [Change],
}

/// A range of modified bytes.
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

    /// The number of packets so far.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn packet(&mut self, record: &Record<'_>, hook: Hook, run: &TestRun) -> anyhow::Result<()> {
        let changes = changes(record.data, &run.bytes);
        self.packets += 1;
        self.matched += u64::from(!run.chains.is_empty());
        self.changed += u64::from(!changes.is_empty());
        self.dropped += u64::from(run.verdict == Verdict::Drop);
        let segment = record.segment().ok();
        let line = Line {
            number: self.packets,
            time: record.time.0 as f64 / 1e9,
            hook,
            source: segment.map(|segment| segment.source.to_string()),
            destination: segment.map(|segment| segment.destination.to_string()),
            kinds: run.kinds.iter().map(|kind| kind.name()).collect(),
            matched: &run.chains,
            verdict: run.verdict,
            redirected_to: run.redirected_to.as_deref(),
            changed: !changes.is_empty(),
            changes: &changes,
        };
        if self.json {
            writeln!(self.out, "{}", json_line(&line)?)?;
        } else if !run.chains.is_empty() {
            writeln!(self.out, "{}", text(&line))?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, dry_run: &DryRun) -> anyhow::Result<()> {
        let Report { packets, matched, changed, dropped, .. } = self;
        let statistics = dry_run.statistics()?;
        if self.json {
            let chains: Vec<_> = statistics.policies.iter().flat_map(|policy| &policy.chains).collect();
            let document = json!({
                "packets": packets,
                "matched": matched,
                "changed": changed,
                "dropped": dropped,
                "chains": chains,
                "skipped": statistics.skipped,
                "subflows": dry_run.flows()?,
            });
            writeln!(self.out, "{}", json_line(&document)?)?;
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
    let matched: Vec<_> = line.matched.iter().map(trace::chain_name).collect();
    let endpoints = match (&line.source, &line.destination) {
        (Some(source), Some(destination)) => format!("{source} > {destination}"),
        _ => "not TCP".into(),
    };
    let verdict = match line.redirected_to {
        Some(interface) => format!("redirect to {interface}"),
        None => trace::verdict_name(line.verdict).into(),
    };
    let changes: Vec<_> =
        line.changes.iter().map(|Change { at, from, to }| format!("{at}: {from} -> {to}")).collect();
    let changes = if changes.is_empty() { String::new() } else { format!("; bytes {}", changes.join(", ")) };
    format!(
        "{:>6}  {:7}  {endpoints} [{}]  {}: {verdict}{changes}",
        line.number,
        line.hook,
        line.kinds.join(" "),
        matched.join(", ")
    )
}

/// The ranges in which two versions of a packet differ; with different lengths, one range from the first to the last
/// difference.
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
    while let Some(first) = (at..before.len()).find(|&index| before[index] != after[index]) {
        let end = (first..before.len()).find(|&index| before[index] == after[index]).unwrap_or(before.len());
        changes.push(change(first, &before[first..end], &after[first..end]));
        at = end;
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_the_differing_bytes() {
        let change = |at, from: &str, to: &str| Change { at, from: from.into(), to: to.into() };
        assert_eq!(changes(b"abcdef", b"abcdef"), []);
        assert_eq!(changes(b"abcdef", b"aBcdEF"), [change(1, "62", "42"), change(4, "6566", "4546")]);
        assert_eq!(changes(b"abcd", b"abXYcd"), [change(2, "", "5859")]);
        assert_eq!(changes(b"aaa", b"aa"), [change(2, "61", "")]);
        assert_eq!(changes(b"", b"a"), [change(0, "", "61")]);
    }
}
