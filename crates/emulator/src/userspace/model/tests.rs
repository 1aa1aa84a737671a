use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::probability::Probability;
use crate::spec::{Adjustment, Jitter, Loss, Pace};
use plait_config::Rate;

const MS: u64 = 1_000_000;

fn paced(rate: &str) -> DirectionSpec {
    DirectionSpec { pace: Pace::Rate(rate.parse().expect("a rate")), ..DirectionSpec::default() }
}

fn model(direction: DirectionSpec) -> Model<u32> {
    model_of(&LinkSpec::symmetric(direction))
}

fn model_of(spec: &LinkSpec) -> Model<u32> {
    Model::new(spec, 1, 0)
}

/// A delivered frame.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Out {
    due: u64,
    number: u32,
    frames: std::ops::Range<u32>,
}

fn all(model: &mut Model<u32>, direction: Direction, until: u64) -> Vec<Out> {
    std::iter::from_fn(|| model.pop_due(direction, until))
        .map(|in_flight| Out {
            due: in_flight.due,
            number: in_flight.part.payload,
            frames: in_flight.part.frames,
        })
        .collect()
}

fn dues(model: &mut Model<u32>, direction: Direction, until: u64) -> Vec<u64> {
    all(model, direction, until).iter().map(|out| out.due).collect()
}

/// Polls whenever the model has something due, as the thread does.
fn polled_when_due(model: &mut Model<u32>, direction: Direction, until: u64) -> Vec<Out> {
    let mut out = Vec::new();
    let mut now = 0;
    while let Some(next) = model.next().filter(|next| *next <= until) {
        now = next.max(now);
        out.extend(all(model, direction, now));
    }
    out
}

#[test]
fn a_frame_arrives_after_its_transmission_and_the_delay() {
    let mut model = model(DirectionSpec { delay: Duration::from_millis(20), ..paced("1mbit") });
    model.enqueue(Direction::AToB, 5 * MS, Train::single(1250), 0);
    assert_eq!(model.next(), Some(35 * MS));
    assert!(dues(&mut model, Direction::AToB, 35 * MS - 1).is_empty());
    assert_eq!(dues(&mut model, Direction::AToB, 35 * MS), [35 * MS]);
    assert_eq!(model.next(), None);
}

#[test]
fn the_rate_is_exact_at_any_polling_interval() {
    let direction = DirectionSpec { queue: Some(u64::MAX), ..paced("2.74mbit") };
    let mut early = model(direction.clone());
    let mut late = model(direction);
    let frames = 10_000;
    for number in 0..frames {
        for model in [&mut early, &mut late] {
            model.enqueue(Direction::AToB, u64::from(number), Train::single(1514), number);
        }
    }
    let early = polled_when_due(&mut early, Direction::AToB, u64::MAX);
    assert_eq!(early, all(&mut late, Direction::AToB, u64::MAX));
    let bits = u64::from(frames) * 1514 * 8;
    assert_eq!(early.last().map(|out| out.due), Some(bits * 1_000_000_000 / 2_740_000));
}

#[test]
fn a_new_rate_applies_to_the_rest_of_the_current_frame() {
    let mut model = model(paced("1mbit"));
    for number in 0..2 {
        model.enqueue(Direction::AToB, 0, Train::single(1250), number);
    }
    // After 4 of its 10 ms, 6000 of 10000 bits remain, which take 3 ms at twice the rate.
    let pace = Pace::Rate(Rate::mbit(2));
    let adjustment = Adjustment { pace: Some(pace), ..Adjustment::default() };
    model.apply(&Change::Adjust(Toward::B, adjustment), 4 * MS);
    assert_eq!(dues(&mut model, Direction::AToB, 100 * MS), [7 * MS, 12 * MS]);
}

