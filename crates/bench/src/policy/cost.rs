//! The cost of chains of several lengths, also to packets that match none of them.

use std::rc::Rc;

use anyhow::ensure;
use plait_policy::Hook;
use plait_policy::engine::DryRun;
use serde::Serialize;

use super::case::{Case, Group, Measurement, Sample, Turn};
use super::frames::{self, Packet};
use super::trial::{self, REPEATS, feed, load};
use crate::machine::median;

/// Subflows known in case `chain-8-10000-subflows`.
const SUBFLOWS: u16 = 10_000;
/// Those of them whose packets alternate: few, so that each run is long compared with its start.
const ALTERNATING: u16 = 10;

/// A limit of a figure.
#[derive(Serialize)]
pub(super) struct Bound {
    pub(super) name: &'static str,
    pub(super) limit: f64,
    pub(super) measured: f64,
    pub(super) unit: &'static str,
    pub(super) met: bool,
}

/// A chain of N has N/2 selectors joined by `and`, all of which match, and N/2 actors of record, rate_limit, set_backup
/// and get_connection, on a data packet of a known subflow. `rate_limit` finds the window as its first run has left it;
/// changing one takes some 20 ns more, once per packet.
pub(super) fn cases() -> Vec<Case> {
    fn case(name: &str, prepare: fn() -> anyhow::Result<Turn>) -> Case {
        Case { name: name.into(), group: Group::Cost, prepare: Box::new(prepare) }
    }
    vec![
        case("empty", empty),
        case("non-mptcp", || in_a_row(load(&chain(8))?, vec![frames::plain()], false)),
        case("no-match", || in_a_row(load(NO_MATCH)?, vec![data(0)], false)),
        case("chain-2", || in_a_row(load(&chain(2))?, vec![data(0)], true)),
        case("chain-4", || in_a_row(load(&chain(4))?, vec![data(0)], true)),
        case("chain-8", || in_a_row(load(&chain(8))?, vec![data(0)], true)),
        case("chain-8-10000-subflows", many_subflows),
    ]
}

const SELECTORS: [&str; 4] = [
    "packet(data)",
    "subflow(src = 192.0.2.0/24, dport = 443)",
    "sequence(data = 1-1000000)",
    "size(0-900GB)",
];
const ACTORS: [&str; 4] =
    ["\"record\"", "{ rate_limit = { window = \"32kB\" } }", "\"set_backup\"", "\"get_connection\""];

/// A chain of the first `length / 2` selectors and actors.
pub(super) fn chain(length: usize) -> String {
    let select = SELECTORS[..length / 2].join(" and ");
    trial::chain("chain", "ingress", &select, &ACTORS[..length / 2].join(", "))
}

/// Four chains that match none of the packets.
const NO_MATCH: &str = r#"
[[chains]]
name = "elsewhere"
hook = "ingress"
select = "subflow(src = 203.0.113.0/24)"
actors = ["drop"]
[[chains]]
name = "announcements"
hook = "ingress"
select = "packet(add_addr, remove_addr)"
actors = ["drop"]
[[chains]]
name = "joins"
hook = "ingress"
select = "packet(mp_join) and not src(10.0.0.0/8)"
actors = ["drop"]
[[chains]]
name = "far"
hook = "ingress"
select = "sequence(data = 5000000-6000000)"
actors = ["drop"]
"#;

fn data(subflow: u16) -> Packet {
    frames::data(subflow, Hook::Ingress)
}

fn empty() -> anyhow::Result<Turn> {
    let dry_run = load(NO_MATCH)?;
    Ok(Box::new(move || {
        let ns = idle(&dry_run)?;
        Ok(Sample { ns, reference_ns: ns, memory_ns: None })
    }))
}

fn idle(dry_run: &DryRun) -> anyhow::Result<f64> {
    Ok(dry_run.baseline(data(0).frame().bytes, REPEATS)?.into())
}

/// Runs these packets in equal parts, and checks that each matches as expected.
fn in_a_row(dry_run: Rc<DryRun>, packets: Vec<Packet>, matches: bool) -> anyhow::Result<Turn> {
    feed(&dry_run, &frames::handshake(0))?;
    let repeats = REPEATS / packets.len() as u32;
    Ok(Box::new(move || {
        let mut sum = 0.0;
        for packet in &packets {
            let ran = dry_run.run(&packet.frame(), repeats)?;
            ensure!(
                ran.chains.is_empty() != matches,
                "expected the benchmark's packet to match: {matches}, got {}",
                !matches
            );
            sum += f64::from(ran.nanoseconds);
        }
        Ok(Sample { ns: sum / packets.len() as f64, reference_ns: idle(&dry_run)?, memory_ns: None })
    }))
}

fn many_subflows() -> anyhow::Result<Turn> {
    let dry_run = load(&chain(8))?;
    register_subflows(&dry_run, SUBFLOWS)?;
    in_a_row(dry_run, (0..ALTERNATING).map(|number| data(number * (SUBFLOWS / ALTERNATING))).collect(), true)
}

/// Runs the handshakes of the first subflows through a dry_run.
pub(super) fn register_subflows(dry_run: &DryRun, subflows: u16) -> anyhow::Result<()> {
    let handshakes: Vec<_> = (0..subflows).flat_map(frames::handshake).collect();
    feed(dry_run, &handshakes)?;
    let known = dry_run.statistics()?.flows_seen;
    ensure!(known == u64::from(subflows), "expected {subflows} known subflows, got {known}");
    Ok(())
}

/// The bounds of the measured cases.
pub(super) fn bounds(results: &[Measurement]) -> Vec<Bound> {
    let of = |name: &str| results.iter().find(|case| case.case == name);
    let bound = |name, limit, measured: Option<f64>, unit| {
        measured.map(|measured| Bound { name, limit, measured, unit, met: measured <= limit })
    };
    let above_empty = |name| of(name).and_then(|case| case.above_empty_ns);
    let change = of("chain-8").zip(of("chain-8-10000-subflows")).map(|(alone, many)| {
        median(alone.turns.iter().zip(&many.turns).map(|(alone, many)| (many / alone - 1.0) * 100.0))
    });
    let bounds = [
        bound("non-mptcp above empty", 40.0, above_empty("non-mptcp"), "ns"),
        bound("no-match above empty", 100.0, above_empty("no-match"), "ns"),
        bound("chain-8", 400.0, of("chain-8").map(|case| case.ns), "ns"),
        bound("10,000 subflows change chain-8 by", 20.0, change, "%"),
    ];
    bounds.into_iter().flatten().collect()
}
