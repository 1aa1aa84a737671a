//! Running an experiment: repetition by repetition, each in a lab of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use plait_link::Backend;
use plait_wire::capture::Timestamp;

use super::compute::value;
use super::draw::{draw, file_name};
use super::evidence::{CapturedLink, Evidence, View};
use super::results::{Analysis, LinkRun, Occurred, Ran};
use super::{Experiment, Measure, Repetition, Results, Step, StepRun, Variant};
use crate::topology::Side;
use crate::{Capture, Error, Interrupt, Lab, Link};

/// The intervals of the series in the folder of an analysis.
const SERIES: Duration = Duration::from_millis(100);

/// How an experiment is run.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// How often each variant is measured, instead of what the file says.
    pub repetitions: Option<u32>,
    /// What is behind the links, instead of what the file says.
    pub backend: Option<Backend>,
    /// Where results.json, the charts and the analysis of each variant's first valid repetition go; a folder that is made
    /// if it is not there.
    pub folder: Option<&'a Path>,
    /// Ends it early: what was made is removed, and nothing written.
    pub interrupt: Interrupt,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// Valid repetitions so far.
    pub done: u32,
    /// How many are wanted.
    pub of: u32,
    /// What goes on.
    pub what: String,
    /// Why the last repetition was thrown away, if it was.
    pub thrown_away: Option<String>,
}

/// Runs an experiment: every variant once, then every variant again, so that what changes on the machine meets all alike.
/// A repetition that is not valid is thrown away and done again, a few times per variant at most.
///
/// # Errors
/// The lab cannot be built, or the results not written. That repetitions were not valid is part of the results.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Results, Error> {
    let (started, begun) = (SystemTime::now(), Instant::now());
    let wanted = options.repetitions.unwrap_or(experiment.repetitions).max(1);
    let spare = 2 + wanted / 5;
    let mut runs: Vec<_> = experiment.variants.iter().map(VariantRuns::new).collect();
    let of = wanted * runs.len() as u32;
    let (mut done, mut thrown_away) = (0, None);
    for number in 1..=wanted {
        for runs in &mut runs {
            // One that cannot be measured is not tried for every number.
            while runs.thrown_away <= spare && runs.valid < number {
                let name = runs.variant.name();
                let what = if name.is_empty() {
                    format!("repetition {number}")
                } else {
                    format!("repetition {number}, {name}")
                };
                progress(&Progress { done, of, what, thrown_away: thrown_away.take() });
                options.interrupt.check()?;
                let repetition = runs.measure(experiment, number, options)?;
                if repetition.valid {
                    done += 1;
                    runs.valid += 1;
                } else {
                    runs.thrown_away += 1;
                    thrown_away = Some(repetition.invalid_because.join("; "));
                }
                runs.repetitions.push(repetition);
            }
        }
    }
    progress(&Progress { done, of, what: "drawing".into(), thrown_away });
    let mut ran = Ran {
        started: date(started),
        duration_s: begun.elapsed().as_secs_f64(),
        repetitions: Vec::new(),
        backends: Vec::new(),
        analyses: Vec::new(),
        wanted,
    };
    for VariantRuns { repetitions, backends, analysis, .. } in runs {
        ran.repetitions.push(repetitions);
        ran.backends.push(backends);
        ran.analyses.push(analysis);
    }
    let mut results = Results::of(experiment, ran);
    if let Some(folder) = options.folder {
        let file = folder.join("results.json");
        let refused = |source| Error::File { path: folder.to_owned(), source };
        results.plots = draw(experiment, &results, folder).map_err(refused)?;
        let text = serde_json::to_string_pretty(&results).map_err(|error| refused(error.into()))?;
        let partial = folder.join("results.json.partial");
        fs::write(&partial, text + "\n").and_then(|()| fs::rename(&partial, &file)).map_err(refused)?;
    }
    Ok(results)
}

/// The repetitions of a variant.
struct VariantRuns<'a> {
    variant: &'a Variant,
    repetitions: Vec<Repetition>,
    valid: u32,
    thrown_away: u32,
    backends: IndexMap<String, String>,
    analysis: Option<Analysis>,
}

impl<'a> VariantRuns<'a> {
    fn new(variant: &'a Variant) -> Self {
        Self {
            variant,
            repetitions: Vec::new(),
            valid: 0,
            thrown_away: 0,
            backends: IndexMap::new(),
            analysis: None,
        }
    }

