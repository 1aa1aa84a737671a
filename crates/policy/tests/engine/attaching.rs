//! Attach modes, and what detaching leaves.

use libbpf_rs::{ObjectBuilder, Xdp, XdpFlags};
use plait_policy::Hook;
use plait_policy::engine::{AttachMode, Attachment, Engine, EngineError, FlowDirection};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use crate::host::{Host, in_and_out, packets};

fn modes(engine: &Engine) -> Vec<(Hook, Option<AttachMode>)> {
    let attachments = engine.attachments().expect("attachments");
    attachments.iter().map(|Attachment { hook, mode, .. }| (*hook, *mode)).collect()
}

/// The TC mode of this kernel: TCX since Linux 6.6.
fn tc_mode() -> AttachMode {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next(), numbers.next());
    if version >= (Some(6), Some(6)) { AttachMode::Tcx } else { AttachMode::Clsact }
}

/// The number of bytes without retransmissions, which the kernel may send, and of which reordered packets count as some.
fn carried(direction: &FlowDirection) -> RangeInclusive<u64> {
    direction.bytes - direction.retransmitted_bytes..=direction.bytes
}

#[test]
fn load_processes_packets_and_unload_leaves_nothing() {
    let name = "load_processes_packets_and_unload_leaves_nothing";
    let Some(host) = Host::new(name) else { return };
    let objects = host.with_engine(|engine| {
        engine.load(&in_and_out("both", "a0")).expect("loaded");
        assert_eq!(modes(engine), [(Hook::Ingress, Some(tc_mode())), (Hook::Egress, Some(tc_mode()))]);
        host.receive(200_000);
        let statistics = engine.statistics().expect("statistics");
        let [chain_in, chain_out] = &statistics.policies[0].chains[..] else { panic!("two chains") };
        assert!(chain_in.count.bytes > 200_000, "{statistics:?}");
        assert_eq!(chain_in.actors[0].count.packets, chain_in.count.packets);
        assert!(chain_out.count.packets > 2, "{statistics:?}");
        assert_eq!(chain_in.count.errors + chain_out.count.errors, 0);
        let flows = engine.flows().expect("flows");
        let [flow] = &flows[..] else { panic!("one subflow, got {flows:?}") };
        assert!(carried(&flow.received).contains(&200_000), "{flow:?}");
        assert_eq!(flow.tuple.remote.ip().to_string(), "10.1.0.2");
        assert_eq!((statistics.flows, statistics.flows_seen), (1, 1));
        host.objects()
    });
    assert!(
        objects.links.len() == 2 && !objects.maps.is_empty() && !objects.programs.is_empty(),
        "{objects:?}"
    );
    host.with_engine(|engine| engine.unload("both").expect("unloaded"));
    host.assert_nothing_left(&objects);
    host.receive(1000);
}

#[test]
fn avoided_modes_are_not_used() {
    let Some(host) = Host::new("avoided_modes_are_not_used") else { return };
    let avoiding =
        |modes: &[AttachMode]| Engine::current().expect("an engine").prefer_xdp().avoid_modes(modes);
    host.with_engine(|_| {
        for (avoided, ingress) in [
            (vec![], AttachMode::Native),
            (vec![AttachMode::Native], AttachMode::Generic),
            (vec![AttachMode::Native, AttachMode::Generic], tc_mode()),
            (vec![AttachMode::Native, AttachMode::Generic, AttachMode::Tcx], AttachMode::Clsact),
        ] {
            let engine = avoiding(&avoided);
            engine.load(&in_and_out("both", "a0")).expect("loaded");
            let egress = if avoided.contains(&AttachMode::Tcx) { AttachMode::Clsact } else { tc_mode() };
            assert_eq!(modes(&engine), [(Hook::Ingress, Some(ingress)), (Hook::Egress, Some(egress))]);
            host.receive(100_000);
            let statistics = engine.statistics().expect("statistics");
            for chain in &statistics.policies[0].chains {
                assert!(chain.count.packets > 2, "{ingress}: {statistics:?}");
            }
            let flow = &engine.flows().expect("flows")[0];
            assert!(carried(&flow.received).contains(&100_000), "{ingress}: {flow:?}");
            let objects = host.objects();
            engine.unload_all().expect("unloaded");
            host.assert_nothing_left(&objects);
            assert!(!host.tc("qdisc show dev a0").contains("clsact"));
        }
        let error = avoiding(&[AttachMode::Native, AttachMode::Generic, AttachMode::Tcx, AttachMode::Clsact])
            .load(&in_and_out("both", "a0"))
            .expect_err("no way is left");
        assert!(matches!(&error, EngineError::Attach { interface, .. } if interface == "a0"), "{error}");
        let [state, pins] = host.directories();
        assert!(!state.exists() && !pins.exists());
    });
}

