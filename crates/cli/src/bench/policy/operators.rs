//! What each kind of selector, and each actor, costs by itself: above the same packets with a policy that matches none.
//!
//! A selector is asked for `not`: it holds, all of it is looked at, and nothing else happens. An actor stands alone in a
//! chain for any packet; so its cost has what every chain that matches costs in it (the case `actor-none`), and what must
//! be remembered of subflows for it. `add_subflow` with an address is not here: it takes the keys of a real connection.

use anyhow::ensure;
use plait_policy::Hook;
use plait_policy::engine::Trial;

use super::frames::{self, Passing};
use super::{Case, Group, REPEATS, Took, Turn, chain, no_match, show, singly, trial};

pub(super) fn cases() -> Vec<Case> {
    let selectors = SELECTORS.iter().map(|(name, hook, select)| Case {
        name: format!("selector-{name}"),
        group: Group::Operators,
        begin: Box::new(move || selector(*hook, select)),
    });
    let actors = ACTORS.iter().map(|actor| Case {
        name: format!("actor-{}", actor.name),
        group: Group::Operators,
        begin: Box::new(move || acting(actor)),
    });
    selectors.chain(actors).collect()
}

/// What holds for data of a subflow that has joined, as it comes in or goes out (frames.rs).
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

fn selector(hook: Hook, select: &'static str) -> anyhow::Result<Turn> {
    let (trial, no_match) =
        (trial(&chain("no", hook.name(), &format!("not {select}"), "\"drop\""))?, no_match()?);
    show(&trial, &[frames::join(0, false), frames::answer(0)])?;
    let packet = frames::data(0, hook);
    Ok(Box::new(move || {
        let ran = trial.run(&packet.frame(), REPEATS)?;
        ensure!(
            ran.chains.is_empty() && !ran.kinds.is_empty(),
            "expected {select} to hold for the packet of this benchmark, found that it does not"
        );
        let reference = no_match.run(&packet.frame(), REPEATS)?;
        Ok(Took { ns: ran.nanoseconds.into(), reference: reference.nanoseconds.into() })
    }))
}

/// An actor and the packets with which it does what it is for.
struct Acting {
    name: &'static str,
    hook: Hook,
    /// As in a policy.
    actor: &'static str,
    /// A chain before, where the actor needs one.
    before: Option<(&'static str, &'static str)>,
    packets: fn() -> Vec<Passing>,
    /// The places of those with which it acts.
    acts_on: &'static [usize],
}

const ACTORS: &[Acting] = &[
    Acting { actor: "", ..Acting::on("none", data) },
    Acting { actor: "\"drop\"", ..Acting::on("drop", data) },
    Acting { actor: "\"record\"", acts_on: &[0, 1, 2, 3], ..Acting::on("record", frames::new_data) },
    Acting { actor: "{ rate_limit = { window = \"32kB\" } }", ..Acting::on("rate_limit-window", data) },
    Acting {
        actor: "{ rate_limit = { rate = \"4mbit\" } }",
        acts_on: &[0, 1, 2, 3],
        ..Acting::on("rate_limit-rate", frames::new_acknowledgments)
    },
    Acting { actor: "\"set_backup\"", acts_on: &[1, 3], ..Acting::on("set_backup", acknowledged) },
    Acting {
        actor: "\"clear_backup\"",
        acts_on: &[1, 3],
        ..Acting::on("clear_backup", || begun_twice(|of| frames::join(of, true), acknowledgment))
    },
    Acting {
        actor: "\"block_subflow\"",
        acts_on: &[0, 1],
        ..Acting::on("block_subflow", || vec![frames::announcement(0), frames::announcement(1)])
    },
    Acting {
        actor: "\"add_subflow\"",
        before: Some(("packet(add_addr)", "\"block_subflow\"")),
        acts_on: &[1],
        ..Acting::on("add_subflow-withheld", || vec![frames::announcement(0), acknowledgment()])
    },
    Acting { actor: "\"deny_join\"", ..Acting::on("deny_join-drop", join) },
    Acting { actor: "{ deny_join = \"reset\" }", ..Acting::on("deny_join-reset", join) },
    Acting { actor: "\"fall_back\"", ..Acting::on("fall_back", || vec![frames::beginning(0)]) },
    Acting {
        actor: "\"capable_flag\"",
        ..Acting::on("capable_flag", || vec![frames::beginning_with_flag()])
    },
    Acting {
        actor: "\"get_connection\"",
        acts_on: &[1, 3],
        ..Acting::on("get_connection", || begun_twice(frames::beginning, frames::keys))
    },
    Acting { actor: "\"get_subflow\"", ..Acting::on("get_subflow", join) },
    Acting { actor: "", ..Acting::at_egress("none-egress", data_out) },
    Acting { actor: "{ redirect = \"eth1\" }", ..Acting::at_egress("redirect", data_out) },
    Acting { actor: "{ mark = 0x20 }", ..Acting::at_egress("mark", data_out) },
    Acting { actor: "{ pace = \"4mbit\" }", ..Acting::at_egress("pace", data_out) },
    Acting {
        actor: "\"set_backup\"",
        acts_on: &[1, 3],
        ..Acting::at_egress("set_backup-egress", || {
            begun_twice(frames::beginning, || frames::acknowledgment(Hook::Egress))
        })
    },
];

