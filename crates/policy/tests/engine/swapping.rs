//! Loading, replacing and unloading policies while packets pass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use plait_policy::engine::{EngineError, EventKind};

use crate::host::{Host, packets, policy};

/// 24 chains that depend on `number`.
fn many(number: usize) -> String {
    let mut text = String::from("name = \"many\"\ninterfaces = [\"a0\"]\n");
    for chain in 0..24 {
        let hook = if chain % 2 == 0 { "ingress" } else { "egress" };
        let port = 1 + (number + chain) % 1000;
        text += &format!(
            "[[chains]]\nname = \"c{chain}\"\nhook = \"{hook}\"\nselect = \"subflow(dport = {port}) or packet(mp_fail)\"\n\
             actors = [\"record\"]\n"
        );
    }
    text + "[[chains]]\nname = \"all\"\nhook = \"ingress\"\nactors = [\"record\"]\n"
}

/// `make test-long` replaces 1000 times, by the command (tests/policy/test_lifecycle.py).
const REPLACEMENTS: usize = 50;

#[test]
fn replacements_leak_nothing_and_lose_no_connection() {
    let Some(host) = Host::new("replacements_leak_nothing_and_lose_no_connection") else { return };
    host.with_engine(|engine| {
        engine.replace(&[policy(&many(0))]).expect("loaded");
        let before = host.objects();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                let mut transfers = 0;
                while !done.load(Ordering::Relaxed) {
                    host.receive(1_000_000);
                    transfers += 1;
                }
                transfers
            });
            let start = Instant::now();
            for number in 1..=REPLACEMENTS {
                engine.replace(&[policy(&many(number))]).expect("replaced");
            }
            println!(
                "{REPLACEMENTS} replacements of 25 chains: {:?} each",
                start.elapsed() / REPLACEMENTS as u32
            );
            done.store(true, Ordering::Relaxed);
            assert!(traffic.join().expect("no connection was lost") > 0);
        });
        let after = host.settled(before.programs.len());
        assert_eq!(after.maps, before.maps);
        assert_eq!(after.links, before.links);
        assert_eq!(after.programs.len(), before.programs.len());
        let [_, pins] = host.directories();
        let pinned = std::fs::read_dir(pins.join("programs")).expect("pins").count();
        engine.unload_all().expect("unloaded");
        assert!(pinned < 10, "{pinned} programs are pinned");
        host.assert_nothing_left(&after);
    });
}

#[test]
fn counters_survive_replacement_and_are_separate_per_policy() {
    let name = "counters_survive_replacement_and_are_separate_per_policy";
    let Some(host) = Host::new(name) else { return };
    let one = |select: &str| {
        policy(&format!(
            "name = \"one\"\ninterfaces = [\"a0\"]\n[[chains]]\nname = \"kept\"\nhook = \"ingress\"\n\
             select = \"packet(data)\"\nactors = [\"record\"]\n[[chains]]\nname = \"other\"\nhook = \"ingress\"\n\
             select = \"{select}\"\nactors = []\n"
        ))
    };
    let two = policy(
        "name = \"two\"\n[[chains]]\ninterfaces = [\"*\"]\nname = \"kept\"\nhook = \"ingress\"\nselect = \"packet(syn)\"\n\
         actors = []\n",
    );
    host.with_engine(|engine| {
        engine.load(&one("packet(syn)")).expect("loaded");
        engine.load(&two).expect("loaded beside the first");
        assert!(matches!(engine.load(&two), Err(EngineError::Exists(name)) if name == "two"));
        host.receive(100_000);
        let count = |policy: usize, chain: usize| {
            engine.statistics().expect("statistics").policies[policy].chains[chain].count
        };
        let before = count(0, 0);
        assert!(before.packets > 0 && count(0, 1).packets > 0);
        assert_eq!(count(1, 0).packets, 1);

        engine.replace(&[one("packet(rst)")]).expect("replaced");
        assert_eq!(count(0, 0), before);
        host.receive(100_000);
        assert!(count(0, 0).packets > before.packets);
        assert_eq!(count(1, 0).packets, 2);

        engine.unload("one").expect("unloaded");
        let names: Vec<_> =
            engine.policies().expect("policies").into_iter().map(|found| found.policy.name).collect();
        assert_eq!(names, ["two"]);
        assert_eq!(count(0, 0).packets, 2);
        let error = engine.unload("one").expect_err("it is not loaded");
        assert!(error.to_string().contains("loaded: two"), "{error}");
        assert!(engine.unload_all().expect("unloaded"));
        assert!(!engine.unload_all().expect("nothing"));
    });
}

