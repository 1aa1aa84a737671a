//! Compares the decisions of the program with a model in floating point, and states what they promise.

use std::cell::Cell;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{MapType, Object, ProgramInput};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::bindings::{PLAIT_BURST, PLAIT_MIN_RATE, PLAIT_UNLIMITED, plait_path, plait_question};
use crate::{Scheduler, object};

/// Whether this is root on a kernel that accepts the program; if not, prints that the test is skipped.
fn can_run(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: schedulers require root");
        return false;
    }
    match crate::probe() {
        Ok(()) => true,
        Err(error) => {
            println!("SKIP {test}: {error}");
            false
        }
    }
}

/// Loads only the program that answers questions.
fn load() -> Object {
    let mut object = object::open(object::PROGRAM, Scheduler::Ecf, "plait_test").expect("object opens");
    for mut program in object.progs_mut() {
        let wanted = program.name() == "answer";
        program.set_autoload(wanted);
    }
    for mut map in object.maps_mut() {
        let wanted = map.map_type() != MapType::StructOps;
        map.set_autocreate(wanted).expect("map is configurable");
    }
    object.load().expect("kernel accepts the program")
}

/// Whether the subflow is to be open, up to a rate or not.
fn ask(object: &Object, question: plait_question) -> bool {
    rate(object, question) != 0
}

/// The rate that the subflow may carry.
fn rate(object: &Object, question: plait_question) -> u32 {
    let program = object.progs_mut().find(|program| program.name() == "answer").expect("program exists");
    let mut question = question;
    let context = Some(bytemuck::bytes_of_mut(&mut question));
    program.test_run(ProgramInput { context_in: context, ..Default::default() }).expect("program runs");
    question.rate
}

/// What `ecf` decides, without the rounding of the program; `None` if the decision depends on it: it counts whole
/// microseconds and, of fast paths, kilobytes.
fn ecf(question: &plait_question) -> Option<bool> {
    let burst_time =
        |path: &plait_path| f64::from(PLAIT_BURST) / (path.rate as f64) + f64::from(path.rtt) / 1e6;
    let (time, best) = (burst_time(&question.mine), burst_time(&question.best));
    if (time - 2.0 * best).abs() < 3e-6 {
        return None;
    }
    let factor = if question.is_open == 1 { 1.25 } else { 1.0 };
    let sending = f64::from(PLAIT_BURST) / question.mine.rate as f64;
    let is_near = question.mine.rtt_min <= 1000;
    if is_near && (sending - 0.2).abs() < 3e-6 {
        return None;
    }
    let open = time <= 2.0 * best || is_near && sending < 0.2;
    if !open && question.mine.rtt.min(question.mine.rtt_min) > question.best.rtt + 1_000_000 {
        return Some(false);
    }
    let start = f64::from(question.start) / 1e6;
    let time_with_start = sending.max(start) + f64::from(question.mine.rtt) / 1e6;
    let share = question.mine.rate as f64 / (question.mine.rate + question.best.rate) as f64;
    let expected = question.queued as f64 + question.busy_bytes as f64 * (share / 4.0).max(0.05);
    let trial = match (question.is_open, question.window_trials) {
        (0, trials @ 0..15) => question.busy_bytes as f64 / 32.0 / f64::from(1 << trials),
        _ => 0.0,
    };
    let buffer = (question.window as f64 * 1.25 * factor + trial).min(f64::from(question.send_buffer))
        + f64::from(PLAIT_BURST);
    // A closed one that is slow is opened for two bursts.
    if (sending - 0.3).abs() < 3e-6 {
        return None;
    }
    let another = if question.is_open == 0 && sending > 0.3 { sending } else { 0.0 };
    let time_with_another = time_with_start + another;
    let (rate, queued) = (question.best.rate as f64, expected * factor);
    let carried_over_limit = (rate * time_with_start / buffer).max(rate * time_with_another / queued);
    if !open && (carried_over_limit - 1.0).abs() < 0.01 + 1e-6 / time {
        return None;
    }
    Some(open || carried_over_limit <= 1.0)
}

/// A path of 8 kb/s to 800 Gb/s, and 1 us to 70 s.
fn any_path() -> impl Strategy<Value = plait_path> {
    let logarithmic = |min: f64, max: f64| (min..max).prop_map(f64::exp2);
    (logarithmic(10.0, 36.5), logarithmic(0.0, 26.0), 0.1..1.0).prop_map(|(rate, rtt, least)| plait_path {
        rate: rate as u64,
        rtt: rtt as u32,
        rtt_min: (rtt * least) as u32,
    })
}

