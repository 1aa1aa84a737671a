//! Computes the value of each measure for one repetition.

use std::ops::Range;
use std::time::Duration;

use plait_config::Role;
use plait_trace::{DurationStats, Jitter, Payload, SHINGLE_LEN, readable};
use plait_wire::capture::Timestamp;
use serde_json::Value;

use super::measure::{Measure, Selection, Statistic, Window};
use super::observations::{Chosen, INTERVAL, Observations};
use super::results::StepResult;
use super::statistics::{Summary, median};

/// The value of a measure; `None` if what it measures did not occur. Metrics derived from other metrics are computed
/// elsewhere.
///
/// # Errors
/// The value could not be measured; the text is the reason.
pub(super) fn value(measure: &Measure, observations: &Observations) -> Result<Option<f64>, String> {
    Ok(match measure {
        Measure::Throughput(of, window) => {
            rate(&observations.choose(of)?, window, observations, |counts| counts.bytes)
        }
        Measure::Goodput(of, window) => {
            rate(&observations.choose(of)?, window, observations, |counts| counts.new)
        }
        Measure::ActiveThroughput(of, window, statistic) => {
            let chosen = observations.choose(of)?;
            let limits = limits(window, observations.clock);
            let from = if window.from.is_some() { limits.start } else { chosen.start() };
            let to = if window.to.is_some() { limits.end } else { chosen.end() };
            let intervals = chosen.intervals().map(|interval| (interval.start, interval.counts.bytes));
            over_active_seconds(&active_seconds(intervals, &(from..to)), *statistic)
        }
        Measure::Share(of, window) => {
            let all = Selection { paths: Vec::new(), subflow: None, ..of.clone() };
            let bytes = |of| {
                let chosen = observations.choose(of)?;
                Ok::<_, String>(bytes(&chosen, &limits(window, observations.clock), |counts| counts.bytes))
            };
            let (part, whole) = (bytes(of)?, bytes(&all)?);
            (whole > 0.0).then(|| part / whole)
        }
        Measure::Subflows(of) => {
            let accepted = |chosen: Chosen| chosen.subflows().filter(|subflow| subflow.accepted).count();
            Some(accepted(observations.choose(of)?) as f64)
        }
        Measure::RoundTrip(of, statistic) => {
            let chosen = observations.choose(of)?;
            let times = chosen.subflows().filter_map(|subflow| subflow.rtt(chosen.direction));
            pooled(times.filter_map(|rtt| TimeStats::of(rtt.times)), *statistic)
        }
        Measure::HeadOfLine(of, statistic) => {
            let chosen = observations.choose(of)?;
            let stream = chosen.connection.stream(chosen.direction);
            let times = chosen.subflows.iter().filter_map(|index| stream.head_of_line(*index));
            pooled(times.filter_map(TimeStats::of), *statistic)
        }
        Measure::Jitter(of) => {
            let chosen = observations.choose(of)?;
            let sent = chosen.subflows().map(|subflow| subflow.sent(chosen.direction));
            mean_jitter(sent.filter_map(|sent| sent.arrivals.as_ref()?.jitter.as_ref()))
        }
        Measure::LongestGap(of, window) => {
            let chosen = observations.choose(of)?;
            let mut advances = chosen.advances();
            if chosen.connection.completion(chosen.direction).is_none() {
                // Data that never arrived counts as awaited until the end of the connection.
                advances.push(chosen.end());
            }
            longest_gap(&advances, &limits(window, observations.clock))
        }
        Measure::FirstData(of, after) => {
            let event = observations.events.iter().find(|(at, _)| at == after);
            let (_, event) = event.ok_or_else(|| {
                format!("the event at {} s had not happened when the steps ended", after.as_secs_f64())
            })?;
            let chosen = observations.choose(of)?;
            let carrying = chosen.intervals().filter(|interval| interval.counts.bytes > 0);
            first_after(carrying.map(|interval| interval.start), *event)
        }
        Measure::Completion(of) => {
            let chosen = observations.choose(of)?;
            chosen.connection.completion(chosen.direction).map(|time| time.as_secs_f64())
        }
        Measure::Retransmitted(of) => {
            let chosen = observations.choose(of)?;
            Some(
                chosen
                    .subflows()
                    .map(|subflow| subflow.sent(chosen.direction).retransmitted.bytes)
                    .sum::<u64>() as f64,
            )
        }
        Measure::Reinjected(of) => {
            let chosen = observations.choose(of)?;
            Some(
                chosen.subflows().map(|subflow| subflow.sent(chosen.direction).reinjected.bytes).sum::<u64>()
                    as f64,
            )
        }
        Measure::Survived(of) => {
            let chosen = observations.choose(of)?;
            let last_event = observations.events.iter().map(|(_, time)| *time).max();
            let arrived = chosen.connection.completion(chosen.direction).is_some()
                || chosen.advances().last() > last_event.as_ref();
            Some(bool_to_f64(arrived && observations.steps.iter().all(|step| step.error.is_none())))
        }
        Measure::FirstFlightTrusted(of) => first_flight_trusted(observations, of)?.map(bool_to_f64),
        Measure::Exposure(of) => {
            let (found, connection, direction) = observations.choose_by_link(of)?;
            let stream = connection.stream(direction);
            let exposed = |path: &String| found.path(path).map(|path| stream.exposure(path).fraction);
            of.paths.first().and_then(exposed)
        }
        Measure::Readable { of, document } => {
            let path = observations.directory.join(document);
            let text = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let (found, connection, direction) = observations.choose_by_link(of)?;
            let Some((name, id)) = of.paths.first().and_then(|path| Some((path, found.path(path)?))) else {
                return Ok(None);
            };
            let stream = connection.stream(direction);
            Some(readable_fraction(&text, stream.payload(id), stream.exposure(id).bytes, name)?)
        }
        Measure::Seconds { step } => Some(step_result(step, observations)?.duration_s),
        Measure::Json { step, pointer, element, field } => {
            Some(in_json(&step_result(step, observations)?.stdout, pointer, element, field)?)
        }
        Measure::Counter { host, counter } => {
            let counter_increments =
                observations.counters.get(host).and_then(|counters| counters.get(counter));
            Some(
                *counter_increments.ok_or_else(|| format!("the kernel of {host} has no counter {counter}"))?
                    as f64,
            )
        }
        Measure::Ratio { .. } | Measure::Gain { .. } | Measure::Sum(_) => None,
    })
}

