//! The cost of each kind of selector and of each actor, above the same packets with a policy that matches none.
//!
//! A selector is measured inside `not`: it matches, is evaluated completely, and nothing else happens. An actor is the only
//! one of a chain for any packet; its cost includes what every matching chain costs (case `actor-none`) and the subflow
//! state that it needs. `add_subflow` with an address is left out: it takes the keys of a real connection.

use anyhow::ensure;
use plait_policy::Hook;
use plait_policy::engine::DryRun;

use super::case::{Case, Group, Sample, Turn};
use super::frames::{self, Packet};
use super::trial::{REPEATS, SINGLE, chain, feed, load, load_no_match, time_single};

pub(super) fn cases() -> Vec<Case> {
    let selectors = SELECTORS.iter().map(|(name, hook, select)| Case {
        name: format!("selector-{name}"),
        group: Group::Operators,
        prepare: Box::new(move || prepare_selector(*hook, select)),
    });
    let actors = ACTORS.iter().map(|actor| Case {
        name: format!("actor-{}", actor.name),
        group: Group::Operators,
        prepare: Box::new(move || prepare_actor(actor)),
    });
    selectors.chain(actors).collect()
}

/// Selectors that match data of a joined subflow, at ingress or egress (frames.rs).
const SELECTORS: &[(&str, Hook, &str)] = &[
    ("packet", Hook::Ingress, "packet(data)"),
    ("src", Hook::Ingress, "src(192.0.2.0/24)"),
    ("dst", Hook::Ingress, "dst(198.51.100.9, 443)"),
    ("ip_pair", Hook::Ingress, "ip_pair(192.0.2.7, 198.51.100.9)"),
    (
        "subflow",
        Hook::Ingress,
        "subflow(src = 192.0.2.7, dst = 198.51.100.9, sport = 20000-20100, dport = 443)",
    ),
    ("path", Hook::Ingress, "path(eth0)"),
    ("sequence-data", Hook::Ingress, "sequence(data = 1-1000000)"),
    ("sequence-subflow", Hook::Ingress, "sequence(subflow = 1-1000000)"),
    ("size", Hook::Ingress, "size(0-900GB)"),
    ("connection_size", Hook::Ingress, "connection_size(0-900GB)"),
    ("connection", Hook::Ingress, "connection(0x1a2b3c4d)"),
    ("mark", Hook::Egress, "mark(0x10)"),
    ("cgroup", Hook::Egress, "cgroup(/)"),
];

fn prepare_selector(hook: Hook, select: &'static str) -> anyhow::Result<Turn> {
    let (dry_run, no_match) =
        (load(&chain("no", hook.name(), &format!("not {select}"), "\"drop\""))?, load_no_match()?);
    feed(&dry_run, &[frames::mp_join(0, false), frames::syn_ack(0)])?;
    let packet = frames::data(0, hook);
    Ok(Box::new(move || {
        let ran = dry_run.run(&packet.frame(), REPEATS)?;
        ensure!(
            ran.chains.is_empty() && !ran.kinds.is_empty(),
            "expected {select} to match the benchmark's packet, got no match"
        );
        let reference = no_match.run(&packet.frame(), REPEATS)?;
        Ok(Sample { ns: ran.nanoseconds.into(), reference_ns: reference.nanoseconds.into() })
    }))
}

/// An actor and the packets on which it acts.
struct ActorCase {
    name: &'static str,
    hook: Hook,
    /// In the language of policies.
    actor: &'static str,
    /// Selector and actors of a preceding chain, if the actor needs one.
    before: Option<(&'static str, &'static str)>,
    packets: fn() -> Vec<Packet>,
    /// The indices of the packets on which it acts.
    acts_on: &'static [usize],
}