#[test]
fn an_adjustment_changes_only_its_direction() {
    let mut model = model(DirectionSpec::default());
    let delay = |ms| Adjustment { delay: Some(Duration::from_millis(ms)), ..Adjustment::default() };
    model.apply(&Change::Adjust(Toward::A, delay(10)), 0);
    model.apply(&Change::Adjust(Toward::B, delay(20)), 0);
    for direction in Direction::BOTH {
        model.enqueue(direction, 0, Train::single(100), 0);
    }
    assert_eq!(dues(&mut model, Direction::BToA, 100 * MS), [10 * MS]);
    assert_eq!(dues(&mut model, Direction::AToB, 100 * MS), [20 * MS]);
}

#[test]
fn a_shorter_delay_does_not_reorder() {
    let mut model = model(DirectionSpec { delay: Duration::from_millis(50), ..DirectionSpec::default() });
    model.enqueue(Direction::AToB, 0, Train::single(100), 0);
    let adjustment = Adjustment { delay: Some(Duration::ZERO), ..Adjustment::default() };
    model.apply(&Change::Adjust(Toward::Each, adjustment), 10 * MS);
    model.enqueue(Direction::AToB, 20 * MS, Train::single(100), 1);
    assert_eq!(dues(&mut model, Direction::AToB, 100 * MS), [50 * MS, 50 * MS]);
}

#[test]
fn a_blackhole_drops_arriving_queued_and_in_flight_frames() {
    let mut model = model(DirectionSpec { delay: Duration::from_millis(10), ..paced("1mbit") });
    for (number, at) in [(0, 0), (1, 0), (2, 0)] {
        model.enqueue(Direction::AToB, at, Train::single(1250), number);
    }
    // One frame has arrived, one is in flight, one is in transmission.
    assert_eq!(dues(&mut model, Direction::AToB, 20 * MS), [20 * MS]);
    model.apply(&Change::Blackhole, 25 * MS);
    model.enqueue(Direction::AToB, 26 * MS, Train::single(1250), 3);
    assert_eq!(model.next(), None);
    assert_eq!(model.counters(Direction::AToB).no_path, 3);
    model.apply(&Change::Restore, 30 * MS);
    model.enqueue(Direction::AToB, 30 * MS, Train::single(1250), 4);
    assert_eq!(dues(&mut model, Direction::AToB, 100 * MS), [50 * MS]);
}

#[test]
fn traffic_needs_a_carrier_and_no_blackhole() {
    let mut model = model(DirectionSpec::default());
    let changes = [Change::Carrier(false), Change::Blackhole, Change::Carrier(true), Change::Restore];
    let passes = changes.map(|change| {
        model.apply(&change, 0);
        model.enqueue(Direction::BToA, 0, Train::single(100), 0);
        model.pop_due(Direction::BToA, 0).is_some()
    });
    assert_eq!(passes, [false, false, false, true]);
}

#[test]
fn a_shared_medium_alternates_between_directions() {
    let per_frame = Duration::from_millis(1);
    let spec = LinkSpec { medium: Medium::HalfDuplex { per_frame }, ..LinkSpec::symmetric(paced("1mbit")) };
    let mut model = model_of(&spec);
    for number in 0..3 {
        model.enqueue(Direction::AToB, 0, Train::single(1250), number);
    }
    model.enqueue(Direction::BToA, MS, Train::single(1250), 0);
    model.enqueue(Direction::BToA, MS, Train::single(1250), 1);
    assert_eq!(dues(&mut model, Direction::AToB, 1000 * MS), [11 * MS, 33 * MS, 55 * MS]);
    assert_eq!(dues(&mut model, Direction::BToA, 1000 * MS), [22 * MS, 44 * MS]);
}

#[test]
fn a_train_counts_as_its_frames() {
    let mut model = model(DirectionSpec { queue: Some(4000), ..paced("1gbit") });
    model.enqueue(Direction::AToB, 0, Train { frames: 4, each: 1500, last: 800 }, 0);
    // 4000 bytes hold two full frames and the short one.
    let out = all(&mut model, Direction::AToB, MS);
    assert_eq!(out.iter().map(|out| out.frames.clone()).collect::<Vec<_>>(), [0..2, 3..4]);
    assert_eq!(out.iter().map(|out| out.due).collect::<Vec<_>>(), [24_000, 30_400]);
    let counters = model.counters(Direction::AToB);
    assert_eq!(
        (counters.frames_in, counters.bytes_in, counters.queue_full, counters.queue_max_bytes),
        (4, 5300, 1, 3800)
    );
}