fn bool_to_f64(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

fn step_result<'a>(step: &str, observations: &'a Observations) -> Result<&'a StepResult, String> {
    let run = observations.steps.iter().find(|run| run.step == step);
    run.ok_or_else(|| format!("the step {step} did not run"))
}

/// The bounds of a window in capture time.
fn limits(window: &Window, clock: Timestamp) -> Range<Timestamp> {
    let at = |time: Duration| Timestamp(clock.0.saturating_add(time.as_nanos() as u64));
    window.from.map_or(Timestamp(0), at)..window.to.map_or(Timestamp(u64::MAX), at)
}

/// The connection's rate within a window, in megabits per second.
fn rate(
    chosen: &Chosen,
    window: &Window,
    observations: &Observations,
    counted: fn(&plait_trace::IntervalCounts) -> u64,
) -> Option<f64> {
    let limits = limits(window, observations.clock);
    let completed = chosen.connection.completion(chosen.direction);
    let end = match completed {
        Some(time) => Timestamp(chosen.start().0 + time.as_nanos() as u64),
        None => chosen.end(),
    };
    let start = if window.from.is_some() { limits.start } else { chosen.start() };
    let end = if window.to.is_some() { limits.end } else { end };
    let seconds = end.since(start)?.as_secs_f64();
    (seconds > 0.0).then(|| bytes(chosen, &limits, counted) * 8.0 / 1e6 / seconds)
}

fn bytes(
    chosen: &Chosen,
    limits: &Range<Timestamp>,
    counted: fn(&plait_trace::IntervalCounts) -> u64,
) -> f64 {
    bytes_within(chosen.intervals().map(|interval| (interval.start, counted(&interval.counts))), limits)
}

/// The bytes of the intervals within `limits`. The bytes of an interval that crosses a limit count in proportion to
/// the overlap.
fn bytes_within(intervals: impl Iterator<Item = (Timestamp, u64)>, limits: &Range<Timestamp>) -> f64 {
    let length = INTERVAL.as_nanos() as u64;
    let within = |(start, bytes): (Timestamp, u64)| {
        let end = start.0 + length;
        let common = end.min(limits.end.0).saturating_sub(start.0.max(limits.start.0));
        bytes as f64 * common as f64 / length as f64
    };
    // The sum of nothing is -0.
    intervals.map(within).sum::<f64>() + 0.0
}

