//! Failed changes leave the previous state, and killed processes are recovered from.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use plait_linux::netns::NetNs;
use plait_policy::engine::{AttachMode, Engine, EngineError, clean_leftovers};

use crate::host::{Host, assert_attached, in_and_out, packets};

#[test]
fn a_failed_change_leaves_the_previous_state() {
    let Some(host) = Host::new("a_failed_change_leaves_the_previous_state") else { return };
    host.with_engine(|engine| {
        engine.load(&in_and_out("first", "a0")).expect("loaded");
        let (policies, attachments) =
            (engine.policies().expect("policies"), engine.attachments().expect("them"));
        let objects = host.objects();
        let all = [AttachMode::Native, AttachMode::Generic, AttachMode::Tcx, AttachMode::Clsact];
        let unable = Engine::current().expect("an engine").avoid_modes(&all);
        let error =
            unable.replace(&[in_and_out("first", "a0"), in_and_out("second", "lo")]).expect_err("no way");
        assert!(matches!(error, EngineError::Attach { .. }), "{error}");
        assert_eq!(engine.policies().expect("policies"), policies);
        assert_eq!(engine.attachments().expect("attachments"), attachments);
        assert_eq!(host.settled(objects.programs.len()), objects);
        host.receive(50_000);
        assert!(packets(engine) > 0);
        let names: Vec<_> = std::fs::read_dir(&host.directories()[0])
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        assert_eq!(names, ["loaded.json"]);
        engine.unload_all().expect("unloaded");
    });
}

#[test]
fn policies_outlive_the_loading_process() {
    let Some(host) = Host::new("policies_outlive_the_loading_process") else { return };
    host.with_engine(|engine| engine.load(&in_and_out("kept", "a0")).expect("loaded"));
    host.receive(50_000);
    let objects = host.objects();
    host.with_engine(|engine| {
        assert_eq!(engine.policies().expect("policies")[0].policy, in_and_out("kept", "a0"));
        assert!(packets(engine) > 0);
        assert_attached(engine);
        engine.unload("kept").expect("unloaded");
    });
    host.assert_nothing_left(&objects);
}

/// `ip netns exec` runs each command in a mount namespace that ends with it.
#[test]
fn policies_outlive_a_private_mount_namespace() {
    let Some(host) = Host::new("policies_outlive_a_private_mount_namespace") else { return };
    let command = |test: &str| {
        let status = Command::new("ip")
            .args(["netns", "exec", host.namespace.name()])
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--ignored"])
            .env(NAMESPACE, host.namespace.name())
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("the command ip").success(), "{test}");
    };
    command("faults::loads_a_policy_and_ends");
    host.receive(50_000);
    let objects = host.objects();
    host.with_engine(|engine| {
        assert_eq!(engine.policies().expect("policies")[0].policy, in_and_out("kept", "a0"));
        assert_attached(engine);
        assert!(packets(engine) > 0);
    });
    command("faults::unloads_a_policy_and_ends");
    host.assert_nothing_left(&objects);
}

#[test]
#[ignore = "is a command of the test above"]
fn loads_a_policy_and_ends() {
    if std::env::var_os(NAMESPACE).is_some() {
        Engine::current().expect("an engine").load(&in_and_out("kept", "a0")).expect("loaded");
    }
}

#[test]
#[ignore = "is a command of the test above"]
fn unloads_a_policy_and_ends() {
    if std::env::var_os(NAMESPACE).is_some() {
        Engine::current().expect("an engine").unload("kept").expect("unloaded");
    }
}

