//! Programs of random chains match random packets as a reference evaluator does: as steps, and as instructions in the
//! kernel.

mod kernel;
mod packet;

use std::net::Ipv6Addr;
use std::os::fd::AsFd;

use plait_config::Rate;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};

use self::kernel::{Inside, Kernel};
use self::packet::{LOOPBACK, Packet, VLAN, WLAN0, WWAN0, holds, packet, packets};
use super::steps::{Step, of};
use super::test::Field;
use super::*;
use crate::bindings::{PLAIT_NEEDS_CONNECTION, PLAIT_NEEDS_FLOW, PLAIT_NEEDS_RECORD, PLAIT_NEEDS_TOKEN};
use crate::model::strategies::ingress_selectors;
use crate::model::{Actor, Chain, Interface, Limit};
use crate::model::{PacketKind, Selector};

fn host() -> Host {
    let interface =
        |index, name: &str| HostInterface { index, name: name.into(), loopback: index == LOOPBACK };
    Host {
        interfaces: vec![
            interface(LOOPBACK, "lo"),
            interface(WLAN0, "wlan0"),
            interface(WWAN0, "wwan0"),
            interface(VLAN, "eth0.7"),
        ],
        roles: BTreeMap::from([("wlan0".into(), Role::Trusted), ("wwan0".into(), Role::Untrusted)]),
        cgroups: BTreeMap::new(),
        custom: BTreeMap::from([("urgent".into(), 0), ("mine_2".into(), 23)]),
    }
}

fn chain(select: Selector) -> Chain {
    let interfaces = vec![Interface::All];
    Chain { name: "c".into(), hook: Hook::Ingress, interfaces, priority: 0, select, actors: Vec::new() }
}

fn selecting(text: &str) -> Chain {
    chain(text.parse().expect(text))
}

/// Resolved chains with slots from 100 on.
fn resolved(chains: &[Chain]) -> Vec<Resolved> {
    let with_slot =
        |(slot, chain)| Resolved { slot, ..resolve(chain, &host()).expect("a chain for this host") };
    (100..).zip(chains).map(with_slot).collect()
}

fn chains() -> impl Strategy<Value = Vec<Chain>> {
    let interfaces = select(vec![
        vec![Interface::All],
        vec![Interface::Named("wlan0".into())],
        vec![
            Interface::Role(Role::Trusted),
            Interface::Named("eth0.7".into()),
            Interface::Named("gone".into()),
        ],
    ]);
    let chain = (ingress_selectors(), interfaces, 0..3i32).prop_map(|(select, interfaces, priority)| Chain {
        interfaces,
        priority,
        ..chain(select)
    });
    prop::collection::vec(chain, 1..6)
}

/// The slots of the chains that match, by priority.
fn expected(chains: &[Chain], packet: &Packet) -> Vec<u16> {
    let mut all: Vec<_> = (100..).zip(chains).collect();
    all.sort_by_key(|(_, chain)| chain.priority);
    let matches = |chain: &Chain| {
        let on = chain.interfaces.iter().any(|on| holds(&Selector::Path(on.clone()), packet));
        on && holds(&chain.select, packet)
    };
    all.into_iter().filter(|(_, chain)| matches(chain)).map(|(slot, _)| slot).collect()
}

fn steps_of(chains: &[Chain]) -> Vec<Step> {
    let mut resolved = resolved(chains);
    resolved.sort_by_key(|chain| chain.priority);
    of(resolved.iter().map(|chain| (&chain.formula, chain.slot))).expect("few tests")
}

/// The slots of matching chains according to the steps.
fn walk(steps: &[Step], record: &[u8]) -> Vec<u16> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(step) = steps.get(at) {
        let next = match *step {
            Step::Ask { test, yes, no } => {
                let Field::Record { offset, bits } = test.field else {
                    panic!("expected a field of the record")
                };
                let bytes = &record[offset..offset + bits as usize / 8];
                let number = match bits {
                    16 => u16::from_ne_bytes(bytes.try_into().expect("2 bytes")).into(),
                    32 => u32::from_ne_bytes(bytes.try_into().expect("4 bytes")).into(),
                    _ => u64::from_ne_bytes(bytes.try_into().expect("8 bytes")),
                };
                if test.holds(number) { yes } else { no }
            }
            Step::Append { slot, next } => {
                found.push(slot);
                next
            }
        };
        assert!(next > at, "steps only lead forward");
        at = next;
    }
    found
}