fn any_question(scheduler: Scheduler) -> impl Strategy<Value = plait_question> {
    let bytes = || (0.0f64..34.0).prop_map(|exponent| exponent.exp2() as u64);
    let paths = (any_path(), any_path());
    (paths, [bytes(), bytes(), bytes(), bytes()], 0..4_000_000u32, 0..2u32, 0..16u32).prop_map(
        move |((mine, best), [queued, window, send_buffer, busy_bytes], start, is_open, window_trials)| {
            plait_question {
                mine,
                best,
                queued,
                window,
                send_buffer: send_buffer.try_into().unwrap_or(u32::MAX),
                busy_bytes,
                start,
                is_open,
                window_trials,
                scheduler: scheduler.number(),
                ..Zeroable::zeroed()
            }
        },
    )
}

#[test]
fn ecf_decides_as_the_model_does() {
    if !can_run("ecf_decides_as_the_model_does") {
        return;
    }
    let object = load();
    let decided = Cell::new(0);
    let config = Config { cases: 20_000, failure_persistence: None, ..Config::default() };
    let compared = TestRunner::new(config).run(&any_question(Scheduler::Ecf), |question| {
        if let Some(expected) = ecf(&question) {
            prop_assert_eq!(ask(&object, question), expected);
            decided.set(decided.get() + 1);
        }
        Ok(())
    });
    compared.expect("no difference");
    assert!(decided.get() > 15_000, "{decided:?}");
}

fn mbit(rate: f64, rtt_ms: f64) -> plait_path {
    let rtt = (rtt_ms * 1e3) as u32;
    plait_path { rate: (rate * 125e3) as u64, rtt, rtt_min: rtt }
}

fn question(scheduler: Scheduler, mine: plait_path, best: plait_path, bytes: u64) -> plait_question {
    plait_question {
        mine,
        best,
        queued: bytes,
        window: bytes,
        send_buffer: u32::MAX,
        scheduler: scheduler.number(),
        ..Zeroable::zeroed()
    }
}

#[test]
fn ecf_uses_equal_paths_and_slow_ones_only_beside_much_data() {
    if !can_run("ecf_uses_equal_paths_and_slow_ones_only_beside_much_data") {
        return;
    }
    let object = load();
    let is_open = |path, bytes| ask(&object, question(Scheduler::Ecf, path, mbit(20.0, 20.0), bytes));
    let is_open_with_window = |path, window| {
        ask(&object, plait_question { window, ..question(Scheduler::Ecf, path, mbit(20.0, 20.0), 9_000_000) })
    };
    assert!(is_open(mbit(20.0, 20.0), 0));
    assert!(is_open(mbit(40.0, 20.0), 0));
    assert!(!is_open(mbit(0.5, 100.0), 1_000_000));
    // Two bursts take 2.2 s there; the fast path carries 5.5 MB in that time.
    assert!(!is_open(mbit(0.5, 100.0), 5_400_000));
    assert!(is_open(mbit(0.5, 100.0), 5_600_000));
    // One that is open stays so for a fourth less than what is carried while one burst is sent.
    let stays_open = |bytes| {
        let question = question(Scheduler::Ecf, mbit(0.5, 100.0), mbit(20.0, 20.0), bytes);
        ask(&object, plait_question { is_open: 1, window: 9_000_000, ..question })
    };
    assert!(!stays_open(2_280_000) && stays_open(2_320_000));
    // While the window is full, the fast path loses what the slow one carries at most.
    assert!(!is_open_with_window(mbit(5.0, 50.0), 250_000));
    assert!(is_open_with_window(mbit(5.0, 50.0), 265_000));
    let is_open_with_send_buffer = |path, send_buffer| {
        ask(
            &object,
            plait_question { send_buffer, ..question(Scheduler::Ecf, path, mbit(20.0, 20.0), 9_000_000) },
        )
    };
    // So it does while the send buffer is, which is not to grow.
    assert!(!is_open_with_send_buffer(mbit(5.0, 50.0), 315_000));
    assert!(is_open_with_send_buffer(mbit(5.0, 50.0), 330_000));
}

