//! The cost of each kind of selector and of each actor, above the same packets with a policy that matches none.
//!
//! A selector is measured inside `not`: it matches, is evaluated completely, and nothing else happens. An actor is the only
//! one of a chain for any packet; its cost includes what every matching chain costs (case `actor-none`) and the subflow
//! state that it needs. `add_subflow` with an address is left out: it takes the keys of a real connection.

use anyhow::ensure;
use plait_policy::Hook::{self, Egress, Ingress};
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
    ("packet", Ingress, "packet(data)"),
    ("src", Ingress, "src(192.0.2.0/24)"),
    ("dst", Ingress, "dst(198.51.100.9, 443)"),
    ("ip_pair", Ingress, "ip_pair(192.0.2.7, 198.51.100.9)"),
    ("subflow", Ingress, "subflow(src = 192.0.2.7, dst = 198.51.100.9, sport = 20000-20100, dport = 443)"),
    ("path", Ingress, "path(eth0)"),
    ("sequence-data", Ingress, "sequence(data = 1-1000000)"),
    ("sequence-subflow", Ingress, "sequence(subflow = 1-1000000)"),
    ("size", Ingress, "size(0-900GB)"),
    ("connection_size", Ingress, "connection_size(0-900GB)"),
    ("connection", Ingress, "connection(0x1a2b3c4d)"),
    ("mark", Egress, "mark(0x10)"),
    ("cgroup", Egress, "cgroup(/)"),
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
        Ok(Sample { ns: ran.nanoseconds.into(), reference_ns: reference.nanoseconds.into(), memory_ns: None })
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
    case("none", Ingress, "", data, &[0]),
    case("drop", Ingress, "\"drop\"", data, &[0]),
    case("record", Ingress, "\"record\"", frames::new_data, &[0, 1, 2, 3]),
    case("rate_limit-window", Ingress, "{ rate_limit = { window = \"32kB\" } }", data, &[0]),
    case(
        "rate_limit-rate",
        Ingress,
        "{ rate_limit = { rate = \"4mbit\" } }",
        frames::new_acknowledgments,
        &[0, 1, 2, 3],
    ),
    case("set_backup", Ingress, "\"set_backup\"", || restarted(frames::mp_capable, acknowledgment), &[1, 3]),
    case(
        "clear_backup",
        Ingress,
        "\"clear_backup\"",
        || restarted(|of| frames::mp_join(of, true), acknowledgment),
        &[1, 3],
    ),
    case("block_subflow", Ingress, "\"block_subflow\"", || [0, 1].map(frames::add_addr).into(), &[0, 1]),
    ActorCase {
        before: Some(("packet(add_addr)", "\"block_subflow\"")),
        ..case(
            "add_subflow-withheld",
            Ingress,
            "\"add_subflow\"",
            || vec![frames::add_addr(0), acknowledgment()],
            &[1],
        )
    },
    case("deny_join-drop", Ingress, "\"deny_join\"", join, &[0]),
    case("deny_join-reset", Ingress, "{ deny_join = \"reset\" }", join, &[0]),
    case("fall_back", Ingress, "\"fall_back\"", || vec![frames::mp_capable(0)], &[0]),
    case("capable_flag", Ingress, "\"capable_flag\"", || vec![frames::mp_capable_with_flag_d()], &[0]),
    case(
        "get_connection",
        Ingress,
        "\"get_connection\"",
        || restarted(frames::mp_capable, frames::handshake_ack),
        &[1, 3],
    ),
    case("get_subflow", Ingress, "\"get_subflow\"", join, &[0]),
    case("none-egress", Egress, "", data_out, &[0]),
    case("redirect", Egress, "{ redirect = \"eth1\" }", data_out, &[0]),
    case("mark", Egress, "{ mark = 0x20 }", data_out, &[0]),
    case("pace", Egress, "{ pace = \"4mbit\" }", data_out, &[0]),
    case(
        "set_backup-egress",
        Egress,
        "\"set_backup\"",
        || restarted(frames::mp_capable, || frames::acknowledgment(Egress)),
        &[1, 3],
    ),
];

const fn case(
    name: &'static str,
    hook: Hook,
    actor: &'static str,
    packets: fn() -> Vec<Packet>,
    acts_on: &'static [usize],
) -> ActorCase {
    ActorCase { name, hook, actor, before: None, packets, acts_on }
}

fn data() -> Vec<Packet> {
    vec![frames::data(0, Ingress)]
}

fn data_out() -> Vec<Packet> {
    vec![frames::data(0, Egress)]
}

fn join() -> Vec<Packet> {
    vec![frames::mp_join(0, false)]
}

fn acknowledgment() -> Packet {
    frames::acknowledgment(Ingress)
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
        let (found, each) = (hits(&dry_run)? - before, actor.acts_on.len() as u64);
        let expected = u64::from(SINGLE) / each * each;
        ensure!(found == expected, "expected the actor to act on {expected} packets, got {found}");
        Ok(Sample { ns, reference_ns: time_single(&no_match, &packets, actor.acts_on)?, memory_ns: None })
    }))
}

/// Packets on which the actor of the last chain acted; without an actor, those that matched.
fn hits(dry_run: &DryRun) -> anyhow::Result<u64> {
    let statistics = dry_run.statistics()?;
    let chain = statistics.policies.iter().flat_map(|policy| &policy.chains).next_back();
    let chain = chain.ok_or_else(|| anyhow::anyhow!("expected a chain, got none"))?;
    Ok(chain.actors.first().map_or(chain.count.packets, |actor| actor.count.hits))
}
