//! The cost of chains when packets of many subflows alternate, so that the state of a subflow has left the processor's
//! caches when its next packet arrives.
//!
//! What lies between two packets of a subflow is mostly the payload of the others' packets, which a test run copies. Frames
//! that end after their headers show how much of the cost is waiting for memory, and how much is work.

use std::time::Instant;

use anyhow::ensure;
use plait_policy::Hook;
use plait_policy::engine::DryRun;

use super::case::{Case, Group, Sample, Turn};
use super::memory::Cycle;
use super::trial::{SINGLE, load, load_no_match, time_single};
use super::{cost, frames};

const LENGTHS: [usize; 3] = [2, 4, 8];
/// Lines of the cache that a packet needs of its subflow: the bucket of the hash table, and of the entry the key's first part,
/// the rest of the key with what both directions share, and two of the direction, as the packet is a retransmission.
const LINES: u32 = 5;
const SUBFLOWS: [u16; 5] = [1, 10, 100, 1000, 10_000];

/// The chains of group `cost`, each with packets of several numbers of subflows, whole and without their payload.
pub(super) fn cases() -> Vec<Case> {
    let combinations = LENGTHS.into_iter().flat_map(|length| SUBFLOWS.map(|subflows| (length, subflows)));
    let cases = combinations.flat_map(|(length, subflows)| {
        [("", true), ("-headers", false)].map(|(ending, is_whole)| Case {
            name: format!("chain-{length}-flows-{subflows}{ending}"),
            group: Group::Subflows,
            prepare: Box::new(move || prepare(length, subflows, is_whole)),
        })
    });
    cases.collect()
}

fn prepare(length: usize, subflows: u16, is_whole: bool) -> anyhow::Result<Turn> {
    let (dry_run, no_match) = (load(&cost::chain(length))?, load_no_match()?);
    cost::register_subflows(&dry_run, subflows)?;
    let packet = |turn| {
        let packet = frames::data(in_turn(turn, subflows), Hook::Ingress);
        if is_whole { packet } else { packet.without_payload() }
    };
    let packets: Vec<_> = (0..subflows).map(packet).collect();
    let all: Vec<_> = (0..packets.len()).collect();
    let memory = Cycle::new(u32::from(subflows) * LINES);
    Ok(Box::new(move || {
        let before = matched(&dry_run)?;
        let started = Instant::now();
        let ns = time_single(&dry_run, &packets, &all)?;
        let interval = started.elapsed() / SINGLE;
        let matched = matched(&dry_run)? - before;
        ensure!(matched >= u64::from(SINGLE), "expected all packets to match, got {matched}");
        let memory_ns = Some(memory.read_ns(LINES, interval));
        Ok(Sample { ns, reference_ns: time_single(&no_match, &packets, &all)?, memory_ns })
    }))
}

/// The subflow whose packet comes at this turn. Not in the order in which their records were created, which is that of memory.
fn in_turn(turn: u16, subflows: u16) -> u16 {
    /// Prime, and no divisor of a number of subflows: each has one turn.
    const STEP: u32 = 7919;
    (u32::from(turn) * STEP % u32::from(subflows)) as u16
}

fn matched(dry_run: &DryRun) -> anyhow::Result<u64> {
    let statistics = dry_run.statistics()?;
    Ok(statistics.policies.iter().flat_map(|policy| &policy.chains).map(|chain| chain.count.packets).sum())
}
