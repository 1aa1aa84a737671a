//! Runs experiments: each repetition in a new lab.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indexmap::IndexMap;
use plait_config::Versioned;
use plait_emulator::Backend;

use super::compute::value;
use super::draw::{draw, file_name};
use super::execute::{Run, execute};
use super::model::{Experiment, Variant};
use super::observations::Observations;
use super::results::{Analysis, CompletedRuns, CompletedVariant, Repetition, Results};
use crate::error::Error;
use crate::lab::Lab;
use crate::seed::Seed;
use plait_linux::signal::StopSignal;

/// The interval length of the time series in an analysis directory.
const SERIES: Duration = Duration::from_millis(100);

/// Options for running an experiment.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// The number of repetitions, overriding the file.
    pub repetitions: Option<u32>,
    /// The backend, overriding the file.
    pub backend: Option<Backend>,
    /// The directory for results.json, the charts and the analysis of each variant's first valid repetition. It is
    /// created if it does not exist.
    pub directory: Option<&'a Path>,
    /// The seed of all random generators: the same seed gives every repetition the same inputs again.
    pub seed: Seed,
    /// Stops the run early: the lab is removed, and no results are written.
    pub stop: StopSignal,
}

/// The progress of a run.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// Valid repetitions so far.
    pub done: u32,
    /// The total number of valid repetitions to reach.
    pub total: u32,
    /// The current activity.
    pub activity: String,
    /// Why the last repetition was discarded, if it was.
    pub discarded: Option<String>,
}

/// Runs an experiment. The variants alternate, so that changes on the machine affect all of them equally. An invalid
/// repetition is discarded and repeated; the number of repeats per variant is limited.
///
/// # Errors
/// The lab cannot be built, or the results cannot be written. Invalid repetitions are not an error but part of the
/// results.
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
            // The limit holds across all numbers, so that a variant that always fails is abandoned.
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
                runs.completed.repetitions.push(repetition);
            }
        }
    }
    progress(&Progress { done, total, activity: "drawing".into(), discarded });
    let ran = CompletedRuns {
        started: date(started),
        duration_s: start.elapsed().as_secs_f64(),
        seed: options.seed,
        wanted,
        variants: runs.into_iter().map(|runs| runs.completed).collect(),
    };
    let mut results = Results::of(experiment, ran);
    if let Some(directory) = options.directory {
        let file = directory.join("results.json");
        let refused = |source| Error::File { path: directory.to_owned(), source };
        results.plots = draw(experiment, &results, directory).map_err(refused)?;
        let text =
            serde_json::to_string_pretty(&Versioned::new(&results)).map_err(|error| refused(error.into()))?;
        let partial = directory.join("results.json.partial");
        fs::write(&partial, text + "\n").and_then(|()| fs::rename(&partial, &file)).map_err(refused)?;
    }
    Ok(results)
}

/// The repetitions of a variant.
struct VariantRuns<'a> {
    variant: &'a Variant,
    valid: u32,
    discarded: u32,
    completed: CompletedVariant,
}

impl<'a> VariantRuns<'a> {
    fn new(variant: &'a Variant) -> Self {
        Self { variant, valid: 0, discarded: 0, completed: CompletedVariant::default() }
    }

    fn measure(
        &mut self,
        experiment: &Experiment,
        number: u32,
        options: &Options,
    ) -> Result<Repetition, Error> {
        let (started, start) = (SystemTime::now(), Instant::now());
        let variant = self.variant;
        // Repetitions with the same number have the same inputs in all variants; one that replaces another has its own.
        let seed = options.seed.derive(&format!("repetition {number}, attempt {}", self.discarded));
        let mut lab = Lab::up(&variant.topology, options.backend, seed, options.stop.clone())?;
        self.completed.backends =
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
            self.completed.analysis = keep(directory, &slug(&variant.name()), observations, &merged)?;
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

/// Writes the analysis of a repetition and the output of its steps to a directory of this name. Returns the location
/// of the first captured host's analysis.
fn keep(
    directory: &Path,
    name: &str,
    observations: &Observations,
    merged: &[PathBuf],
) -> Result<Option<Analysis>, Error> {
    let kept = directory.join(name);
    let written = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    fs::create_dir_all(&kept).map_err(written(&kept))?;
    for step in &observations.steps {
        let file = kept.join(format!("{}.stdout", file_name(&step.step)));
        fs::write(&file, &step.stdout).map_err(written(&file))?;
    }
    for (view, capture) in observations.views.iter().zip(merged) {
        if view.main_connection().is_none() {
            continue;
        }
        let into = kept.join(&view.host);
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

/// Converts a variant's name to a directory name.
fn slug(name: &str) -> String {
    if name.is_empty() { "run".into() } else { file_name(name) }
}

/// Formats a time as RFC 3339, in seconds.
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