proptest! {
    #[test]
    fn steps_match_the_reference_evaluator(chains in chains(), packets in prop::collection::vec(packets(), 16)) {
        let steps = steps_of(&chains);
        for packet in &packets {
            prop_assert_eq!(walk(&steps, &packet.record()), expected(&chains, packet), "{:?}", packet);
        }
    }
}

#[test]
fn programs_match_the_reference_evaluator() {
    let Some(kernel) = Kernel::or_skip("programs_match_the_reference_evaluator") else { return };
    let mut runner = TestRunner::new(Config::with_cases(512));
    let cases = (chains(), prop::collection::vec(packets(), 24));
    let result = runner.run(&cases, |(chains, packets)| {
        let program = kernel.load(ProgramKind::Xdp, Hook::Ingress, &resolved(&chains));
        for packet in &packets {
            let (found, verdict) = program.run(&packet.record());
            prop_assert_eq!(found, expected(&chains, packet), "{:?}", packet);
            prop_assert_eq!(verdict, 2, "XDP_PASS");
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn prefixes_of_every_length_match_exactly() {
    let Some(kernel) = Kernel::or_skip("prefixes_of_every_length_match_exactly") else { return };
    let (source, destination) = ("fd00::5555:aaaa:1", "fd00::1");
    let mut packet = packet(source, destination);
    let v6: Ipv6Addr = source.parse().expect("an address");
    for length in 0..=128u8 {
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        let first = Ipv6Addr::from_bits(v6.to_bits() & mask);
        let program = kernel.load_selector(&format!("src({first}/{length})"));
        packet.source = v6.into();
        assert_eq!(program.run(&packet.record()).0, [100], "/{length}");
        if let Some(bit) = 128u32.checked_sub(length.into()) {
            // The last bit of the prefix, and the first after it.
            let other = |bit: u32| 1u128.checked_shl(bit).map(|bit| Ipv6Addr::from_bits(v6.to_bits() ^ bit));
            if let Some(outside) = other(bit) {
                packet.source = outside.into();
                assert_eq!(program.run(&packet.record()).0, [] as [u16; 0], "/{length}");
            }
            if let Some(inside) = bit.checked_sub(1).and_then(other) {
                packet.source = inside.into();
                assert_eq!(program.run(&packet.record()).0, [100], "/{length}");
            }
        }
    }
}

#[test]
fn ipv4_prefixes_do_not_match_ipv6() {
    let Some(kernel) = Kernel::or_skip("ipv4_prefixes_do_not_match_ipv6") else { return };
    let v4 = packet("10.0.0.1", "10.0.0.2").record();
    let v6 = packet("fd00::1", "fd00::2").record();
    let mapped = packet("::ffff:10.0.0.1", "::ffff:10.0.0.2").record();
    for (selector, matches) in [
        ("src(0.0.0.0/0)", [true, false, false]),
        ("src(::/0)", [false, true, true]),
        ("src(::ffff:0.0.0.0/96)", [false, false, true]),
        ("src(10.0.0.0/8)", [true, false, false]),
        ("src(::ffff:10.0.0.1)", [false, false, true]),
    ] {
        let program = kernel.load_selector(selector);
        let found = [&v4, &v6, &mapped].map(|record| !program.run(record).0.is_empty());
        assert_eq!(found, matches, "{selector}");
    }
}

#[test]
fn ranges_are_inclusive_and_wrap() {
    let Some(kernel) = Kernel::or_skip("ranges_are_inclusive_and_wrap") else { return };
    let base = packet("10.0.0.1", "10.0.0.2");
    let mapping = Packet { kinds: vec![PacketKind::Mapping], ..base.clone() };
    let max = u64::MAX;
    for (selector, inside, outside) in [
        ("sequence(data = 18446744073709551615-1)", vec![max, 0, 1], vec![max - 1, 2, 1 << 32]),
        (
            "sequence(data = 4294967295-4294967297)",
            vec![0xffff_ffff, 1 << 32, (1 << 32) + 1],
            vec![0, 1, (1 << 32) + 2],
        ),
        ("sequence(data = 5)", vec![5], vec![4, 6, 5 + (1 << 32)]),
        ("sequence(data = 0-18446744073709551615)", vec![0, max], vec![]),
        ("sequence(data = 1-0)", vec![0, 1, max], vec![]),
    ] {
        let program = kernel.load_selector(selector);
        let run = |number| program.run(&Packet { data_sequence: number, ..mapping.clone() }.record()).0;
        inside.into_iter().for_each(|number| assert_eq!(run(number), [100], "{selector}: {number}"));
        outside.into_iter().for_each(|number| assert!(run(number).is_empty(), "{selector}: {number}"));
        assert!(program.run(&base.record()).0.is_empty(), "{selector} without a mapping");
    }
    for (selector, inside, outside) in [
        (
            "sequence(subflow = 4294967294-1)",
            vec![u32::MAX - 1, u32::MAX, 0, 1],
            vec![2, u32::MAX - 2, 1 << 31],
        ),
        ("sequence(subflow = 1-4294967294)", vec![1, 1 << 31, u32::MAX - 1], vec![0, u32::MAX]),
    ] {
        let program = kernel.load_selector(selector);
        let run = |sequence| program.run(&Packet { sequence, ..base.clone() }.record()).0;
        inside.into_iter().for_each(|number| assert_eq!(run(number), [100], "{selector}: {number}"));
        outside.into_iter().for_each(|number| assert!(run(number).is_empty(), "{selector}: {number}"));
    }
    for (ports, inside, outside) in [
        ("0", vec![0], vec![1, 65535]),
        ("443", vec![443], vec![442, 444]),
        ("1024-65535", vec![1024, 65535], vec![0, 1023]),
        ("0-1023", vec![0, 1023], vec![1024, 65535]),
        ("0-65535", vec![0, 443, 65535], vec![]),
        ("80-443", vec![80, 100, 443], vec![79, 444, 65535]),
    ] {
        let program = kernel.load_selector(&format!("subflow(dport = {ports})"));
        let run = |port| program.run(&Packet { destination_port: port, ..base.clone() }.record()).0;
        inside.into_iter().for_each(|port| assert_eq!(run(port), [100], "{ports}: {port}"));
        outside.into_iter().for_each(|port| assert!(run(port).is_empty(), "{ports}: {port}"));
    }
}

#[test]
fn each_hook_finds_its_chains_and_passes_packets() {
    let Some(kernel) = Kernel::or_skip("each_hook_finds_its_chains_and_passes_packets") else { return };
    let record = Packet { kinds: vec![PacketKind::Data], ..packet("10.0.0.1", "10.0.0.2") }.record();
    for (kind, hook, go_on) in [(ProgramKind::Xdp, Hook::Ingress, 2), (ProgramKind::Tc, Hook::Egress, -1)] {
        let load = |text: &str| kernel.load(kind, hook, &resolved(&[Chain { hook, ..selecting(text) }]));
        assert_eq!(load("packet(data)").run(&record), (vec![100], go_on));
        assert_eq!(load("packet(syn)").run(&record), (Vec::new(), go_on));
        assert_eq!(kernel.load(kind, hook, &[]).run(&record), (Vec::new(), go_on));
    }
}

#[test]
fn mark_and_cgroup_match_at_egress() {
    let test = "mark_and_cgroup_match_at_egress";
    let Some(kernel) = Kernel::or_skip(test) else { return };
    let Some(inside) = Inside::enter() else {
        println!("SKIP {test}: no control groups of version 2 are mounted");
        return;
    };
    let elsewhere = format!("{}-beside", inside.path);
    let below = format!("{}/below", inside.path);
    let cgroups = BTreeMap::from([
        ("/".into(), inside.root),
        (inside.path.clone(), inside.id),
        (elsewhere.clone(), inside.id + 1_000_000),
        (below.clone(), inside.id + 1),
    ]);
    let host = Host { cgroups, ..host() };
    let marked = Packet { mark: 0x110, ..packet("10.0.0.1", "10.0.0.2") }.record();
    for (text, matches) in [
        ("mark(0x110)", true),
        ("mark(0x10/0xff)", true),
        ("mark(0x10)", false),
        ("cgroup(/)", true),
        (&format!("cgroup({})", inside.path), true),
        (&format!("cgroup({elsewhere})"), false),
        (&format!("cgroup({below})"), false),
        (&format!("not cgroup({below}) and cgroup({}) and cgroup(/)", inside.path), true),
        ("cgroup(/not/there)", false),
    ] {
        let chain =
            resolve(&Chain { hook: Hook::Egress, ..selecting(text) }, &host).expect("an egress chain");
        assert_eq!(chain.absent, if text.contains("/not/there") { vec!["/not/there"] } else { vec![] });
        let program = kernel.load(ProgramKind::Tc, Hook::Egress, &[chain]);
        assert_eq!(!program.run(&marked).0.is_empty(), matches, "{text}");
    }
}

#[test]
fn the_verifier_accepts_the_maximum_of_chains() {
    let test = "the_verifier_accepts_the_maximum_of_chains";
    let select = |n: u16| {
        format!(
            "packet(data) and not packet(syn, rst) and src(10.{n}.0.0/16, 1024-65535) and dst(fd00:{n:x}::/48) or \
             sequence(data = {n}-{n}00) and size({n}kB-{}kB) and not connection({n}) or path(wwan0) and urgent",
            n * 2
        )
    };
    let chains: Vec<_> = (1..=PLAIT_MAX_CHAINS as u16).map(|n| selecting(&select(n))).collect();
    let more: Vec<_> = chains.iter().chain(&chains[..1]).cloned().collect();
    let map = std::fs::File::open("/dev/null").expect("a descriptor");
    let refused = match_program(ProgramKind::Xdp, Hook::Ingress, &resolved(&more), map.as_fd());
    assert_eq!(
        refused.expect_err("65 chains"),
        CompileError::TooManyChains { hook: Hook::Ingress, found: 65 }
    );
    let Some(kernel) = Kernel::or_skip(test) else { return };
    let program = kernel.load(ProgramKind::Xdp, Hook::Ingress, &resolved(&chains));
    // The verifier visits each instruction a few times, not once per path.
    let (instructions, verified) = program.verified();
    assert!(verified < 4 * instructions, "{verified} instructions were verified of {instructions}");
    let all = Packet { interface: WWAN0, custom: vec!["urgent"], ..packet("10.0.0.1", "10.0.0.2") };
    assert_eq!(program.run(&all.record()).0, (100..164).collect::<Vec<_>>());
}

#[test]
fn rejects_oversized_selectors() {
    let map = std::fs::File::open("/dev/null").expect("a descriptor");
    let program = |select| {
        let chains = resolved(&[chain(select)]);
        match_program(ProgramKind::Xdp, Hook::Ingress, &chains, map.as_fd())
    };
    // Each is one test of the max instructions.
    let sizes = |count| {
        let size = |n: u64| Selector::Size { from: n << 33, to: Some(n << 35) };
        Selector::Or((1..=count).map(size).collect())
    };
    assert_eq!(program(sizes(8_001)).expect_err("too many tests"), CompileError::TooManyTests { max: 8_000 });
    assert_eq!(program(sizes(5_000)).expect_err("too long"), CompileError::TooLong { max: 32_767 });
    assert!(program(sizes(4_000)).is_ok());
    let deep = (0..200).fold(Selector::Any, |inner, _| Selector::Not(Box::new(inner)));
    assert_eq!(resolve(&chain(deep), &host()).expect_err("too deep"), CompileError::TooDeep { max: 128 });
}

#[test]
fn skips_tests_with_known_results() {
    let asked = |texts: &[&str]| {
        let chains: Vec<_> = texts.iter().map(|text| selecting(text)).collect();
        let steps = steps_of(&chains);
        steps.iter().filter(|step| matches!(step, Step::Ask { .. })).count()
    };
    // One test is whether the interface is the loopback.
    assert_eq!(asked(&["any"]), 1);
    assert_eq!(asked(&["any", "any"]), 1);
    assert_eq!(asked(&["packet(data) and packet(dss)", "packet(data) and packet(syn)"]), 4);
    assert_eq!(asked(&["packet(data)", "not packet(data)"]), 2);
    assert_eq!(asked(&["path(wlan0)", "path(wwan0)", "path(wlan0) and path(wwan0)"]), 3);
    assert_eq!(asked(&["not any", "any and not any", "src(10.0.0.0/8) and not any"]), 0);
    assert_eq!(asked(&["subflow(src = 0.0.0.0/0, sport = 0-65535) or not packet(ipv6)"]), 2);
}

#[test]
fn reports_what_chains_need() {
    let needs = |text: &str, actors: Vec<Actor>| {
        let chain = Chain { actors, ..selecting(text) };
        resolve(&chain, &host()).expect("a chain").needs
    };
    assert_eq!(needs("packet(data) and src(10.0.0.0/8)", vec![Actor::Drop]), 0);
    assert_eq!(needs("size(1kB-)", vec![]), PLAIT_NEEDS_FLOW);
    assert_eq!(needs("packet(data)", vec![Actor::Redirect("wlan0".into())]), PLAIT_NEEDS_FLOW);
    assert_eq!(needs("packet(mptcp)", vec![]), PLAIT_NEEDS_FLOW);
    assert_eq!(needs("connection(1)", vec![]), PLAIT_NEEDS_FLOW | PLAIT_NEEDS_TOKEN);
    assert_eq!(needs("urgent", vec![]), PLAIT_NEEDS_FLOW | PLAIT_NEEDS_TOKEN);
    assert_eq!(needs("any", vec![Actor::RateLimit(Limit::Window(1))]), PLAIT_NEEDS_FLOW);
    let rate = Limit::Rate(Rate::new(1_000).expect("a rate"));
    assert_eq!(needs("any", vec![Actor::RateLimit(rate)]), PLAIT_NEEDS_FLOW);
    assert_eq!(
        needs("any", vec![Actor::SetBackup { address_id: None }]),
        PLAIT_NEEDS_FLOW | PLAIT_NEEDS_RECORD
    );
    let all = PLAIT_NEEDS_FLOW | PLAIT_NEEDS_TOKEN | PLAIT_NEEDS_RECORD;
    assert_eq!(needs("any", vec![Actor::Record]), all);
    assert_eq!(needs("connection_size(1kB-)", vec![]), all | PLAIT_NEEDS_CONNECTION);
}

#[test]
fn missing_interfaces_are_listed_and_do_not_match() {
    let interfaces = ["wlan0", "gone"].map(|name| Interface::Named(name.into())).to_vec();
    let actors = vec![Actor::Redirect("eth9".into()), Actor::Redirect("wwan0".into())];
    let chain = Chain { interfaces, actors, ..selecting("path(gone) or path(away)") };
    let resolved = resolve(&chain, &host()).expect("a chain");
    assert_eq!(resolved.absent, ["gone", "away", "eth9"]);
    assert_eq!(resolved.interfaces, [WLAN0]);
    assert_eq!(resolved.formula, Formula::Constant(false));
    assert_eq!(
        resolved.actors.iter().map(|actor| actor.parameters[0]).collect::<Vec<_>>(),
        [0, u64::from(WWAN0)]
    );
    let all = resolve(&selecting("any"), &host()).expect("a chain");
    assert_eq!(all.interfaces, [WLAN0, WWAN0, VLAN]);
}

#[test]
fn rejects_egress_only_selectors_and_unknown_custom_names() {
    let wrong = |text: &str| resolve(&selecting(text), &host()).expect_err(text);
    assert_eq!(wrong("mark(1)"), CompileError::OnlyEgress("the selector mark"));
    assert_eq!(wrong("cgroup(/)"), CompileError::OnlyEgress("the selector cgroup"));
    assert_eq!(wrong("other"), CompileError::UnknownCustom("other".into()));
}
