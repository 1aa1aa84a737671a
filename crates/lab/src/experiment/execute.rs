//! Executes the steps of an experiment once and collects everything needed to compute its metrics.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use plait_config::Role;
use plait_wire::capture::Timestamp;

use super::measure::Measure;
use super::model::{Step, Variant};
use super::observations::{CapturedLink, HostCapture, Observations};
use super::results::{EventResult, LinkResult, StepResult};
use crate::capture::Capture;
use crate::error::Error;
use crate::lab::Lab;
use crate::link::Link;
use crate::process::path_with_plait;
use crate::topology::Side;

/// The outcome of one execution.
pub(super) struct Run {
    /// `None` if the execution is unusable.
    pub(super) observations: Option<Observations>,
    /// One merged capture per view.
    pub(super) merged: Vec<PathBuf>,
    /// The steps that ran.
    pub(super) steps: Vec<StepResult>,
    pub(super) links: IndexMap<String, LinkResult>,
    pub(super) events: Vec<EventResult>,
    /// Why the repetition is invalid; empty if it is valid.
    pub(super) invalid_because: Vec<String>,
}

/// Executes the steps and collects everything needed to compute the metrics.
///
/// # Errors
/// A failure that another attempt would not fix.
pub(super) fn execute(variant: &Variant, lab: &mut Lab, lateness_limit: Duration) -> Result<Run, Error> {
    let mut invalid_because = Vec::new();
    let captures = start_captures(variant, lab)?;
    let before = counters(variant, lab)?;
    let (steps, clock) = run_steps(variant, lab, &mut invalid_because)?;
    let after = counters(variant, lab)?;
    let applied = lab.applied_events();
    let links = link_runs(lab, lateness_limit, &mut invalid_because)?;
    // A capture ends once no more packets pass; background traffic would prevent that.
    lab.end_services();
    let captured = stop_captures(captures, &mut invalid_because)?;
    for event in &applied {
        if let Some(error) = &event.error {
            invalid_because.push(format!("{} of {}: {error}", event.event.action.name(), event.link));
        }
    }
    let events: Vec<_> = applied
        .iter()
        .map(|event| EventResult {
            link: event.link.clone(),
            action: event.event.action.name().into(),
            at_s: event.event.at.as_secs_f64(),
            applied_s: event.done.as_secs_f64(),
        })
        .collect();
    let mut merged = Vec::new();
    let mut observations = None;
    if invalid_because.is_empty() {
        let by_link = variant.metrics.iter().any(|(_, metric)| metric.measure.needs_path_captures());
        let mut views = Vec::new();
        for (host, links) in &captured {
            let file = lab.scratch().join(format!("{host}.pcap"));
            let view = HostCapture::read(host, links, &file, by_link);
            views.push(view.map_err(|source| Error::File { path: file.clone(), source })?);
            merged.push(file);
        }
        observations = Some(Observations {
            views,
            steps: steps.clone(),
            clock: timestamp(clock),
            events: applied.iter().map(|event| (event.event.at, timestamp(event.wall))).collect(),
            counters: counter_increments(before, after),
            directory: lab.scratch().to_owned(),
        });
    }
    Ok(Run { observations, merged, steps, links, events, invalid_because })
}

/// A running capture.
struct Running {
    host: String,
    link: String,
    role: Role,
    capture: Capture,
}

/// Starts a capture on each link of the captured hosts.
fn start_captures(variant: &Variant, lab: &Lab) -> Result<Vec<Running>, Error> {
    let mut captures = Vec::new();
    for host in &variant.capture.on {
        for link in lab.links() {
            let Some(side) = side_of(link, host) else { continue };
            let file = lab.scratch().join(format!("{host}-{}.pcap", link.name()));
            let capture = Capture::start_with_snaplen(
                lab.find_host(host)?,
                link.interface(side),
                variant.capture.snaplen,
                &file,
            )?;
            captures.push(Running {
                host: host.clone(),
                link: link.name().into(),
                role: link.role(),
                capture,
            });
        }
    }
    Ok(captures)
}