#[test]
fn interfaces_without_ethernet_use_tc() {
    let Some(host) = Host::new("interfaces_without_ethernet_use_tc") else { return };
    host.ip("tuntap add dev t0 mode tun");
    host.ip("link set t0 up");
    host.with_engine(|engine| {
        engine.load(&in_and_out("both", "t0")).expect("loaded");
        assert_eq!(modes(engine), [(Hook::Ingress, Some(tc_mode())), (Hook::Egress, Some(tc_mode()))]);
        engine.unload("both").expect("unloaded");
    });
}

#[test]
fn foreign_tc_filters_are_kept() {
    let Some(host) = Host::new("foreign_tc_filters_are_kept") else { return };
    host.tc("qdisc add dev a0 clsact");
    host.tc("filter add dev a0 egress prio 5 protocol ip u32 match ip dst 10.9.9.9/32 flowid 1:1");
    let before = host.tc("filter show dev a0 egress");
    host.with_engine(|_| {
        let engine = Engine::current().expect("an engine").avoid_modes(&[AttachMode::Tcx]);
        engine.load(&in_and_out("both", "a0")).expect("loaded");
        assert!(host.tc("filter show dev a0 egress").contains("egress"));
        host.receive(50_000);
        engine.unload("both").expect("unloaded");
    });
    assert_eq!(host.tc("filter show dev a0 egress"), before);

    // A clsact that plait created stays while it contains foreign filters.
    host.tc("qdisc del dev a0 clsact");
    host.with_engine(|_| {
        let engine = Engine::current().expect("an engine").avoid_modes(&[AttachMode::Tcx]);
        engine.load(&in_and_out("both", "a0")).expect("loaded");
        host.tc("filter add dev a0 egress prio 5 protocol ip u32 match ip dst 10.9.9.9/32 flowid 1:1");
        engine.unload("both").expect("unloaded");
    });
    assert_eq!(host.tc("filter show dev a0 egress"), before);
}

#[test]
fn a_foreign_xdp_program_is_kept_and_tc_is_used() {
    let name = "a_foreign_xdp_program_is_kept_and_tc_is_used";
    let Some(host) = Host::new(name) else { return };
    host.with_engine(|engine| {
        let object = concat!(env!("OUT_DIR"), "/xdp.bpf.o");
        let object =
            ObjectBuilder::default().open_file(object).and_then(|open| open.load()).expect("programs");
        let program = object.progs().find(|program| program.name() == "ingress").expect("a program");
        let interfaces = plait_linux::interfaces::interfaces().expect("interfaces");
        let index = interfaces.iter().find(|there| there.name == "a0").expect("a0").index as i32;
        let other = Xdp::new(program.as_fd());
        other.attach(index, XdpFlags::DRV_MODE).expect("attached");
        let id = other.query_id(index, XdpFlags::NONE).expect("a program");

        let asking = Engine::current().expect("an engine").prefer_xdp();
        asking.load(&in_and_out("both", "a0")).expect("loaded");
        assert_eq!(modes(engine)[0], (Hook::Ingress, Some(tc_mode())));
        host.receive(50_000);
        assert!(packets(engine) > 0);
        engine.unload("both").expect("unloaded");
        assert_eq!(other.query_id(index, XdpFlags::NONE).expect("a program"), id);
    });
}

#[test]
fn jumbo_frames_are_processed() {
    let Some(host) = Host::new("jumbo_frames_are_processed") else { return };
    host.set_mtu(9000);
    host.with_engine(|engine| {
        engine.load(&in_and_out("both", "a0")).expect("loaded");
        host.receive(500_000);
        let flows = engine.flows().expect("flows");
        assert!(flows[0].received.bytes >= 500_000, "{flows:?}");
        engine.unload("both").expect("unloaded");
    });
}
