//! What chains of some lengths cost, and what they cost packets that they are not for.

use std::rc::Rc;

use anyhow::ensure;
use plait_policy::Hook;
use plait_policy::engine::Trial;
use serde::Serialize;

use super::frames::{self, Passing};
use super::{Case, Group, Measured, REPEATS, Took, Turn, median, show, trial};

/// Subflows that are remembered in one of the cases, and those whose packets take turns: few, so that each run is so long
/// that what it takes to begin one does not count.
const SUBFLOWS: u16 = 10_000;
const TAKING_TURNS: u16 = 10;

/// What a case shall not exceed.
#[derive(Serialize)]
pub(super) struct Bound {
    pub(super) what: &'static str,
    pub(super) most: f64,
    pub(super) found: f64,
    pub(super) unit: &'static str,
    pub(super) met: bool,
}

/// A chain of N has N/2 selectors joined by `and`, all of which hold, and N/2 actors: of record, rate_limit, set_backup
/// and get_connection, on a packet with data of a known subflow. `rate_limit` finds the window as its first run has left
/// it; to change one takes some 20 ns more, once for a packet.
pub(super) fn cases() -> Vec<Case> {
    fn case(name: &str, begin: fn() -> anyhow::Result<Turn>) -> Case {
        Case { name: name.into(), group: Group::Cost, begin: Box::new(begin) }
    }
    vec![
        case("empty", empty),
        case("non-mptcp", || in_a_row(trial(&chain(8))?, vec![frames::plain()], false)),
        case("no-match", || in_a_row(trial(NO_MATCH)?, vec![data(0)], false)),
        case("chain-2", || in_a_row(trial(&chain(2))?, vec![data(0)], true)),
        case("chain-4", || in_a_row(trial(&chain(4))?, vec![data(0)], true)),
        case("chain-8", || in_a_row(trial(&chain(8))?, vec![data(0)], true)),
        case("chain-8-10000-subflows", among_many),
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

/// A chain of the first of the selectors and actors.
pub(super) fn chain(length: usize) -> String {
    let select = SELECTORS[..length / 2].join(" and ");
    super::chain("chain", "ingress", &select, &ACTORS[..length / 2].join(", "))
}

/// Four chains, each for something else.
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

fn data(subflow: u16) -> Passing {
    frames::data(subflow, Hook::Ingress)
}

fn empty() -> anyhow::Result<Turn> {
    let trial = trial(NO_MATCH)?;
    Ok(Box::new(move || {
        let ns = idle(&trial)?;
        Ok(Took { ns, reference: ns })
    }))
}

fn idle(trial: &Trial) -> anyhow::Result<f64> {
    Ok(trial.idle(data(0).frame().bytes, REPEATS)?.into())
}

/// Runs these packets in equal parts; each is checked to match, or not to, as is meant.
fn in_a_row(trial: Rc<Trial>, packets: Vec<Passing>, matches: bool) -> anyhow::Result<Turn> {
    show(&trial, &frames::handshake(0))?;
    let repeats = REPEATS / packets.len() as u32;
    Ok(Box::new(move || {
        let mut sum = 0.0;
        for packet in &packets {
            let ran = trial.run(&packet.frame(), repeats)?;
            ensure!(
                ran.chains.is_empty() != matches,
                "a packet of this benchmark did not match what it was made for"
            );
            sum += f64::from(ran.nanoseconds);
        }
        Ok(Took { ns: sum / packets.len() as f64, reference: idle(&trial)? })
    }))
}

fn among_many() -> anyhow::Result<Turn> {
    let trial = trial(&chain(8))?;
    remember(&trial, SUBFLOWS)?;
    in_a_row(trial, (0..TAKING_TURNS).map(|number| data(number * (SUBFLOWS / TAKING_TURNS))).collect(), true)
}

/// Shows a trial the handshakes of the first subflows.
pub(super) fn remember(trial: &Trial, subflows: u16) -> anyhow::Result<()> {
    let handshakes: Vec<_> = (0..subflows).flat_map(frames::handshake).collect();
    show(trial, &handshakes)?;
    let known = trial.statistics()?.flows_seen;
    ensure!(known == u64::from(subflows), "expected {subflows} subflows to be remembered, found {known}");
    Ok(())
}

/// What there is a bound for, of what was measured.
pub(super) fn bounds(measured: &[Measured]) -> Vec<Bound> {
    let of = |name: &str| measured.iter().find(|case| case.case == name);
    let bound = |what, most, found: Option<f64>, unit| {
        found.map(|found| Bound { what, most, found, unit, met: found <= most })
    };
    let above_empty = |name| of(name).and_then(|case| case.above_empty_ns);
    let more = of("chain-8").zip(of("chain-8-10000-subflows")).map(|(alone, many)| {
        median(alone.turns.iter().zip(&many.turns).map(|(alone, many)| (many / alone - 1.0) * 100.0))
    });
    let bounds = [
        bound("non-mptcp above empty", 40.0, above_empty("non-mptcp"), "ns"),
        bound("no-match above empty", 100.0, above_empty("no-match"), "ns"),
        bound("chain-8", 400.0, of("chain-8").map(|case| case.ns), "ns"),
        bound("10,000 subflows change chain-8 by", 20.0, more, "%"),
    ];
    bounds.into_iter().flatten().collect()
}