#[test]
fn tracing_reports_matches_to_one_reader_at_a_time() {
    let name = "tracing_reports_matches_to_one_reader_at_a_time";
    let Some(host) = Host::new(name) else { return };
    host.with_engine(|engine| {
        assert!(engine.trace().expect("nothing is loaded").is_none());
        let syns = "name = \"t\"\ninterfaces = [\"a0\"]\n[[chains]]\nname = \"syns\"\nhook = \"ingress\"\n\
                    select = \"packet(syn) and packet(mp_capable)\"\nactors = []\n";
        engine.load(&policy(syns)).expect("loaded");
        let mut trace = engine.trace().expect("a trace").expect("it is loaded");
        assert!(matches!(engine.trace(), Err(EngineError::EventsTaken)));
        assert!(trace.next(Duration::ZERO).expect("no event").is_none());
        host.receive(1000);
        let event = trace.next(Duration::from_secs(5)).expect("an event").expect("an event");
        let EventKind::Matched { chains, .. } = &event.kind else { panic!("a packet, got {event:?}") };
        assert_eq!((chains[0].policy.as_str(), chains[0].chain.as_str()), ("t", "syns"));
        assert_eq!(event.tuple.remote.ip().to_string(), "10.1.0.2");
        assert!(serde_json::to_string(&event).expect("JSON").contains("\"mp_capable\""));
        assert!(trace.next(Duration::ZERO).expect("no event").is_none());
        drop(trace);
        host.receive(1000);
        let mut events = engine.events().expect("events").expect("it is loaded");
        assert!(events.next(Duration::ZERO).expect("no event").is_none(), "tracing ended with its reader");
        drop(events);
        engine.unload_all().expect("unloaded");
    });
}

#[test]
fn leased_policies_expire_unless_renewed() {
    let Some(host) = Host::new("leased_policies_expire_unless_renewed") else { return };
    let text = "name = \"leased\"\ninterfaces = [\"a0\"]\n[[chains]]\nname = \"syns\"\nhook = \"ingress\"\n\
                select = \"packet(syn)\"\nactors = []\n";
    host.with_engine(|engine| {
        engine.load_leased(&policy(text), Duration::from_secs(3600)).expect("loaded");
        let remaining = engine.policies().expect("policies")[0].remaining.expect("a time");
        assert!(remaining > Duration::from_secs(3500) && remaining <= Duration::from_secs(3600));
        host.receive(1000);
        assert_eq!(packets(engine), 1);
        assert!(engine.renew("leased", Duration::ZERO).expect("renewed"));
        host.receive(1000);
        assert_eq!(packets(engine), 1, "its time is over");
        assert_eq!(engine.policies().expect("policies")[0].remaining, Some(Duration::ZERO));
        assert!(!engine.renew("other", Duration::ZERO).expect("no such policy"));
        engine.load(&policy(&text.replace("leased", "stays"))).expect("loaded");
        let loaded = engine.policies().expect("policies");
        assert_eq!(loaded.len(), 1, "what has lapsed goes with the next change");
        assert_eq!((loaded[0].policy.name.as_str(), loaded[0].remaining), ("stays", None));
        engine.unload_all().expect("unloaded");
    });
}

