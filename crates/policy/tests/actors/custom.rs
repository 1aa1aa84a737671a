//! Custom selectors and actors: the files in examples/.

use plait_policy::Hook::Egress;
use plait_policy::engine::Verdict;

use super::packet::{ACK, Packet, frame, handshake};
use super::{dry_run_of, outcomes};

fn example(name: &str) -> String {
    format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn has_compiler(test: &str) -> bool {
    let compiler = std::env::var("PLAIT_CLANG").unwrap_or_else(|_| "clang-19".into());
    let found = std::process::Command::new(&compiler).arg("--version").output().is_ok();
    if !found {
        println!("SKIP {test}: there is no {compiler}");
    }
    found
}

#[test]
fn the_example_emits_an_event_for_every_hundredth_packet() {
    if !has_compiler("the_example_emits_an_event") {
        return;
    }
    let file = example("custom.bpf.c");
    let text = format!(
        "interfaces = ['*']\n[custom]\nslow.file = '{file}'\nsample_every_hundredth.file = '{file}'\n\
         [[chains]]\nname = 'fast'\nhook = 'egress'\nselect = 'not slow and packet(data)'\n\
         actors = ['sample_every_hundredth']\n\
         [[chains]]\nname = 'slow'\nhook = 'egress'\nselect = 'slow'\nactors = ['drop']\n"
    );
    let Some(dry_run) = dry_run_of("the_example_emits_an_event", &text) else { return };
    for packet in handshake(Some(7), Some(7), false, false) {
        dry_run.run(&frame(packet.hook, &packet.bytes()), 1).expect("a run");
    }
    let packet = Packet { payload: 100, ..Packet::new(Egress, ACK) };
    let bytes = packet.bytes();
    for number in 1..=250u64 {
        let ran = dry_run.run(&frame(Egress, &bytes), 1).expect("a run");
        assert_eq!((ran.verdict, &ran.bytes), (Verdict::Pass, &bytes));
        assert_eq!(outcomes(&dry_run), (number / 100, 0));
        let [chain] = &ran.chains[..] else { panic!("found {:?}", ran.chains) };
        assert_eq!((&*chain.chain, chain.hit), ("fast", number % 100 == 0));
    }
}

#[test]
fn the_template_selects_and_drops_and_ends_its_chain() {
    if !has_compiler("the_template_selects_and_drops") {
        return;
    }
    let file = example("template.bpf.c");
    let text = format!(
        "interfaces = ['*']\n[custom]\nmy_selector.file = '{file}'\nmy_actor.file = '{file}'\n\
         [[chains]]\nname = 'mine'\nhook = 'egress'\nselect = 'my_selector'\nactors = ['my_actor', 'record']\n\
         [[chains]]\nname = 'after'\nhook = 'egress'\nactors = ['record']\n"
    );
    let Some(dry_run) = dry_run_of("the_template_selects_and_drops", &text) else { return };
    let pure = dry_run.run(&frame(Egress, &Packet::new(Egress, ACK).bytes()), 1).expect("a run");
    assert_eq!(pure.verdict, Verdict::Pass);
    let data = Packet { payload: 100, ..Packet::new(Egress, ACK) };
    let dropped = dry_run.run(&frame(Egress, &data.bytes()), 1).expect("a run");
    assert_eq!(dropped.verdict, Verdict::Drop);
    let statistics = dry_run.statistics().expect("statistics");
    let [mine, after] = &statistics.policies[0].chains[..] else { panic!("two chains") };
    assert_eq!((mine.count.packets, mine.actors[0].count.hits, mine.actors[1].count.packets), (1, 1, 0));
    assert_eq!(after.count.packets, 1);
}