#[test]
fn ecf_sends_a_burst_to_enlarge_the_receive_window() {
    if !can_run("ecf_sends_a_burst_to_enlarge_the_receive_window") {
        return;
    }
    let object = load();
    let base = question(Scheduler::Ecf, mbit(5.0, 50.0), mbit(20.0, 20.0), 9_000_000);
    let is_open = |busy_bytes, window_trials, is_open| {
        ask(&object, plait_question { window: 250_000, busy_bytes, window_trials, is_open, ..base })
    };
    // The fast path would send 387 kB meanwhile, and loses 9.2 kB of that: a thirty-second of 294 kB.
    assert!(!is_open(280_000, 0, 0) && is_open(310_000, 0, 0));
    assert!(!is_open(560_000, 1, 0) && is_open(620_000, 1, 0));
    assert!(is_open(1 << 40, 14, 0) && !is_open(1 << 40, 15, 0));
    // One that is open was to show it already; what the send buffer lacks, no peer can give.
    let is_limited = |is_open, send_buffer| {
        let question = plait_question { window: 200_000, busy_bytes: 1 << 40, is_open, send_buffer, ..base };
        !ask(&object, question)
    };
    assert!(is_limited(1, u32::MAX) && is_limited(0, 300_000) && !is_limited(0, 400_000));
}

#[test]
fn ecf_keeps_a_near_path_open_that_sends_a_burst_soon() {
    if !can_run("ecf_keeps_a_near_path_open_that_sends_a_burst_soon") {
        return;
    }
    let object = load();
    let is_open = |path| ask(&object, question(Scheduler::Ecf, path, mbit(1000.0, 0.1), 0));
    assert!(is_open(mbit(2.7, 0.9)));
    assert!(!is_open(mbit(2.6, 0.9)) && !is_open(mbit(2.7, 1.1)));
}

#[test]
fn ecf_starts_a_distant_path_only_beside_much_data() {
    if !can_run("ecf_starts_a_distant_path_only_beside_much_data") {
        return;
    }
    let object = load();
    let is_open = |bytes, start| {
        let question = question(Scheduler::Ecf, mbit(20.0, 200.0), mbit(20.0, 20.0), bytes);
        ask(&object, plait_question { start, window: 9_000_000, ..question })
    };
    // A burst takes 226 ms there, in which the other carries 566 kB; by a window that is small at first 600 ms.
    assert!(!is_open(560_000, 0) && is_open(570_000, 0));
    assert!(!is_open(1_490_000, 400_000) && is_open(1_510_000, 400_000));
}

#[test]
fn ecf_expects_long_transfers_to_go_on() {
    if !can_run("ecf_expects_long_transfers_to_go_on") {
        return;
    }
    let object = load();
    let is_open = |rate, busy_bytes| {
        let question = question(Scheduler::Ecf, mbit(rate, 200.0), mbit(20.0, 20.0), 9_000_000);
        ask(&object, plait_question { queued: 300_000, busy_bytes, ..question })
    };
    // 266 kB more, an eighth, as it carries half; 462 kB more, a twentieth.
    assert!(!is_open(20.0, 2_080_000) && is_open(20.0, 2_200_000));
    assert!(!is_open(5.0, 9_000_000) && is_open(5.0, 9_500_000));
}

#[test]
fn ecf_limits_a_late_path_to_little_more_than_its_rate() {
    if !can_run("ecf_limits_a_late_path_to_little_more_than_its_rate") {
        return;
    }
    let object = load();
    let limit = |mine| rate(&object, question(Scheduler::Ecf, mine, mbit(20.0, 20.0), 9_000_000));
    assert_eq!(limit(mbit(20.0, 200.0)), 3_125_000);
    assert_eq!(limit(mbit(20.0, 30.0)), PLAIT_UNLIMITED);
}

#[test]
fn weighted_limits_what_is_ahead_of_its_share() {
    if !can_run("weighted_limits_what_is_ahead_of_its_share") {
        return;
    }
    let object = load();
    let limit = |ahead: i64| {
        let question = question(Scheduler::Weighted, mbit(20.0, 20.0), mbit(20.0, 20.0), 1_000_000);
        rate(&object, plait_question { ahead, share_rate: 800_000, ..question })
    };
    assert_eq!((limit(-1), limit(0)), (PLAIT_UNLIMITED, PLAIT_UNLIMITED));
    assert_eq!((limit(100_000), limit(500_000)), (700_000, 300_000));
    assert_eq!((limit(700_000), limit(i64::MAX)), (100_000, 100_000));
}

#[test]
fn tiers_open_the_next_if_those_before_are_full_or_down() {
    if !can_run("tiers_open_the_next_if_those_before_are_full_or_down") {
        return;
    }
    let object = load();
    let is_open = |queued, preferred_rtt, is_open| {
        let question = question(Scheduler::Tiers, mbit(20.0, 20.0), mbit(20.0, 20.0), queued);
        let question = plait_question { preferred_rate: 2_500_000, preferred_rtt, is_open, ..question };
        ask(&object, question)
    };
    assert!(is_open(0, u32::MAX, 0));
    // 250 kB take the tiers before 100 ms.
    assert!(!is_open(249_000, 20_000, 0) && is_open(251_000, 20_000, 0));
    assert!(is_open(63_000, 20_000, 1) && !is_open(62_000, 20_000, 1));
}