#[test]
fn custom_programs_are_reloaded_when_their_file_changes() {
    let name = "custom_programs_are_reloaded_when_their_file_changes";
    let Some(host) = Host::new(name) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("custom.bpf.c");
    let write = |condition: &str| {
        let text = format!(
            "#include \"plait.bpf.h\"\nPLAIT_SELECTOR(mine) {{ return {condition}; }}\n\
             PLAIT_ACTOR(counting) {{ return PLAIT_HIT; }}\nchar _license[] SEC(\"license\") = \"Dual MIT/GPL\";\n"
        );
        std::fs::write(&file, text).expect("written");
    };
    write("packet->kinds & PLAIT_IS_SYN");
    let path = file.display();
    let text = format!(
        "name = \"o\"\ninterfaces = [\"a0\"]\n[custom.mine]\nfile = \"{path}\"\n[custom.counting]\nfile = \"{path}\"\n\
         [[chains]]\nname = \"c\"\nhook = \"ingress\"\nselect = \"mine\"\nactors = [\"counting\"]\n"
    );
    host.with_engine(|engine| {
        let counts = || {
            let chain = engine.statistics().expect("statistics").policies[0].chains[0].clone();
            (chain.count.packets, chain.actors[0].count.hits)
        };
        engine.load(&policy(&text)).expect("loaded");
        host.receive(100_000);
        assert_eq!(counts(), (1, 1));
        let before = host.objects();
        engine.replace(&[policy(&text)]).expect("replaced by the same");
        assert_eq!(host.settled(before.programs.len()).programs.len(), before.programs.len());

        write("packet->kinds & PLAIT_IS_DATA");
        engine.replace(&[policy(&text)]).expect("replaced");
        let seen = counts();
        host.receive(100_000);
        assert!(counts().0 > seen.0 + 1 && counts().1 > seen.1 + 1, "{:?}", counts());
        assert_eq!(host.settled(before.programs.len()).programs.len(), before.programs.len());

        write("this is no C");
        let error = engine.replace(&[policy(&text)]).expect_err("it cannot be compiled");
        assert!(matches!(error, EngineError::Custom(_)), "{error}");
        std::fs::remove_file(&file).expect("removed");
        engine.replace(&[policy(&text)]).expect("a loaded program does not need its file");
        let seen = counts();
        host.receive(100_000);
        assert!(counts().0 > seen.0 + 1);
        let objects = host.objects();
        engine.unload("o").expect("unloaded");
        host.assert_nothing_left(&objects);
    });
}

#[test]
fn pacing_is_attached_while_a_chain_needs_it() {
    let Some(host) = Host::new("pacing_is_attached_while_a_chain_needs_it") else { return };
    let text = "name = \"p\"\ninterfaces = [\"a0\"]\n[[chains]]\nname = \"c\"\nhook = \"egress\"\n\
                actors = [{ pace = \"100mbit\" }]\n";
    host.with_engine(|engine| {
        let is_attached = || host.directories()[1].join("pace").exists();
        engine.load(&policy(text)).expect("loaded");
        assert!(is_attached());
        host.receive(50_000);
        assert_eq!(engine.flows().expect("flows")[0].pace, Some(12_500_000));
        engine.load(&policy(&many(0))).expect("loaded");
        assert!(is_attached());
        engine.unload("p").expect("unloaded");
        assert!(!is_attached());
        let objects = host.objects();
        engine.unload_all().expect("unloaded");
        host.assert_nothing_left(&objects);
    });
}

#[test]
fn flows_lists_thousands_of_subflows() {
    let Some(host) = Host::new("flows_lists_thousands_of_subflows") else { return };
    host.with_engine(|engine| {
        engine.load(&policy(&many(0))).expect("loaded");
        let map = MapHandle::from_pinned_path(host.directories()[1].join("maps/flows")).expect("a map");
        let flow = vec![0; map.value_size() as usize];
        for number in 0..5000u32 {
            let mut key = vec![0; map.key_size() as usize];
            key[..4].copy_from_slice(&number.to_ne_bytes());
            map.update(&key, &flow, MapFlags::ANY).expect("room");
        }
        assert_eq!(engine.flows().expect("flows").len(), 5000);
        assert_eq!(engine.statistics().expect("statistics").flows, 5000);
        engine.unload_all().expect("unloaded");
    });
}

#[test]
fn the_oldest_subflows_are_evicted_when_the_map_is_full() {
    let name = "the_oldest_subflows_are_evicted_when_the_map_is_full";
    let Some(host) = Host::new(name) else { return };
    host.with_engine(|engine| {
        engine.load(&policy(&many(0))).expect("loaded");
        let map = MapHandle::from_pinned_path(host.directories()[1].join("maps/flows")).expect("a map");
        let (room, flow) = (map.max_entries(), vec![0; map.value_size() as usize]);
        for number in 0..room + room / 16 {
            let mut key = vec![0; map.key_size() as usize];
            key[..4].copy_from_slice(&number.to_ne_bytes());
            map.update(&key, &flow, MapFlags::ANY).expect("the one unused for longest goes");
        }
        host.receive(100_000);
        let statistics = engine.statistics().expect("statistics");
        assert!(statistics.flows <= room.into() && statistics.flows > u64::from(room) / 2, "{statistics:?}");
        assert_eq!((statistics.flows_seen, statistics.skipped.no_memory), (1, 0));
        let flows = engine.flows().expect("flows");
        assert!(flows.iter().any(|flow| flow.received.bytes == 100_000));
        engine.unload_all().expect("unloaded");
    });
}
