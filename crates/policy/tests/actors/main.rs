//! Actors in dry runs: how they modify packets, byte by byte.

mod custom;
mod flags;
mod joins;
mod limits;
mod packet;

use plait_policy::Policy;
use plait_policy::engine::DryRun;

/// A policy that applies these actors to all packets of both hooks. `None`, with a message, without root.
fn dry_run(test: &str, actors: &str) -> Option<DryRun> {
    let chain = |hook| format!("[[chains]]\nname = \"{hook}\"\nhook = \"{hook}\"\nactors = [{actors}]\n");
    dry_run_of(test, &format!("interfaces = [\"*\"]\n{}{}", chain("ingress"), chain("egress")))
}

fn dry_run_of(test: &str, text: &str) -> Option<DryRun> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: running programs in the kernel takes root");
        return None;
    }
    let policy = Policy::parse(text, "test").expect("a policy");
    Some(DryRun::new(&[policy], None).expect("a dry_run"))
}

/// Hits and errors of the first actors of both hooks.
fn outcomes(dry_run: &DryRun) -> (u64, u64) {
    let statistics = dry_run.statistics().expect("statistics");
    let chains = statistics.policies.iter().flat_map(|policy| &policy.chains);
    let counts = chains.filter_map(|chain| chain.actors.first()).map(|actor| actor.count);
    counts.fold((0, 0), |(hits, errors), count| (hits + count.hits, errors + count.errors))
}