/// The rates, in megabits per second, of the whole seconds within `limits` in which something was carried.
fn active_seconds(intervals: impl Iterator<Item = (Timestamp, u64)>, limits: &Range<Timestamp>) -> Vec<f64> {
    const SECOND: u64 = 1_000_000_000;
    let seconds = limits.end.0.saturating_sub(limits.start.0) / SECOND;
    let mut bytes = vec![0.0; usize::try_from(seconds).unwrap_or_default()];
    for (start, carried) in intervals {
        let second =
            start.0.checked_sub(limits.start.0).and_then(|since| usize::try_from(since / SECOND).ok());
        if let Some(bytes) = second.and_then(|second| bytes.get_mut(second)) {
            *bytes += carried as f64;
        }
    }
    bytes.into_iter().filter(|bytes| *bytes > 0.0).map(|bytes| bytes * 8.0 / 1e6).collect()
}

fn over_active_seconds(rates: &[f64], statistic: Statistic) -> Option<f64> {
    let summary = Summary::of(rates);
    match statistic {
        Statistic::Mean => summary.mean,
        Statistic::Stddev => summary.stddev,
        Statistic::Min => summary.min,
        Statistic::Max => summary.max,
    }
}

/// Statistics of the times of one subflow.
struct TimeStats {
    count: f64,
    mean: f64,
    sigma: f64,
    min: f64,
    max: f64,
}

impl TimeStats {
    /// `None` if there are no times.
    fn of(times: &DurationStats) -> Option<Self> {
        let ms = |time: Duration| time.as_nanos() as f64 / 1e6;
        Some(Self {
            count: times.count() as f64,
            mean: ms(times.mean()?),
            sigma: ms(times.stddev()?),
            min: ms(times.min()?),
            max: ms(times.max()?),
        })
    }
}

/// A statistic of the times of several subflows, pooled as one population.
fn pooled(parts: impl Iterator<Item = TimeStats>, statistic: Statistic) -> Option<f64> {
    let parts: Vec<_> = parts.collect();
    let count: f64 = parts.iter().map(|part| part.count).sum();
    if count == 0.0 {
        return None;
    }
    let mean = parts.iter().map(|part| part.count * part.mean).sum::<f64>() / count;
    match statistic {
        Statistic::Mean => Some(mean),
        Statistic::Stddev => {
            let squares = |part: &TimeStats| part.count * (part.sigma.powi(2) + (part.mean - mean).powi(2));
            Some((parts.iter().map(squares).sum::<f64>() / count).sqrt())
        }
        Statistic::Min => parts.iter().map(|part| part.min).reduce(f64::min),
        Statistic::Max => parts.iter().map(|part| part.max).reduce(f64::max),
    }
}

/// The mean jitter of several subflows, in ms, in which all packets count alike.
fn mean_jitter<'a>(subflows: impl Iterator<Item = &'a Jitter>) -> Option<f64> {
    let (mut samples, mut sum) = (0, 0.0);
    for jitter in subflows {
        samples += jitter.samples();
        sum += jitter.samples() as f64 * jitter.mean().as_secs_f64() * 1e3;
    }
    (samples > 0).then(|| sum / samples as f64)
}

/// The longest gap between consecutive times that begins within `limits`, in seconds; `None` for fewer than two
/// times. `times` ascend.
fn longest_gap(times: &[Timestamp], limits: &Range<Timestamp>) -> Option<f64> {
    let gaps = times.windows(2).filter(|pair| limits.contains(&pair[0]));
    let gaps = gaps.filter_map(|pair| pair[1].since(pair[0]));
    gaps.max().map(|gap| gap.as_secs_f64())
}

/// Seconds from an event to the first of `times` after it.
fn first_after(times: impl Iterator<Item = Timestamp>, event: Timestamp) -> Option<f64> {
    times.filter_map(|time| time.since(event)).min().map(|time| time.as_secs_f64())
}

/// Whether no untrusted path carried payload before the client's first flight was acknowledged; `None` if there are such paths and
/// none carried any.
fn first_flight_trusted(observations: &Observations, of: &Selection) -> Result<Option<bool>, String> {
    let (found, connection, _) = observations.choose_by_link(of)?;
    let untrusted = found.paths().filter(|(_, path)| path.role == Role::Untrusted);
    let untrusted: Vec<_> = untrusted.map(|(path, _)| path).collect();
    let is_shown =
        untrusted.is_empty() || untrusted.iter().any(|path| connection.first_payload(*path).is_some());
    Ok(is_shown.then(|| untrusted.iter().all(|path| connection.first_flight_precedes(*path))))
}

/// The share of a document that is readable in the payload of a path, which `crossed` bytes of the stream crossed.
///
/// # Errors
/// The document has no shingle to look for, or the rest of it may be in what was not captured.
fn readable_fraction(text: &[u8], payload: &Payload, crossed: u64, path: &str) -> Result<f64, String> {
    let found = readable(text, payload);
    if found.distinct == 0 {
        return Err(format!("expected a document of at least {SHINGLE_LEN} bytes, got {}", text.len()));
    }
    let captured = payload.present().total();
    if captured < crossed && found.found < found.distinct {
        let missing = 100.0 * (crossed - captured) as f64 / crossed as f64;
        return Err(format!(
            "cannot judge: {missing:.1} % of what crossed {path} was not captured; set `snaplen = 65535` in [capture]"
        ));
    }
    Ok(found.fraction())
}