#[test]
fn a_train_lasts_at_most_200_us() {
    let train = Train { frames: 44, each: 1514, last: 1000 };
    let longest = |rate| {
        let mut model = model(DirectionSpec { queue: Some(1 << 20), ..paced(rate) });
        model.enqueue(Direction::AToB, 0, train, 0);
        all(&mut model, Direction::AToB, u64::MAX).iter().map(|out| out.frames.len()).max()
    };
    assert_eq!(longest("100mbit"), Some(1));
    assert_eq!(longest("200mbit"), Some(3));
    assert_eq!(longest("1gbit"), Some(16));
    assert_eq!(longest("10gbit"), Some(44));
}

#[test]
fn the_default_queue_holds_100_ms() {
    let holds = |pace| {
        let mut model = model(DirectionSpec { pace, ..DirectionSpec::default() });
        for number in 0..2000 {
            model.enqueue(Direction::AToB, 0, Train::single(1000), number);
        }
        model.counters(Direction::AToB).queue_max_bytes
    };
    let trace =
        |ms: &[u64]| Pace::Trace(std::sync::Arc::new(crate::trace::Trace { opportunities: ms.to_vec() }));
    assert_eq!(holds(Pace::Rate(Rate::mbit(100))), 1_250_000);
    assert_eq!(holds(Pace::Rate(Rate::mbit(1))), 30_000);
    // Three opportunities in 4 ms carry 112,800 bytes in 100 ms.
    assert_eq!(holds(trace(&[1, 2, 4])), 112_000);
    assert_eq!(holds(trace(&[1000])), 30_000);
}

/// Sends at 120 % of the rate for 200 s. A sixth must be dropped; RED reaches this probability at a mean queue length
/// slightly above a third of the queue, so the queue never fills up.
#[test]
fn red_drops_the_excess_early() {
    const FRAMES: u64 = 200 * 2000;
    let direction = DirectionSpec { queue: Some(120_000), red: true, ..paced("20mbit") };
    let mut model = model(direction);
    let mut waits = Vec::new();
    for number in 0..FRAMES {
        let now = number * 500_000;
        model.enqueue(Direction::AToB, now, Train::single(1500), number as u32);
        let out = all(&mut model, Direction::AToB, now);
        waits.extend(out.iter().map(|out| out.due - u64::from(out.number) * 500_000));
    }
    let counters = model.counters(Direction::AToB);
    let dropped = counters.early as f64 / FRAMES as f64;
    assert!((dropped - 1.0 / 6.0).abs() < 0.002, "{dropped}");
    assert_eq!(counters.queue_full, 0);
    // 43 kB at 20 Mb/s.
    let settled = &waits[waits.len() / 10..];
    let mean = settled.iter().sum::<u64>() as f64 / settled.len() as f64 / MS as f64;
    assert!((16.0..18.5).contains(&mean), "{mean} ms");
}

#[test]
fn memory_in_flight_is_limited() {
    let mut model = model(DirectionSpec { delay: Duration::MAX, ..DirectionSpec::default() });
    for number in 0..200_000 {
        model.enqueue(Direction::AToB, 0, Train::single(60), number);
    }
    let most = (256 << 20) / 1500;
    assert_eq!(model.counters(Direction::AToB).queue_full, 200_000 - most);
}

#[test]
fn trains_are_accepted_only_at_high_rates() {
    let reorder = Jitter { deviation: Duration::from_millis(1), reorder: true };
    let takes = |direction, medium| {
        model_of(&LinkSpec { medium, ..LinkSpec::symmetric(direction) }).accepts_trains(Direction::AToB)
    };
    assert!(takes(paced("200mbit"), Medium::FullDuplex));
    assert!(takes(DirectionSpec::default(), Medium::FullDuplex));
    assert!(!takes(paced("199mbit"), Medium::FullDuplex));
    assert!(!takes(paced("200mbit"), Medium::HalfDuplex { per_frame: Duration::ZERO }));
    assert!(!takes(DirectionSpec { jitter: reorder, ..DirectionSpec::default() }, Medium::FullDuplex));
}