const ACTORS: &[ActorCase] = &[
    ActorCase { actor: "", ..ActorCase::at_ingress("none", data) },
    ActorCase { actor: "\"drop\"", ..ActorCase::at_ingress("drop", data) },
    ActorCase {
        actor: "\"record\"",
        acts_on: &[0, 1, 2, 3],
        ..ActorCase::at_ingress("record", frames::new_data)
    },
    ActorCase {
        actor: "{ rate_limit = { window = \"32kB\" } }",
        ..ActorCase::at_ingress("rate_limit-window", data)
    },
    ActorCase {
        actor: "{ rate_limit = { rate = \"4mbit\" } }",
        acts_on: &[0, 1, 2, 3],
        ..ActorCase::at_ingress("rate_limit-rate", frames::new_acknowledgments)
    },
    ActorCase {
        actor: "\"set_backup\"",
        acts_on: &[1, 3],
        ..ActorCase::at_ingress("set_backup", acknowledged)
    },
    ActorCase {
        actor: "\"clear_backup\"",
        acts_on: &[1, 3],
        ..ActorCase::at_ingress("clear_backup", || restarted(|of| frames::mp_join(of, true), acknowledgment))
    },
    ActorCase {
        actor: "\"block_subflow\"",
        acts_on: &[0, 1],
        ..ActorCase::at_ingress("block_subflow", || vec![frames::add_addr(0), frames::add_addr(1)])
    },
    ActorCase {
        actor: "\"add_subflow\"",
        before: Some(("packet(add_addr)", "\"block_subflow\"")),
        acts_on: &[1],
        ..ActorCase::at_ingress("add_subflow-withheld", || vec![frames::add_addr(0), acknowledgment()])
    },
    ActorCase { actor: "\"deny_join\"", ..ActorCase::at_ingress("deny_join-drop", join) },
    ActorCase { actor: "{ deny_join = \"reset\" }", ..ActorCase::at_ingress("deny_join-reset", join) },
    ActorCase {
        actor: "\"fall_back\"",
        ..ActorCase::at_ingress("fall_back", || vec![frames::mp_capable(0)])
    },
    ActorCase {
        actor: "\"capable_flag\"",
        ..ActorCase::at_ingress("capable_flag", || vec![frames::mp_capable_with_flag_d()])
    },
    ActorCase {
        actor: "\"get_connection\"",
        acts_on: &[1, 3],
        ..ActorCase::at_ingress("get_connection", || restarted(frames::mp_capable, frames::handshake_ack))
    },
    ActorCase { actor: "\"get_subflow\"", ..ActorCase::at_ingress("get_subflow", join) },
    ActorCase { actor: "", ..ActorCase::at_egress("none-egress", data_out) },
    ActorCase { actor: "{ redirect = \"eth1\" }", ..ActorCase::at_egress("redirect", data_out) },
    ActorCase { actor: "{ mark = 0x20 }", ..ActorCase::at_egress("mark", data_out) },
    ActorCase { actor: "{ pace = \"4mbit\" }", ..ActorCase::at_egress("pace", data_out) },
    ActorCase {
        actor: "\"set_backup\"",
        acts_on: &[1, 3],
        ..ActorCase::at_egress("set_backup-egress", || {
            restarted(frames::mp_capable, || frames::acknowledgment(Hook::Egress))
        })
    },
];

impl ActorCase {
    /// An actor that acts on the first packet, at ingress.
    const fn at_ingress(name: &'static str, packets: fn() -> Vec<Packet>) -> ActorCase {
        ActorCase { name, hook: Hook::Ingress, actor: "", before: None, packets, acts_on: &[0] }
    }

    const fn at_egress(name: &'static str, packets: fn() -> Vec<Packet>) -> ActorCase {
        ActorCase { hook: Hook::Egress, ..ActorCase::at_ingress(name, packets) }
    }
}

fn data() -> Vec<Packet> {
    vec![frames::data(0, Hook::Ingress)]
}

fn data_out() -> Vec<Packet> {
    vec![frames::data(0, Hook::Egress)]
}

fn join() -> Vec<Packet> {
    vec![frames::mp_join(0, false)]
}

fn acknowledgment() -> Packet {
    frames::acknowledgment(Hook::Ingress)
}

fn acknowledged() -> Vec<Packet> {
    restarted(frames::mp_capable, acknowledgment)
}

/// Restarts the subflow before each packet that counts, so that an actor that acts once per subflow acts again.
fn restarted(start: fn(u32) -> Packet, then: fn() -> Packet) -> Vec<Packet> {
    vec![start(0), then(), start(1), then()]
}

fn prepare_actor(actor: &'static ActorCase) -> anyhow::Result<Turn> {
    let hook = actor.hook.name();
    let before = actor.before.map(|(select, actors)| chain("before", hook, select, actors));
    let chains = before.unwrap_or_default() + &chain("chain", hook, "any", actor.actor);
    let (dry_run, no_match, packets) = (load(&chains)?, load_no_match()?, (actor.packets)());
    feed(&dry_run, &[frames::mp_join(0, false), frames::syn_ack(0)])?;
    Ok(Box::new(move || {
        let before = hits(&dry_run)?;
        let ns = time_single(&dry_run, &packets, actor.acts_on)?;
        let (found, rounds) = (hits(&dry_run)? - before, u64::from(SINGLE) / actor.acts_on.len() as u64);
        let expected = rounds * actor.acts_on.len() as u64;
        ensure!(found == expected, "expected the actor to act on {expected} packets, got {found}");
        Ok(Sample { ns, reference_ns: time_single(&no_match, &packets, actor.acts_on)? })
    }))
}

/// Packets on which the actor of the last chain acted; without an actor, those that matched.
fn hits(dry_run: &DryRun) -> anyhow::Result<u64> {
    let statistics = dry_run.statistics()?;
    let chain = statistics.policies.iter().flat_map(|policy| &policy.chains).next_back();
    let chain = chain.ok_or_else(|| anyhow::anyhow!("expected a chain, got none"))?;
    Ok(chain.actors.first().map_or(chain.count.packets, |actor| actor.count.hits))
}