    fn measure(
        &mut self,
        experiment: &Experiment,
        number: u32,
        options: &Options,
    ) -> Result<Repetition, Error> {
        let (started, begun) = (SystemTime::now(), Instant::now());
        let variant = self.variant;
        let mut lab = Lab::up(&variant.topology, options.backend, options.interrupt.clone())?;
        self.backends =
            lab.links().iter().map(|link| (link.name().to_owned(), link.backend().to_string())).collect();
        let Run { evidence, merged, links, events, mut invalid_because } =
            observe(variant, &mut lab, experiment.lateness_limit)?;
        let mut metrics = IndexMap::new();
        for (name, metric) in &variant.metrics {
            let value = match &evidence {
                Some(evidence) if !metric.measure.is_derived() => value(&metric.measure, evidence),
                _ => Ok(None),
            };
            let value = value.unwrap_or_else(|why| {
                invalid_because.push(format!("{name} could not be measured: {why}"));
                None
            });
            metrics.insert(name.clone(), value.map(|value| value * metric.scale));
        }
        let valid = invalid_because.is_empty();
        if let (Some(folder), Some(evidence), true, None) = (options.folder, &evidence, valid, &self.analysis)
        {
            self.analysis = keep(folder, &slug(&variant.name()), evidence, &merged)?;
        }
        let steps = evidence.map(|evidence| evidence.steps).unwrap_or_default();
        Ok(Repetition {
            number,
            valid,
            invalid_because,
            started: date(started),
            duration_s: begun.elapsed().as_secs_f64(),
            metrics,
            steps,
            links,
            events,
        })
    }
}

/// What came of one time.
struct Run {
    /// `None` if it cannot be used.
    evidence: Option<Evidence>,
    /// One capture for each view.
    merged: Vec<PathBuf>,
    links: IndexMap<String, LinkRun>,
    events: Vec<Occurred>,
    invalid_because: Vec<String>,
}

/// Runs the steps and keeps what is needed to measure.
fn observe(variant: &Variant, lab: &mut Lab, lateness_limit: Duration) -> Result<Run, Error> {
    let mut invalid_because = Vec::new();
    let captures = start_captures(variant, lab)?;
    let before = counters(variant, lab)?;
    let (steps, clock) = run_steps(variant, lab, &mut invalid_because)?;
    let after = counters(variant, lab)?;
    let applied = lab.applied_events();
    let links = link_runs(lab, lateness_limit, &mut invalid_because)?;
    // A capture ends when nothing passes any more, which background traffic would never let happen.
    lab.end_services();
    let mut captured: Vec<(String, Vec<CapturedLink>)> = Vec::new();
    for (host, link, role, capture) in captures {
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
    let clock_wall = timestamp(clock);
    for event in &applied {
        if let Some(error) = &event.error {
            invalid_because.push(format!("{} of {}: {error}", event.event.action.name(), event.link));
        }
    }
    let events: Vec<_> = applied
        .iter()
        .map(|event| Occurred {
            link: event.link.clone(),
            action: event.event.action.name().into(),
            at_s: event.event.at.as_secs_f64(),
            happened_s: event.done.as_secs_f64(),
        })
        .collect();
    let mut merged = Vec::new();
    let mut evidence = None;
    if invalid_because.is_empty() {
        let by_link = variant.metrics.iter().any(|(_, metric)| metric.measure.looks_at_paths());
        let mut views = Vec::new();
        for (host, links) in &captured {
            let file = lab.scratch().join(format!("{host}.pcap"));
            let view = View::read(host, links, &file, by_link);
            views.push(view.map_err(|source| Error::File { path: file.clone(), source })?);
            merged.push(file);
        }
        evidence = Some(Evidence {
            views,
            steps,
            clock: clock_wall,
            events: applied.iter().map(|event| (event.event.at, timestamp(event.wall))).collect(),
            counters: grown(before, after),
            folder: lab.scratch().to_owned(),
        });
    }
    Ok(Run { evidence, merged, links, events, invalid_because })
}

type Running = (String, String, plait_wire::Role, Capture);

/// A capture of each link of the hosts.
fn start_captures(variant: &Variant, lab: &Lab) -> Result<Vec<Running>, Error> {
    let mut captures = Vec::new();
    for host in &variant.capture.on {
        for link in lab.links() {
            let Some(side) = side_of(link, host) else { continue };
            let file = lab.scratch().join(format!("{host}-{}.pcap", link.name()));
            let capture =
                Capture::start_cut(lab.find_host(host)?, link.interface(side), variant.capture.snap, &file)?;
            captures.push((host.clone(), link.name().to_owned(), link.role(), capture));
        }
    }
    Ok(captures)
}

fn side_of(link: &Link, host: &str) -> Option<Side> {
    Side::BOTH.into_iter().find(|side| link.host(*side).name() == host)
}

/// Runs the steps one after the other; the first that fails ends it, unless it may.
fn run_steps(
    variant: &Variant,
    lab: &mut Lab,
    invalid_because: &mut Vec<String>,
) -> Result<(Vec<StepRun>, SystemTime), Error> {
    let mut clock = SystemTime::now();
    let mut runs = Vec::new();
    for step in &variant.steps {
        if step.starts_clock {
            clock = SystemTime::now();
            lab.start_events()?;
        }
        let begun = Instant::now();
        let (stdout, failed) = match run_step(step, lab) {
            Ok(stdout) => (stdout, None),
            Err(error @ (Error::Failed { .. } | Error::TimedOut { .. })) => {
                (String::new(), Some(error.to_string()))
            }
            Err(error) => return Err(error),
        };
        let seconds = begun.elapsed().as_secs_f64();
        let ends = failed.clone().filter(|_| !step.may_fail);
        runs.push(StepRun { step: step.name.clone(), seconds, failed, stdout });
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
    host.spawn(command)?.finish(step.limit)
}

/// `PATH`, with this program's folder first: `plait` is the one that measures.
fn path_with_plait() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let folders = own.into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path)
}

