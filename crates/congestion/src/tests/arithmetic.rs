//! The increases that the programs calculate, for any paths, beside those of the model.

use libbpf_rs::{Object, ProgramInput};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{bound, can_run, path};
use crate::bindings::{plait_calculation, plait_path};
use crate::{Algorithm, object};

const MOST: usize = crate::bindings::PLAIT_MAX_SUBFLOWS as usize;
const SIZE: usize = size_of::<plait_calculation>();

fn load(algorithm: Algorithm) -> Object {
    let mut object = object::open(object::program_of(algorithm)).expect("an object");
    for mut program in object.progs_mut() {
        let wanted = program.name() == "calculate";
        program.set_autoload(wanted);
    }
    for mut map in object.maps_mut() {
        let wanted = map.name().to_string_lossy().ends_with(".rodata");
        map.set_autocreate(wanted).expect("a choice");
    }
    object.load().expect("the kernel takes it")
}

/// What the program makes of paths, in segments.
fn calculate(object: &Object, paths: &[plait_path]) -> f64 {
    let program = object.progs_mut().find(|program| program.name() == "calculate").expect("the program");
    // The layout is that of intf.h: paths, increase, number.
    let mut bytes = [0u8; SIZE];
    for (place, path) in paths.iter().enumerate() {
        let at = place * size_of::<plait_path>();
        bytes[at..at + 8].copy_from_slice(&path.transmitted.to_ne_bytes());
        bytes[at + 8..at + 12].copy_from_slice(&path.window.to_ne_bytes());
        bytes[at + 12..at + 16].copy_from_slice(&path.rtt.to_ne_bytes());
    }
    let after = MOST * size_of::<plait_path>();
    bytes[after + 8..after + 12].copy_from_slice(&(paths.len() as u32).to_ne_bytes());
    program.test_run(ProgramInput { context_in: Some(&mut bytes), ..Default::default() }).expect("a run");
    let increase = i64::from_ne_bytes(bytes[after..after + 8].try_into().expect("8 bytes"));
    increase as f64 / 2f64.powi(32)
}

/// Windows of 1 to a million segments, round-trip times of a microsecond to two minutes.
fn any_path() -> impl Strategy<Value = plait_path> {
    let logarithmic = |most: f64| (0.0..most).prop_map(|exponent| exponent.exp2());
    let transmitted = prop_oneof![Just(0.0), logarithmic(44.0)];
    (logarithmic(20.0), logarithmic(30.0), transmitted).prop_map(|(window, rtt, transmitted)| plait_path {
        window: window as u32,
        rtt: (rtt as u32).max(8),
        transmitted: transmitted as u64,
    })
}

/// Paths like those of one connection, often equal in something, which matters to OLIA.
fn any_paths() -> impl Strategy<Value = Vec<plait_path>> {
    let alike = (any_path(), 1..=MOST).prop_map(|(path, number)| vec![path; number]);
    let partly =
        (prop::collection::vec(any_path(), 2..=MOST), any::<bool>()).prop_map(|(mut paths, which)| {
            let first = paths[0];
            paths.iter_mut().skip(1).step_by(2).for_each(|path| match which {
                true => path.window = first.window,
                false => (path.rtt, path.transmitted) = (first.rtt, first.transmitted),
            });
            paths
        });
    prop_oneof![prop::collection::vec(any_path(), 1..=MOST), alike, partly]
}

fn matches_the_model(algorithm: Algorithm) {
    if !can_run(&format!("{algorithm}_calculates_as_its_model")) {
        return;
    }
    let object = load(algorithm);
    let mut runner = TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let compared = runner.run(&any_paths(), |seen| {
        let paths: Vec<_> = seen.iter().map(path).collect();
        // One path is reno's, and does not get here.
        prop_assume!(paths.len() > 1);
        let (found, expected) = (calculate(&object, &seen), algorithm.increase(&paths, 0));
        let allowed = bound(&paths);
        prop_assert!((found - expected).abs() <= allowed, "{found}, expected {expected} to {allowed}");
        Ok(())
    });
    compared.expect("no difference");
}

#[test]
fn ewtcp_calculates_as_its_model() {
    matches_the_model(Algorithm::Ewtcp);
}

#[test]
fn coupled_calculates_as_its_model() {
    matches_the_model(Algorithm::Coupled);
}

#[test]
fn lia_calculates_as_its_model() {
    matches_the_model(Algorithm::Lia);
}

#[test]
fn olia_calculates_as_its_model() {
    matches_the_model(Algorithm::Olia);
}

#[test]
fn balia_calculates_as_its_model() {
    matches_the_model(Algorithm::Balia);
}

/// What no connection has, but a read beside a lock might give.
#[test]
fn windows_and_times_of_zero_and_without_bound_are_calculated_with() {
    if !can_run("windows_and_times_of_zero_and_without_bound_are_calculated_with") {
        return;
    }
    let extremes = [0, 1, 2, 7, 8, u32::MAX - 1, u32::MAX];
    for algorithm in Algorithm::ALL {
        let object = load(algorithm);
        for window in extremes {
            for rtt in extremes {
                let odd = plait_path { window, rtt, transmitted: u64::MAX };
                let usual = plait_path { window: 10, rtt: 160_000, transmitted: 1 << 20 };
                for paths in [vec![usual, odd], vec![usual; 8], [vec![usual], vec![odd; MOST - 1]].concat()] {
                    let found = calculate(&object, &paths);
                    assert!(found.abs() <= 1.0, "{algorithm}: {found} of {paths:?}");
                }
            }
        }
    }
}