#[test]
fn cheapest_first_adds_what_cheaper_paths_lack() {
    if !can_run("cheapest_first_adds_what_cheaper_paths_lack") {
        return;
    }
    let object = load();
    let limit = |preferred_rate, preferred_rtt, target_rate, target_rtt| {
        let question = question(Scheduler::CheapestFirst, mbit(20.0, 20.0), mbit(20.0, 20.0), 1_000_000);
        let question = plait_question { preferred_rate, preferred_rtt, target_rate, target_rtt, ..question };
        rate(&object, question)
    };
    assert_eq!(limit(500_000, u32::MAX, 0, 0), PLAIT_UNLIMITED);
    assert_eq!(limit(500_000, 20_000, 0, 0), 0);
    assert_eq!(limit(500_000, 20_000, 800_000, 0), 300_000);
    assert_eq!(limit(799_999, 20_000, 800_000, 0), PLAIT_MIN_RATE);
    assert_eq!(limit(800_000, 20_000, 800_000, 0), 0);
    assert_eq!(limit(800_000, 20_001, 800_000, 20_000), PLAIT_UNLIMITED);
    assert_eq!(limit(800_000, 20_000, 800_000, 20_000), 0);
}

#[test]
fn lowest_rtt_uses_the_path_with_the_lowest_least_time() {
    if !can_run("lowest_rtt_uses_the_path_with_the_lowest_least_time") {
        return;
    }
    let object = load();
    let ask = |mine, best, is_open| {
        let mut question = question(Scheduler::LowestRtt, mbit(1.0, mine), mbit(20.0, best), 0);
        question.is_open = u32::from(is_open);
        ask(&object, question)
    };
    assert!(ask(20.0, 30.0, false) && ask(20.0, 30.0, true));
    assert!(!ask(40.0, 30.0, false) && !ask(40.0, 30.0, true));
    // One that is open stays so while it is almost as good.
    assert!(ask(32.0, 30.0, true) && !ask(32.0, 30.0, false));
}

/// Checks the decisions about a thousand random questions.
fn check_random_questions(scheduler: Scheduler, check: impl Fn(plait_question) -> Result<(), TestCaseError>) {
    let config = Config { cases: 1000, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&any_question(scheduler), check).expect("each decision is as expected");
}

#[test]
fn all_closes_only_paths_whose_round_trip_is_too_long() {
    if !can_run("all_closes_only_paths_whose_round_trip_is_too_long") {
        return;
    }
    let object = load();
    check_random_questions(Scheduler::All, |question| {
        let least_rtt = question.mine.rtt.min(question.mine.rtt_min);
        prop_assert_eq!(ask(&object, question), least_rtt <= question.best.rtt + 1_000_000);
        Ok(())
    });
    let is_open = |rtt| ask(&object, question(Scheduler::All, mbit(0.01, rtt), mbit(20.0, 30.0), 100));
    assert!(is_open(1000.0) && !is_open(2000.0));
}

#[test]
fn off_opens_every_path() {
    if !can_run("off_opens_every_path") {
        return;
    }
    let object = load();
    check_random_questions(Scheduler::Off, |question| {
        prop_assert!(ask(&object, question));
        Ok(())
    });
}

/// Values that only a racing read without locks can return.
#[test]
fn extreme_values_end_in_a_decision() {
    if !can_run("extreme_values_end_in_a_decision") {
        return;
    }
    let object = load();
    let extremes = [0, 1, u64::from(u32::MAX), u64::MAX];
    let path = |rate: u64| plait_path { rate, rtt: rate as u32, rtt_min: rate as u32 };
    for scheduler in Scheduler::ALL {
        for (mine, best) in extremes.iter().flat_map(|mine| extremes.map(|best| (*mine, best))) {
            for bytes in extremes {
                let question = plait_question {
                    ahead: bytes as i64,
                    share_rate: best,
                    preferred_rate: mine,
                    preferred_rtt: best as u32,
                    target_rate: bytes,
                    target_rtt: mine as u32,
                    ..question(scheduler, path(mine), path(best), bytes)
                };
                rate(&object, question);
            }
        }
    }
}

macro_rules! plain {
    ($($name:ty),*) => {$(
        // SAFETY: integers only.
        unsafe impl Zeroable for $name {}
        // SAFETY: as above, and intf.h asserts that the size is the sum of the fields' sizes.
        unsafe impl Pod for $name {}
    )*};
}

plain!(plait_path, plait_question);