/// The counters of the hosts whose counters are measured.
fn counters(variant: &Variant, lab: &Lab) -> Result<BTreeMap<String, BTreeMap<String, i64>>, Error> {
    let hosts = variant.metrics.iter().filter_map(|(_, metric)| match &metric.measure {
        Measure::Counter { host, .. } => Some(host),
        _ => None,
    });
    let read = |host: &String| {
        let counters = lab.find_host(host)?.namespace().run(plait_host::counters::counters);
        let counters = counters.and_then(|counters| counters).map_err(Error::Namespace)?;
        Ok((host.clone(), counters))
    };
    hosts.map(read).collect()
}

fn grown(
    before: BTreeMap<String, BTreeMap<String, i64>>,
    after: BTreeMap<String, BTreeMap<String, i64>>,
) -> BTreeMap<String, BTreeMap<String, i64>> {
    let of_host = |(host, counters): (String, BTreeMap<String, i64>)| {
        let then = before.get(&host);
        let since = |name: &String| then.and_then(|then| then.get(name)).copied().unwrap_or_default();
        let grown = counters.into_iter().map(|(name, value)| (name.clone(), value - since(&name)));
        (host, grown.collect())
    };
    after.into_iter().map(of_host).collect()
}

/// What each link did, and whether it was in time.
fn link_runs(
    lab: &Lab,
    limit: Duration,
    invalid_because: &mut Vec<String>,
) -> Result<IndexMap<String, LinkRun>, Error> {
    let mut runs = IndexMap::new();
    for link in lab.links() {
        let statistics = link.statistics()?;
        let lateness = statistics.lateness.as_ref();
        if let Some(reason) = lateness.and_then(|lateness| lateness.exceeds(limit)) {
            invalid_because.push(format!("link {}: {reason}", link.name()));
        }
        let missed = [&statistics.a_to_b, &statistics.b_to_a].map(|way| way.missed.unwrap_or_default());
        if missed.iter().sum::<u64>() > 0 {
            let missed = missed.iter().sum::<u64>();
            invalid_because.push(format!("link {}: the emulator missed {missed} packets", link.name()));
        }
        let lateness_p99_ms = lateness.map(|lateness| lateness.p99.as_secs_f64() * 1e3);
        let statistics = serde_json::to_value(&statistics).unwrap_or_default();
        runs.insert(link.name().to_owned(), LinkRun { lateness_p99_ms, statistics });
    }
    Ok(runs)
}

/// Leaves the analysis of a repetition, and what its steps printed, in a folder of this name; gives where the analysis of
/// the first captured host is.
fn keep(
    folder: &Path,
    name: &str,
    evidence: &Evidence,
    merged: &[PathBuf],
) -> Result<Option<Analysis>, Error> {
    let of_variant = folder.join(name);
    let written = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    fs::create_dir_all(&of_variant).map_err(written(&of_variant))?;
    for step in &evidence.steps {
        let file = of_variant.join(format!("{}.stdout", file_name(&step.step)));
        fs::write(&file, &step.stdout).map_err(written(&file))?;
    }
    for (view, capture) in evidence.views.iter().zip(merged) {
        if view.main_connection().is_none() {
            continue;
        }
        let into = of_variant.join(&view.host);
        let analysed =
            plait_trace::analyze(std::slice::from_ref(capture), Some(&into), SERIES, (), &|_| Ok(()));
        analysed.map_err(io::Error::other).map_err(written(&into))?;
    }
    let first = evidence.views.first();
    Ok(first.and_then(|view| {
        let connection = view.main_connection()?.id;
        Some(Analysis { folder: format!("{name}/{}", view.host), connection })
    }))
}

/// A variant's name as that of a folder.
fn slug(name: &str) -> String {
    if name.is_empty() { "run".into() } else { file_name(name) }
}

fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// A time as RFC 3339 writes it, to the second.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let date = i64::try_from(seconds).ok().and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0));
    date.map(|date| date.format("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_in_utc() {
        assert_eq!(date(UNIX_EPOCH + Duration::from_secs(1_795_226_246)), "2026-11-21T01:57:26Z");
    }

    #[test]
    fn counters_are_told_by_their_growth() {
        let of =
            |value| BTreeMap::from([("h".to_owned(), BTreeMap::from([("MPTcpExtX".to_owned(), value)]))]);
        assert_eq!(grown(of(3), of(10)), of(7));
        assert_eq!(grown(BTreeMap::new(), of(10)), of(10));
    }
}
