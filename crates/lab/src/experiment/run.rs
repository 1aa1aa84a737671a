//! Running an experiment: repetition by repetition, each in a lab of its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use plait_emulator::Backend;

use super::compute::value;
use super::draw::{draw, file_name};
use super::execute::{Run, execute};
use super::model::{Experiment, Variant};
use super::observations::Observations;
use super::results::{Analysis, CompletedRuns};
use super::results::{Repetition, Results};
use crate::error::Error;
use crate::lab::Lab;
use plait_linux::signal::StopSignal;

/// The intervals of the series in the directory of an analysis.
const SERIES: Duration = Duration::from_millis(100);

/// How an experiment is run.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// How often each variant is measured, instead of what the file says.
    pub repetitions: Option<u32>,
    /// What is behind the links, instead of what the file says.
    pub backend: Option<Backend>,
    /// Where results.json, the charts and the analysis of each variant's first valid repetition go; a directory that is made
    /// if it is not there.
    pub directory: Option<&'a Path>,
    /// Ends it early: what was made is removed, and nothing written.
    pub stop: StopSignal,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// Valid repetitions so far.
    pub done: u32,
    /// How many are wanted.
    pub total: u32,
    /// What goes on.
    pub activity: String,
    /// Why the last repetition was thrown away, if it was.
    pub discarded: Option<String>,
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
    let (started, start) = (SystemTime::now(), Instant::now());
    let wanted = options.repetitions.unwrap_or(experiment.repetitions).max(1);
    let spare = 5 + wanted / 5;
    let mut runs: Vec<_> = experiment.variants.iter().map(VariantRuns::new).collect();
    let total = wanted * runs.len() as u32;
    let (mut done, mut discarded) = (0, None);
    for number in 1..=wanted {
        for runs in &mut runs {
            // One that cannot be measured is not tried for every number.
            while runs.discarded <= spare && runs.valid < number {
                let name = runs.variant.name();
                let activity = if name.is_empty() {
                    format!("repetition {number}")
                } else {
                    format!("repetition {number}, {name}")
                };
                progress(&Progress { done, total, activity, discarded: discarded.take() });
                options.stop.check()?;
                let repetition = runs.measure(experiment, number, options)?;
                if repetition.valid {
                    done += 1;
                    runs.valid += 1;
                } else {
                    runs.discarded += 1;
                    discarded = Some(repetition.invalid_because.join("; "));
                }
                runs.repetitions.push(repetition);
            }
        }
    }
    progress(&Progress { done, total, activity: "drawing".into(), discarded });
    let mut ran = CompletedRuns {
        started: date(started),
        duration_s: start.elapsed().as_secs_f64(),
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
    if let Some(directory) = options.directory {
        let file = directory.join("results.json");
        let refused = |source| Error::File { path: directory.to_owned(), source };
        results.plots = draw(experiment, &results, directory).map_err(refused)?;
        let text = serde_json::to_string_pretty(&results).map_err(|error| refused(error.into()))?;
        let partial = directory.join("results.json.partial");
        fs::write(&partial, text + "\n").and_then(|()| fs::rename(&partial, &file)).map_err(refused)?;
    }
    Ok(results)
}

/// The repetitions of a variant.
struct VariantRuns<'a> {
    variant: &'a Variant,
    repetitions: Vec<Repetition>,
    valid: u32,
    discarded: u32,
    backends: IndexMap<String, String>,
    analysis: Option<Analysis>,
}

impl<'a> VariantRuns<'a> {
    fn new(variant: &'a Variant) -> Self {
        Self {
            variant,
            repetitions: Vec::new(),
            valid: 0,
            discarded: 0,
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
        let (started, start) = (SystemTime::now(), Instant::now());
        let variant = self.variant;
        let mut lab = Lab::up(&variant.topology, options.backend, options.stop.clone())?;
        self.backends =
            lab.links().iter().map(|link| (link.name().to_owned(), link.backend().to_string())).collect();
        let Run { observations, merged, steps, links, events, mut invalid_because } =
            execute(variant, &mut lab, experiment.lateness_limit)?;
        let mut metrics = IndexMap::new();
        for (name, metric) in &variant.metrics {
            let value = match &observations {
                Some(observations) if !metric.measure.is_derived() => value(&metric.measure, observations),
                _ => Ok(None),
            };
            let value = value.unwrap_or_else(|why| {
                invalid_because.push(format!("{name} could not be measured: {why}"));
                None
            });
            metrics.insert(name.clone(), value.map(|value| value * metric.scale));
        }
        let valid = invalid_because.is_empty();
        let is_first_valid = valid && self.valid == 0;
        if let (Some(directory), Some(observations), true) =
            (options.directory, &observations, is_first_valid)
        {
            self.analysis = keep(directory, &slug(&variant.name()), observations, &merged)?;
        }
        Ok(Repetition {
            number,
            valid,
            invalid_because,
            started: date(started),
            duration_s: start.elapsed().as_secs_f64(),
            metrics,
            steps,
            links,
            events,
        })
    }
}

/// Leaves the analysis of a repetition, and what its steps printed, in a directory of this name; gives where the analysis of
/// the first captured host is.
fn keep(
    directory: &Path,
    name: &str,
    observations: &Observations,
    merged: &[PathBuf],
) -> Result<Option<Analysis>, Error> {
    let numerator_variant = directory.join(name);
    let written = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    fs::create_dir_all(&numerator_variant).map_err(written(&numerator_variant))?;
    for step in &observations.steps {
        let file = numerator_variant.join(format!("{}.stdout", file_name(&step.step)));
        fs::write(&file, &step.stdout).map_err(written(&file))?;
    }
    for (view, capture) in observations.views.iter().zip(merged) {
        if view.main_connection().is_none() {
            continue;
        }
        let into = numerator_variant.join(&view.host);
        let analysed =
            plait_trace::analyze(std::slice::from_ref(capture), Some(&into), SERIES, (), &|_| Ok(()));
        analysed.map_err(io::Error::other).map_err(written(&into))?;
    }
    let first = observations.views.first();
    Ok(first.and_then(|view| {
        let connection = view.main_connection()?.id;
        Some(Analysis { directory: format!("{name}/{}", view.host), connection })
    }))
}

/// A variant's name as that of a directory.
fn slug(name: &str) -> String {
    if name.is_empty() { "run".into() } else { file_name(name) }
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
}