/// The number at a JSON pointer of a text; the median if the text contains several JSON documents.
fn in_json(text: &str, pointer: &str, element: &[(String, Value)], field: &str) -> Result<f64, String> {
    let documents = serde_json::Deserializer::from_str(text).into_iter();
    let numbers = documents.map(|document| {
        let document = document.map_err(|error| format!("expected JSON: {error}"))?;
        in_document(&document, pointer, element, field)
    });
    median(numbers.collect::<Result<_, _>>()?).ok_or_else(|| "expected JSON, got nothing".into())
}

fn in_document(
    document: &Value,
    pointer: &str,
    element: &[(String, Value)],
    field: &str,
) -> Result<f64, String> {
    let found =
        document.pointer(pointer).ok_or_else(|| format!("expected something at {pointer}, got nothing"))?;
    let found = if element.is_empty() { found } else { in_list(found, pointer, element, field)? };
    let as_written = || found.as_str().and_then(|text| text.parse().ok());
    let number = found.as_f64().or_else(|| found.as_bool().map(bool_to_f64)).or_else(as_written);
    let number = number.filter(|number| number.is_finite());
    number.ok_or_else(|| format!("expected a number at {pointer}{field}, got {found}"))
}

fn in_list<'a>(
    list: &'a Value,
    pointer: &str,
    element: &[(String, Value)],
    field: &str,
) -> Result<&'a Value, String> {
    let list = list.as_array().ok_or_else(|| format!("expected a list at {pointer}, got none"))?;
    let fits = |object: &&Value| {
        element.iter().all(|(name, value)| object.get(name).is_some_and(|it| same(it, value)))
    };
    let fitting: Vec<_> = list.iter().filter(fits).collect();
    let [object] = fitting[..] else {
        return Err(format!("expected one element at {pointer} as wanted, got {}", fitting.len()));
    };
    object.pointer(field).ok_or_else(|| format!("expected something at {field} of the element, got nothing"))
}