#[test]
fn replace_attaches_to_recreated_interfaces() {
    let Some(host) = Host::new("replace_attaches_to_recreated_interfaces") else { return };
    host.with_engine(|engine| {
        engine.load(&in_and_out("first", "a0")).expect("loaded");
        host.ip("link del a0");
        let attachments = engine.attachments().expect("attachments");
        assert_eq!(attachments.len(), 2);
        assert!(attachments.iter().all(|there| there.mode.is_none() && there.index.is_none()));
        assert_eq!(engine.policies().expect("policies")[0].absent, ["a0"]);
        engine.load(&in_and_out("second", "lo")).expect("loaded");
        engine.unload("second").expect("unloaded");
        assert!(engine.attachments().expect("attachments").iter().all(|there| there.mode.is_none()));

        host.connect();
        let there = engine.attachments().expect("attachments");
        assert!(there.iter().all(|there| there.mode.is_none() && there.index.is_some()));
        engine.replace(&[in_and_out("first", "a0")]).expect("attached");
        assert_eq!(engine.attachments().expect("attachments").len(), 2);
        assert_attached(engine);
        host.receive(50_000);
        assert!(packets(engine) > 0);
        engine.unload_all().expect("unloaded");
    });
}

#[test]
fn leftovers_of_deleted_namespaces_are_removed() {
    let name = "leftovers_of_deleted_namespaces_are_removed";
    let (Some(gone), Some(living)) = (Host::new(name), Host::new(name)) else { return };
    for host in [&gone, &living] {
        host.with_engine(|engine| engine.load(&in_and_out("p", "a0")).expect("loaded"));
    }
    let ([state, pins], objects) = (gone.directories(), gone.objects());
    drop(gone);
    assert!(pins.exists());
    // The kernel deletes an unused namespace with a delay, and another test may clean up first.
    let deadline = Instant::now() + Duration::from_secs(60);
    while pins.exists() || state.exists() {
        assert!(Instant::now() < deadline, "the namespace still exists");
        std::thread::sleep(Duration::from_millis(10));
        clean_leftovers().expect("leftovers");
    }
    crate::host::assert_gone(&objects);
    living.with_engine(|engine| {
        assert_attached(engine);
        engine.unload_all().expect("unloaded");
    });
}

#[test]
fn state_of_a_namespace_with_the_same_inode_is_discarded() {
    let name = "state_of_a_namespace_with_the_same_inode_is_discarded";
    let Some(host) = Host::new(name) else { return };
    host.with_engine(|engine| {
        engine.load(&in_and_out("old", "a0")).expect("loaded");
        host.change_state("namespace", "\"another\"");
        assert_eq!(engine.policies().expect("policies"), []);
        assert!(!host.directories()[1].exists());
        engine.load(&in_and_out("new", "a0")).expect("loaded");
        assert_eq!(engine.policies().expect("policies").len(), 1);
        engine.unload_all().expect("unloaded");
    });
}

#[test]
fn recovers_from_removed_pins_without_duplicate_filters() {
    let name = "recovers_from_removed_pins_without_duplicate_filters";
    let Some(host) = Host::new(name) else { return };
    host.with_engine(|_| {
        let engine = Engine::current().expect("an engine").avoid_modes(&[AttachMode::Tcx]);
        engine.load(&in_and_out("kept", "a0")).expect("loaded");
        let objects = host.objects();
        std::fs::remove_dir_all(&host.directories()[1]).expect("removed");
        assert_eq!(engine.policies().expect("policies")[0].policy, in_and_out("kept", "a0"));
        assert_attached(&engine);
        assert_eq!(host.tc("filter show dev a0 egress").matches("handle 0x1").count(), 1);
        crate::host::assert_gone(&objects);
        let objects = host.objects();
        engine.unload_all().expect("unloaded");
        host.assert_nothing_left(&objects);
        assert!(!host.tc("qdisc show dev a0").contains("clsact"));
    });
}

#[test]
fn policies_of_another_version_are_reloaded() {
    let Some(host) = Host::new("policies_of_another_version_are_reloaded") else { return };
    host.with_engine(|engine| {
        engine.load(&in_and_out("kept", "a0")).expect("loaded");
        let objects = host.objects();
        host.change_state("contract", "7");
        assert_eq!(engine.policies().expect("policies")[0].policy, in_and_out("kept", "a0"));
        crate::host::assert_gone(&objects);
        host.receive(50_000);
        assert!(packets(engine) > 0);
        let objects = host.objects();
        engine.unload_all().expect("unloaded");
        host.assert_nothing_left(&objects);
    });
}

