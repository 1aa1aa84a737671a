//! What chains cost where packets of many subflows take turns, so that what is remembered of a subflow has left the
//! processor's caches when its next packet comes.

use anyhow::ensure;
use plait_policy::Hook;

use super::{Case, Group, Took, Turn, cost, frames, no_match, singly, trial};

const LENGTHS: [usize; 3] = [2, 4, 8];
const SUBFLOWS: [u16; 5] = [1, 10, 100, 1000, 10_000];

/// The chains of the cost, each with packets of some numbers of subflows.
pub(super) fn cases() -> Vec<Case> {
    let each = LENGTHS.into_iter().flat_map(|length| SUBFLOWS.map(|subflows| (length, subflows)));
    let case = |(length, subflows)| Case {
        name: format!("chain-{length}-flows-{subflows}"),
        group: Group::Subflows,
        begin: Box::new(move || begin(length, subflows)),
    };
    each.map(case).collect()
}

fn begin(length: usize, subflows: u16) -> anyhow::Result<Turn> {
    let (trial, no_match) = (trial(&cost::chain(length))?, no_match()?);
    cost::remember(&trial, subflows)?;
    let packets: Vec<_> = (0..subflows).map(|subflow| frames::data(subflow, Hook::Ingress)).collect();
    let all: Vec<_> = (0..packets.len()).collect();
    Ok(Box::new(move || {
        let before = matched(&trial)?;
        let ns = singly(&trial, &packets, &all)?;
        let matched = matched(&trial)? - before;
        ensure!(matched >= u64::from(super::SINGLE), "expected all packets to match, found {matched}");
        Ok(Took { ns, reference: singly(&no_match, &packets, &all)? })
    }))
}

fn matched(trial: &plait_policy::engine::Trial) -> anyhow::Result<u64> {
    let statistics = trial.statistics()?;
    Ok(statistics.policies.iter().flat_map(|policy| &policy.chains).map(|chain| chain.count.packets).sum())
}