impl Acting {
    /// On the first packet, which comes in.
    const fn on(name: &'static str, packets: fn() -> Vec<Passing>) -> Acting {
        Acting { name, hook: Hook::Ingress, actor: "", before: None, packets, acts_on: &[0] }
    }

    const fn at_egress(name: &'static str, packets: fn() -> Vec<Passing>) -> Acting {
        Acting { hook: Hook::Egress, ..Acting::on(name, packets) }
    }
}

fn data() -> Vec<Passing> {
    vec![frames::data(0, Hook::Ingress)]
}

fn data_out() -> Vec<Passing> {
    vec![frames::data(0, Hook::Egress)]
}

fn join() -> Vec<Passing> {
    vec![frames::join(0, false)]
}

fn acknowledgment() -> Passing {
    frames::acknowledgment(Hook::Ingress)
}

fn acknowledged() -> Vec<Passing> {
    begun_twice(frames::beginning, acknowledgment)
}

/// A subflow that begins anew before each packet that counts, so that what is done once for each is done again.
fn begun_twice(begin: fn(u32) -> Passing, then: fn() -> Passing) -> Vec<Passing> {
    vec![begin(0), then(), begin(1), then()]
}

fn acting(actor: &'static Acting) -> anyhow::Result<Turn> {
    let hook = actor.hook.name();
    let before = actor.before.map(|(select, actors)| chain("before", hook, select, actors));
    let chains = before.unwrap_or_default() + &chain("chain", hook, "any", actor.actor);
    let (trial, no_match, packets) = (trial(&chains)?, no_match()?, (actor.packets)());
    show(&trial, &[frames::join(0, false), frames::answer(0)])?;
    Ok(Box::new(move || {
        let before = hits(&trial)?;
        let ns = singly(&trial, &packets, actor.acts_on)?;
        let (found, rounds) = (hits(&trial)? - before, u64::from(super::SINGLE) / actor.acts_on.len() as u64);
        let expected = rounds * actor.acts_on.len() as u64;
        ensure!(found == expected, "expected the actor to act on {expected} packets, found {found}");
        Ok(Took { ns, reference: singly(&no_match, &packets, actor.acts_on)? })
    }))
}

/// Packets with which the actor of the last chain did what it is for; without one, those that matched.
fn hits(trial: &Trial) -> anyhow::Result<u64> {
    let statistics = trial.statistics()?;
    let chain = statistics.policies.iter().flat_map(|policy| &policy.chains).next_back();
    let chain = chain.ok_or_else(|| anyhow::anyhow!("expected a chain, found none"))?;
    Ok(chain.actors.first().map_or(chain.count.packets, |actor| actor.count.hits))
}