#[test]
fn unreadable_state_is_reported_and_can_be_unloaded() {
    let Some(host) = Host::new("unreadable_state_is_reported_and_can_be_unloaded") else { return };
    host.tc("qdisc add dev a0 clsact");
    host.with_engine(|_| {
        let engine = Engine::current().expect("an engine").avoid_modes(&[AttachMode::Tcx]);
        engine.load(&in_and_out("kept", "a0")).expect("loaded");
        let objects = host.objects();
        std::fs::write(host.directories()[0].join("loaded.json"), "{").expect("written");
        let error = engine.policies().expect_err("it is no JSON");
        assert!(
            matches!(error, EngineError::Unreadable { .. }) && error.to_string().contains("unload --all"),
            "{error}"
        );
        engine.unload_all().expect("unloaded");
        host.assert_nothing_left(&objects);
        assert_eq!(host.tc("filter show dev a0 egress"), "");
    });
}

/// The killed process is this test program, started for a single test.
#[test]
fn a_killed_change_leaves_the_old_or_the_new_policies() {
    let Some(host) = Host::new("a_killed_change_leaves_the_old_or_the_new_policies") else { return };
    let (odd, even) = ([in_and_out("odd", "a0"), in_and_out("one", "lo")], [in_and_out("even", "*")]);
    let mut objects = None;
    for round in 0..21 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "faults::changes_policies_until_it_is_killed", "--ignored", "--nocapture"])
            .env(NAMESPACE, host.namespace.name())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = child.stdout.take().expect("its output");
        // Keep reading: the process would end if its stdout were closed.
        let mut steps =
            BufReader::new(output).lines().map_while(Result::ok).filter(|line| line.contains("step"));
        let begun = steps.by_ref().take(1 + round % 7).count();
        assert_eq!(begun, 1 + round % 7, "it ended by itself");
        std::thread::sleep(Duration::from_millis(13 * (round as u64 % 5)));
        child.kill().expect("killed");
        child.wait().expect("its end");
        host.with_engine(|engine| {
            let found: Vec<_> =
                engine.policies().expect("policies").into_iter().map(|found| found.policy).collect();
            assert!(
                found == odd || found == odd[..1] || found == even || found.is_empty(),
                "round {round}: {found:?}"
            );
            assert_attached(engine);
            let attachments = engine.attachments().expect("attachments");
            let wanted = found.len() * 2;
            assert_eq!(attachments.len(), wanted, "round {round}: {attachments:?}");
            if !found.is_empty() {
                objects = Some(host.objects());
            }
        });
    }
    host.receive(10_000);
    host.with_engine(|engine| engine.unload_all().expect("unloaded"));
    host.assert_nothing_left(&objects.expect("something was loaded"));
}

#[test]
#[ignore = "is killed by the test above"]
fn changes_policies_until_it_is_killed() {
    let Some(name) = std::env::var_os(NAMESPACE) else { return };
    let namespace = NetNs::named(&name.to_string_lossy()).expect("a namespace");
    namespace
        .run(|| {
            let engine = Engine::current().expect("an engine");
            let steps: [&dyn Fn() -> Result<(), EngineError>; 5] = [
                &|| engine.unload_all().map(|_| ()),
                &|| engine.replace(&[in_and_out("odd", "a0"), in_and_out("one", "lo")]),
                &|| engine.unload("one").map(|_| ()),
                &|| engine.unload("odd").map(|_| ()),
                &|| engine.load(&in_and_out("even", "*")),
            ];
            for step in steps.iter().cycle() {
                println!("step");
                step().expect("done");
            }
        })
        .expect("inside");
}

const NAMESPACE: &str = "PLAIT_TEST_NAMESPACE";