fn any_loss() -> impl Strategy<Value = Loss> {
    let probability = || (0.0..=1.0).prop_map(|value| Probability::new(value).expect("from 0 to 1"));
    prop_oneof![
        Just(Loss::default()),
        probability().prop_map(Loss::Random),
        (probability(), probability(), probability(), probability()).prop_map(
            |(enter_bad, leave_bad, in_good, in_bad)| Loss::GilbertElliott {
                enter_bad,
                leave_bad,
                in_good,
                in_bad
            }
        ),
    ]
}

fn any_pace() -> impl Strategy<Value = Pace> {
    prop_oneof![
        Just(Pace::Unlimited),
        (100_000_u64..2_000_000_000)
            .prop_map(|bits| Pace::Rate(format!("{bits}bit").parse().expect("a rate"))),
    ]
}

fn any_direction() -> impl Strategy<Value = DirectionSpec> {
    (
        any_pace(),
        0_u64..50,
        (0_u64..5, any::<bool>()),
        any_loss(),
        0.0..0.3,
        (prop::option::of(0_u64..100_000), any::<bool>()),
    )
        .prop_map(|(pace, delay, (deviation, reorder), loss, duplication, (queue, red))| DirectionSpec {
            pace,
            delay: Duration::from_millis(delay),
            jitter: Jitter { deviation: Duration::from_millis(deviation), reorder },
            loss,
            duplication: Probability::new(duplication).expect("from 0 to 1"),
            queue,
            red,
        })
}

fn any_medium() -> impl Strategy<Value = Medium> {
    prop_oneof![
        Just(Medium::FullDuplex),
        (0_u64..500).prop_map(|us| Medium::HalfDuplex { per_frame: Duration::from_micros(us) })
    ]
}

#[derive(Debug, Clone)]
enum Step {
    Enter { b_to_a: bool, frames: u32, each: u32 },
    Take,
    Apply(Change),
}

fn any_step() -> impl Strategy<Value = Step> {
    let adjust = (any_pace(), 0_u64..30, prop::option::of(0_u64..50_000)).prop_map(|(pace, delay, queue)| {
        let delay = Some(Duration::from_millis(delay));
        Step::Apply(Change::Adjust(
            Toward::Each,
            Adjustment { pace: Some(pace), delay, queue, ..Adjustment::default() },
        ))
    });
    prop_oneof![
        20 => (any::<bool>(), 1_u32..44, 60_u32..1515)
            .prop_map(|(b_to_a, frames, each)| Step::Enter { b_to_a, frames, each }),
        10 => Just(Step::Take),
        1 => Just(Step::Apply(Change::Blackhole)),
        2 => Just(Step::Apply(Change::Restore)),
        1 => adjust,
    ]
}

