//! Compares the increases calculated by the programs for arbitrary paths with those of the model.

use bytemuck::Zeroable;
use libbpf_rs::{Object, ProgramInput};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{can_run, error_bound, model_path};
use crate::bindings::{plait_calculation, plait_path};
use crate::{Algorithm, object};

const MAX_PATHS: usize = crate::bindings::PLAIT_MAX_SUBFLOWS as usize;

fn load(algorithm: Algorithm) -> Object {
    let mut object = object::open(object::program_of(algorithm)).expect("object opens");
    for mut program in object.progs_mut() {
        let wanted = program.name() == "calculate";
        program.set_autoload(wanted);
    }
    for mut map in object.maps_mut() {
        let wanted = map.name().to_string_lossy().ends_with(".rodata");
        map.set_autocreate(wanted).expect("map is configurable");
    }
    object.load().expect("kernel accepts the program")
}

/// Runs the program `calculate` on paths. Returns the increase in segments.
fn calculate(object: &Object, paths: &[plait_path]) -> f64 {
    let program =
        object.progs_mut().find(|program| program.name() == "calculate").expect("program calculate exists");
    let mut calculation = plait_calculation { path_count: paths.len() as u32, ..Zeroable::zeroed() };
    calculation.paths[..paths.len()].copy_from_slice(paths);
    let context = Some(bytemuck::bytes_of_mut(&mut calculation));
    program.test_run(ProgramInput { context_in: context, ..Default::default() }).expect("program runs");
    calculation.increase as f64 / 2f64.powi(32)
}

/// Windows of 1 to a million segments, round-trip times of a microsecond to two minutes.
fn any_path() -> impl Strategy<Value = plait_path> {
    let logarithmic = |max: f64| (0.0..max).prop_map(|exponent| exponent.exp2());
    let transmitted = prop_oneof![Just(0.0), logarithmic(44.0)];
    (logarithmic(20.0), logarithmic(30.0), transmitted).prop_map(|(window, rtt, transmitted)| plait_path {
        window: window as u32,
        rtt: (rtt as u32).max(8),
        transmitted: transmitted as u64,
    })
}

/// The paths of a connection, often with some equal values, which is a special case of OLIA.
fn any_paths() -> impl Strategy<Value = Vec<plait_path>> {
    let equal = (any_path(), 1..=MAX_PATHS).prop_map(|(path, number)| vec![path; number]);
    let partly_equal =
        (prop::collection::vec(any_path(), 2..=MAX_PATHS), any::<bool>()).prop_map(|(mut paths, which)| {
            let first = paths[0];
            paths.iter_mut().skip(1).step_by(2).for_each(|path| match which {
                true => path.window = first.window,
                false => (path.rtt, path.transmitted) = (first.rtt, first.transmitted),
            });
            paths
        });
    prop_oneof![prop::collection::vec(any_path(), 1..=MAX_PATHS), equal, partly_equal]
}

#[test]
fn arithmetic_matches_model() {
    if !can_run("arithmetic_matches_model") {
        return;
    }
    for algorithm in Algorithm::ALL {
        let object = load(algorithm);
        let config = Config { cases: 3000, failure_persistence: None, ..Config::default() };
        let compared = TestRunner::new(config).run(&any_paths(), |paths| {
            let model_paths: Vec<_> = paths.iter().map(model_path).collect();
            // For a single path, the programs use reno instead.
            prop_assume!(paths.len() > 1);
            let (actual, expected) = (calculate(&object, &paths), algorithm.increase(&model_paths, 0));
            let bound = error_bound(&model_paths);
            prop_assert!(
                (actual - expected).abs() <= bound,
                "{algorithm}: expected {expected} within {bound}, got {actual}"
            );
            Ok(())
        });
        compared.expect("no difference");
    }
}

/// Values that only a racing read without locks can return.
#[test]
fn extreme_windows_and_round_trip_times_do_not_overflow() {
    if !can_run("extreme_windows_and_round_trip_times_do_not_overflow") {
        return;
    }
    let extremes = [0, 1, 2, 7, 8, u32::MAX - 1, u32::MAX];
    for algorithm in Algorithm::ALL {
        let object = load(algorithm);
        for window in extremes {
            for rtt in extremes {
                let extreme = plait_path { window, rtt, transmitted: u64::MAX };
                let ordinary = plait_path { window: 10, rtt: 160_000, transmitted: 1 << 20 };
                for paths in [
                    vec![ordinary, extreme],
                    vec![ordinary; 8],
                    [vec![ordinary], vec![extreme; MAX_PATHS - 1]].concat(),
                ] {
                    let increase = calculate(&object, &paths);
                    assert!(increase.abs() <= 1.0, "{algorithm}: {increase} for {paths:?}");
                }
            }
        }
    }
}