/// Stops the captures; returns the files by host, or the reason if packets were missed.
fn stop_captures(
    captures: Vec<Running>,
    invalid_because: &mut Vec<String>,
) -> Result<Vec<(String, Vec<CapturedLink>)>, Error> {
    let mut captured: Vec<(String, Vec<CapturedLink>)> = Vec::new();
    for Running { host, link, role, capture } in captures {
        match capture.stop() {
            Ok(file) => {
                let one = CapturedLink { link, role, file };
                match captured.iter_mut().find(|(known, _)| *known == host) {
                    Some((_, links)) => links.push(one),
                    None => captured.push((host, vec![one])),
                }
            }
            Err(error @ (Error::IncompleteCapture { .. } | Error::TimedOut { .. })) => {
                invalid_because.push(format!("{host}: {error}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(captured)
}

fn side_of(link: &Link, host: &str) -> Option<Side> {
    Side::BOTH.into_iter().find(|side| link.host(*side).name() == host)
}

/// Runs the steps in order until one fails that may not fail.
fn run_steps(
    variant: &Variant,
    lab: &mut Lab,
    invalid_because: &mut Vec<String>,
) -> Result<(Vec<StepResult>, SystemTime), Error> {
    let mut clock = SystemTime::now();
    let mut runs = Vec::new();
    for step in &variant.steps {
        if step.starts_clock {
            clock = SystemTime::now();
            lab.start_events()?;
        }
        let start = Instant::now();
        let (stdout, error) = match run_step(step, lab) {
            Ok(stdout) => (stdout, None),
            Err(error @ (Error::Failed { .. } | Error::TimedOut { .. })) => {
                (String::new(), Some(error.to_string()))
            }
            Err(error) => return Err(error),
        };
        let duration_s = start.elapsed().as_secs_f64();
        let ends = error.clone().filter(|_| !step.allow_failure);
        runs.push(StepResult { step: step.name.clone(), duration_s, error, stdout });
        if let Some(why) = ends {
            invalid_because.push(format!("the step {} failed: {why}", step.name));
            break;
        }
    }
    Ok((runs, clock))
}

fn run_step(step: &Step, lab: &Lab) -> Result<String, Error> {
    let host = lab.find_host(&step.host)?;
    let wrapper = step.mptcp.then_some(["mptcpize", "run"]).into_iter().flatten();
    let mut words = wrapper.chain(step.command.iter().map(String::as_str));
    let program = words.next().expect("a checked step has a program");
    let mut command = host.command(program);
    command.args(words).current_dir(lab.scratch()).env("PATH", path_with_plait());
    host.spawn(command)?.finish(step.timeout)
}

/// Reads the kernel counters of the hosts with counter metrics.
fn counters(variant: &Variant, lab: &Lab) -> Result<BTreeMap<String, BTreeMap<String, i64>>, Error> {
    let hosts = variant.metrics.iter().filter_map(|(_, metric)| match &metric.measure {
        Measure::Counter { host, .. } => Some(host),
        _ => None,
    });
    let read = |host: &String| {
        let counters = lab.find_host(host)?.namespace().run(plait_linux::counters::counters);
        let counters = counters.and_then(|counters| counters).map_err(Error::Namespace)?;
        Ok((host.clone(), counters))
    };
    hosts.map(read).collect()
}

fn counter_increments(
    before: BTreeMap<String, BTreeMap<String, i64>>,
    after: BTreeMap<String, BTreeMap<String, i64>>,
) -> BTreeMap<String, BTreeMap<String, i64>> {
    let of_host = |(host, counters): (String, BTreeMap<String, i64>)| {
        let then = before.get(&host);
        let since = |name: &String| then.and_then(|then| then.get(name)).copied().unwrap_or_default();
        let counter_increments =
            counters.into_iter().map(|(name, value)| (name.clone(), value - since(&name)));
        (host, counter_increments.collect())
    };
    after.into_iter().map(of_host).collect()
}

/// The statistics of each link, and whether it delivered frames in time.
fn link_runs(
    lab: &Lab,
    limit: Duration,
    invalid_because: &mut Vec<String>,
) -> Result<IndexMap<String, LinkResult>, Error> {
    let mut runs = IndexMap::new();
    for link in lab.links() {
        let statistics = link.statistics()?;
        let lateness = statistics.lateness.as_ref();
        if let Some(reason) = lateness.and_then(|lateness| lateness.exceeds(limit)) {
            invalid_because.push(format!("link {}: {reason}", link.name()));
        }
        let missed = [&statistics.a_to_b, &statistics.b_to_a].map(|way| way.overruns.unwrap_or_default());
        if missed.iter().sum::<u64>() > 0 {
            let missed = missed.iter().sum::<u64>();
            invalid_because.push(format!("link {}: the emulator missed {missed} packets", link.name()));
        }
        let lateness_p99_ms = lateness.map(|lateness| lateness.p99.as_secs_f64() * 1e3);
        let statistics = serde_json::to_value(&statistics).unwrap_or_default();
        runs.insert(link.name().to_owned(), LinkResult { lateness_p99_ms, statistics });
    }
    Ok(runs)
}

fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_told_by_their_growth() {
        let of =
            |value| BTreeMap::from([("h".to_owned(), BTreeMap::from([("MPTcpExtX".to_owned(), value)]))]);
        assert_eq!(counter_increments(of(3), of(10)), of(7));
        assert_eq!(counter_increments(BTreeMap::new(), of(10)), of(10));
    }
}