proptest! {
    #[test]
    fn frames_are_conserved_and_in_order(
        a_to_b in any_direction(),
        b_to_a in any_direction(),
        medium in any_medium(),
        steps in prop::collection::vec((0_u64..3 * MS, any_step()), 1..200),
    ) {
        let reorder = [a_to_b.jitter.reorder, b_to_a.jitter.reorder];
        let mut model: Model<(u32, u64)> = Model::new(&LinkSpec { a_to_b, b_to_a, medium, ..LinkSpec::default() }, 1, 0);
        let (mut now, mut out, mut last) = (0, [0; 2], [(0, 0); 2]);
        let mut number = 0;
        let end = (u64::MAX / 2, Step::Take);
        for (gap, step) in steps.into_iter().chain([end]) {
            now += gap;
            match step {
                Step::Enter { b_to_a, frames, each } => {
                    let direction = if b_to_a { Direction::BToA } else { Direction::AToB };
                    number += 1;
                    model.enqueue(direction, now, Train { frames, each, last: each }, (number, now));
                }
                Step::Apply(change) => model.apply(&change, now),
                Step::Take => {
                    for direction in Direction::BOTH {
                    while let Some(in_flight) = model.pop_due(direction, now) {
                        let index = direction.index();
                        let (number, came) = in_flight.part.payload;
                        out[index] += in_flight.part.frames.len() as u64;
                        prop_assert!(came <= in_flight.due && in_flight.due <= now);
                        let place = (number, in_flight.part.frames.start);
                        if !reorder[index] {
                            prop_assert!(last[index] <= place, "{:?} before {place:?}", last[index]);
                        }
                        last[index] = place;
                    }
                    }
                    prop_assert!(model.next().is_none_or(|next| next > now));
                }
            }
        }
        for direction in Direction::BOTH {
            let counters = model.counters(direction);
            prop_assert_eq!(
                counters.frames_in + counters.duplicated,
                out[direction.index()] + counters.lost + counters.early + counters.queue_full + counters.no_path
            );
        }
    }

    /// Compares with a simulation that decides on arrival: a frame is transmitted after the previous one, and is
    /// dropped if the untransmitted bytes leave no room for it.
    #[test]
    fn equals_a_fifo_queue_with_one_server(
        bits in 100_000_u64..1_000_000_000,
        delay in 0_u64..50 * MS,
        limit in 1_000_u64..50_000,
        frames in prop::collection::vec((0_u64..2 * MS, 60_u32..1515), 1..300),
    ) {
        let direction = DirectionSpec {
            pace: Pace::Rate(format!("{bits}bit").parse().expect("a rate")),
            delay: Duration::from_nanos(delay),
            queue: Some(limit),
            ..DirectionSpec::default()
        };
        let mut model = model(direction);
        let (mut now, mut expected, mut sent) = (0_u128, Vec::new(), Vec::<(u128, u64)>::new());
        let (mut found, mut full) = (Vec::new(), 0);
        // In units of 1 / bits nanoseconds, all values are whole.
        let (unit, mut free) = (u128::from(bits), 0);
        for (number, (gap, bytes)) in frames.iter().enumerate() {
            now += u128::from(*gap);
            let waiting: u64 = sent.iter().filter(|(end, _)| end / unit > now).map(|(_, bytes)| bytes).sum();
            if waiting + u64::from(*bytes) > limit {
                full += 1;
            } else {
                free = free.max(now * unit) + u128::from(*bytes) * 8 * 1_000_000_000;
                sent.push((free, u64::from(*bytes)));
                expected.push((number as u32, (free / unit) as u64 + delay));
            }
            model.enqueue(Direction::AToB, now as u64, Train::single(*bytes), number as u32);
            prop_assert!(model.counters(Direction::AToB).queue_max_bytes <= limit);
            found.extend(all(&mut model, Direction::AToB, now as u64));
        }
        found.extend(polled_when_due(&mut model, Direction::AToB, u64::MAX));
        let found: Vec<_> = found.iter().map(|out| (out.number, out.due)).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(model.counters(Direction::AToB).queue_full, full);
    }

    /// Splitting a train only changes the arrival times of its first frames.
    #[test]
    fn a_train_arrives_with_its_last_single_frame(
        rate in 1_u32..40,
        trains in prop::collection::vec((0_u64..MS, 1_u32..44, 60_u32..1515), 1..50),
    ) {
        let direction = DirectionSpec { queue: Some(u64::MAX), ..paced(&format!("{}mbit", rate * 50)) };
        let (mut whole, mut single) = (model(direction.clone()), model(direction));
        let mut now = 0;
        for (number, (gap, frames, each)) in (0..).zip(trains) {
            now += gap;
            whole.enqueue(Direction::AToB, now, Train { frames, each, last: each }, number);
            for _ in 0..frames {
                single.enqueue(Direction::AToB, now, Train::single(each), number);
            }
        }
        let whole = all(&mut whole, Direction::AToB, u64::MAX);
        let single = dues(&mut single, Direction::AToB, u64::MAX);
        let mut counted = 0;
        for out in whole {
            counted += out.frames.len();
            prop_assert_eq!(out.due, single[counted - 1]);
        }
        prop_assert_eq!(counted, single.len());
    }
}
