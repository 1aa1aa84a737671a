//! Test runs of policies: loading chains, and timing packets one at a time.

use std::rc::Rc;

use anyhow::Context as _;
use plait_policy::Policy;
use plait_policy::engine::{DryRun, TestPacket};

use super::frames::Packet;

/// Repetitions of a packet in a turn, in a row.
pub(super) const REPEATS: u32 = 1_000_000;
/// Packets that count in a turn, each run once at a time.
pub(super) const SINGLE: u32 = 100_000;

/// Loads chains.
pub(super) fn load(chains: &str) -> anyhow::Result<Rc<DryRun>> {
    let text = format!("name = \"bench\"\ninterfaces = [\"*\"]\n{chains}");
    let policy = Policy::parse(&text, "bench").context("the policy of this benchmark")?;
    Ok(Rc::new(DryRun::new(&[policy], None)?))
}

/// Loads chains that match no packet of the groups `operators` and `subflows`.
pub(super) fn load_no_match() -> anyhow::Result<Rc<DryRun>> {
    let other = |hook| chain(hook, hook, "packet(mp_fail)", "\"drop\"");
    load(&(other("ingress") + &other("egress")))
}

/// A chain in the language of policies.
pub(super) fn chain(name: &str, hook: &str, select: &str, actors: &str) -> String {
    format!("[[chains]]\nname = \"{name}\"\nhook = \"{hook}\"\nselect = \"{select}\"\nactors = [{actors}]\n")
}

/// Runs packets once, so that the policy learns of their subflows.
pub(super) fn feed(dry_run: &DryRun, packets: &[Packet]) -> anyhow::Result<()> {
    dry_run.durations(&frames_of(packets), 1)?;
    Ok(())
}

/// The time per packet of those at the indices `counting`, which run one at a time and in turn with the others: the mean of
/// the middle half.
pub(super) fn time_single(dry_run: &DryRun, packets: &[Packet], counting: &[usize]) -> anyhow::Result<f64> {
    let rounds = (SINGLE / counting.len() as u32).max(1);
    let durations = dry_run.durations(&frames_of(packets), rounds)?;
    let counts = |index: usize| counting.contains(&(index % packets.len()));
    let counted = durations.into_iter().enumerate().filter(|(index, _)| counts(*index));
    Ok(middle_mean(counted.map(|(_, nanoseconds)| nanoseconds).collect()))
}

/// The mean of the middle half of times, of which there is at least one.
pub(super) fn middle_mean(mut times: Vec<u32>) -> f64 {
    times.sort_unstable();
    let quarter = times.len() / 4;
    let middle = &times[quarter..times.len() - quarter];
    middle.iter().copied().map(f64::from).sum::<f64>() / middle.len() as f64
}

fn frames_of(packets: &[Packet]) -> Vec<TestPacket<'_>> {
    packets.iter().map(Packet::frame).collect()
}