/// Whether two values are equal; 1280 equals 1280.0.
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const MS: u64 = 1_000_000;

    #[test]
    fn bytes_of_an_interval_that_crosses_a_limit_count_in_part() {
        let intervals =
            [(100, 1000), (110, 2000), (120, 4000)].map(|(at, bytes)| (Timestamp(at * MS), bytes));
        let within =
            |from: u64, to: u64| bytes_within(intervals.into_iter(), &(Timestamp(from)..Timestamp(to)));
        assert_eq!(within(0, u64::MAX), 7000.0);
        assert_eq!(within(110 * MS, 120 * MS), 2000.0);
        assert_eq!(within(105 * MS, 115 * MS), 500.0 + 1000.0);
        assert_eq!(within(112 * MS, 114 * MS), 400.0);
        assert_eq!(within(200 * MS, 300 * MS), 0.0);
        assert_eq!(within(130 * MS, 110 * MS), 0.0);
    }

    proptest! {
        /// The bytes of adjacent windows add up to the bytes of both together.
        #[test]
        fn nothing_counts_twice_or_never(
            given in prop::collection::vec((0..300u64, 0..10_000u64), 0..40),
            cut in 0..3000u64,
        ) {
            let intervals = || given.iter().map(|(at, bytes)| (Timestamp(at * 10 * MS), *bytes));
            let (begin, cut, end) = (Timestamp(0), Timestamp(cut * MS), Timestamp(u64::MAX));
            let parts = bytes_within(intervals(), &(begin..cut)) + bytes_within(intervals(), &(cut..end));
            let whole: u64 = given.iter().map(|(_, bytes)| bytes).sum();
            prop_assert!((parts - whole as f64).abs() < 1e-3);
        }

        /// Compares with the statistics of all samples in one list.
        #[test]
        fn pooled_times_are_those_of_one_population(
            samples in prop::collection::vec(prop::collection::vec(0.1..500f64, 1..30), 1..5),
        ) {
            let population = |samples: &[f64]| {
                let count = samples.len() as f64;
                let mean = samples.iter().sum::<f64>() / count;
                let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
                let (min, max) = samples.iter().fold((f64::MAX, f64::MIN), |(a, b), s| (a.min(*s), b.max(*s)));
                TimeStats { count, mean, sigma: (squares / count).sqrt(), min, max }
            };
            let whole = population(&samples.concat());
            let found = |statistic| pooled(samples.iter().map(|part| population(part)), statistic).expect("samples");
            prop_assert!((found(Statistic::Mean) - whole.mean).abs() < 1e-6);
            prop_assert!((found(Statistic::Stddev) - whole.sigma).abs() < 1e-6);
            prop_assert_eq!(found(Statistic::Min), whole.min);
            prop_assert_eq!(found(Statistic::Max), whole.max);
        }
    }

    #[test]
    fn seconds_without_payload_are_no_part_of_active_throughput() {
        let second = 1000 * MS;
        let at = |tenths: u64, bytes: u64| (Timestamp(tenths * 100 * MS), bytes);
        // 1 Mb/s in the seconds 0 and 3, and 3 Mb/s in the second 4; the second 5 is not complete.
        let intervals = [at(1, 125_000), at(30, 100_000), at(39, 25_000), at(42, 375_000), at(51, 1)];
        let rates = active_seconds(intervals.into_iter(), &(Timestamp(0)..Timestamp(5 * second + 1)));
        assert_eq!(rates, [1.0, 1.0, 3.0]);
        assert_eq!(over_active_seconds(&rates, Statistic::Mean), Some(5.0 / 3.0));
        assert_eq!(over_active_seconds(&rates, Statistic::Max), Some(3.0));
        assert_eq!(
            active_seconds(intervals.into_iter(), &(Timestamp(4 * second)..Timestamp(5 * second))),
            [3.0]
        );
        assert_eq!(over_active_seconds(&[], Statistic::Mean), None);
    }

    #[test]
    fn a_gap_counts_where_it_begins() {
        let times = [0, 1, 5, 6, 16, 17].map(|second| Timestamp(second * 1000 * MS));
        let within = |from: u64, to: u64| {
            longest_gap(&times, &(Timestamp(from * 1000 * MS)..Timestamp(to * 1000 * MS)))
        };
        assert_eq!(within(0, 100), Some(10.0));
        assert_eq!(within(0, 6), Some(4.0));
        assert_eq!(within(6, 7), Some(10.0));
        assert_eq!(within(2, 4), None);
        assert_eq!(longest_gap(&times[..1], &(Timestamp(0)..Timestamp(u64::MAX))), None);
    }

    #[test]
    fn the_first_time_after_an_event_is_the_next() {
        let times = || [9, 3, 12].map(|second| Timestamp(second * 1000 * MS)).into_iter();
        assert_eq!(first_after(times(), Timestamp(8500 * MS)), Some(0.5));
        assert_eq!(first_after(times(), Timestamp(13_000 * MS)), None);
    }

    #[test]
    fn of_several_documents_the_median_counts() {
        let at = |text: &str| in_json(text, "/time", &[], "");
        assert_eq!(at(r#"{"time":0.5}{"time":9}{"time":0.25}"#), Ok(0.5));
        assert_eq!(at("{\"time\":1}\n{\"time\":\"2\"}\n"), Ok(1.5));
        assert!(at(r#"{"time":1}{"tim"#).is_err(), "all of them are looked at");
        assert!(at(r#"{"time":1}{}"#).is_err());
    }

    #[test]
    fn numbers_are_found_in_json() {
        let text = json!({
            "end": { "sum": { "bits_per_second": 5.5e6, "text": "1.25", "done": true } },
            "results": [
                { "name": "running", "size": 1280, "gb_per_s": 0.5 },
                { "name": "running", "size": 64, "gb_per_s": 0.25 },
            ],
        })
        .to_string();
        let at = |pointer| in_json(&text, pointer, &[], "");
        assert_eq!(at("/end/sum/bits_per_second"), Ok(5.5e6));
        assert_eq!(at("/end/sum/text"), Ok(1.25));
        assert_eq!(at("/end/sum/done"), Ok(1.0));
        assert!(at("/end/sum").is_err_and(|error| error.starts_with("expected a number")));
        assert!(at("/nothing").is_err_and(|error| error.contains("got nothing")));
        let element = |size: f64| [("name".to_owned(), json!("running")), ("size".to_owned(), json!(size))];
        assert_eq!(in_json(&text, "/results", &element(64.0), "/gb_per_s"), Ok(0.25));
        assert!(in_json(&text, "/results", &element(65.0), "/gb_per_s").is_err_and(|e| e.contains("got 0")));
        assert!(in_json("no JSON", "/x", &[], "").is_err());
        assert!(in_json("", "/x", &[], "").is_err_and(|error| error.contains("got nothing")));
    }
}
