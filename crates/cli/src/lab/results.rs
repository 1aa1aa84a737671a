//! `plait lab results`: the pages of results, in Markdown, and the summaries that they are written from.

mod assessment;
mod pages;
mod tables;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use plait_config::AtomicFile;
use plait_lab::experiment::{Experiment, Form, Results};
use plait_lab::papers::Papers;

use crate::stdout::json_text;

/// The directory of summaries and pictures, beside the pages.
const MEASURED: &str = "measured";

/// Arguments of `plait lab results`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directories that `plait lab run` wrote: their results replace all earlier ones of the same experiments
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// The directory of the pages, and, in measured/, of the summaries and pictures that they are written from
    #[arg(short, long, value_name = "DIR", default_value = "results")]
    output: PathBuf,
    /// What papers print (experiments/paper-values.toml): write a page for each paper. The experiments beside this file
    /// say how each value is compared
    #[arg(long, value_name = "FILE")]
    papers: Option<PathBuf>,
}

/// The results of a run, under the name of its directory, which distinguishes runs of one experiment with different
/// parameters.
pub(super) struct Found {
    name: String,
    results: Results,
}

impl Found {
    /// Where the pages find the picture of a plot.
    fn picture(&self, svg: &str) -> String {
        format!("{MEASURED}/{}", self.picture_name(svg))
    }

    fn picture_name(&self, svg: &str) -> String {
        let plot = Path::new(svg).file_name().unwrap_or_default().to_string_lossy();
        format!("{}-{plot}", self.name)
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let papers = args.papers.as_deref().map(Papers::read).transpose()?.unwrap_or_default();
    let measured = args.output.join(MEASURED);
    fs::create_dir_all(&measured).with_context(|| format!("cannot make {}", measured.display()))?;
    let new =
        args.directories.iter().map(|directory| summary_of(directory)).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(twice) =
        new.iter().enumerate().find(|(index, one)| new[..*index].iter().any(|other| other.name == one.name))
    {
        bail!("expected directories of different names, as summaries have these, got {} twice", twice.1.name);
    }
    for earlier in read_all(&measured, None)? {
        if new.iter().any(|new| new.results.experiment == earlier.results.experiment) {
            remove(&earlier.name, &measured)?;
        }
    }
    for (found, directory) in new.iter().zip(&args.directories) {
        store(found, directory, &measured)?;
    }
    let experiments = args.papers.as_deref().map(|file| file.parent().unwrap_or_else(|| Path::new(".")));
    let found = read_all(&measured, experiments)?;
    if found.is_empty() {
        bail!(
            "expected directories that `plait lab run` wrote, or summaries in {}, got none",
            measured.display()
        );
    }
    for (name, page) in pages::write(&papers, &found) {
        write(&args.output.join(name), page.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The summary of what a run wrote.
fn summary_of(directory: &Path) -> anyhow::Result<Found> {
    let mut results = read(&directory.join("results.json"))?;
    results.summarize();
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Found { name, results })
}

/// Writes the summary of a run, and its pictures.
fn store(found: &Found, directory: &Path, into: &Path) -> anyhow::Result<()> {
    for plot in &found.results.plots {
        let (from, to) = (directory.join(&plot.svg), into.join(found.picture_name(&plot.svg)));
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let summary = json_text(&found.results)? + "\n";
    write(&into.join(format!("{}.json", found.name)), summary.as_bytes())
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let written = || -> io::Result<()> {
        let mut file = AtomicFile::create(path)?;
        file.write_all(content)?;
        file.publish()
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

/// Removes the summary of an earlier run, and its pictures.
fn remove(name: &str, from: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let plot = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".svg"));
        // Plots are numbered: those of a run whose name only begins alike stay.
        if plot.is_some_and(|plot| plot.starts_with(|first: char| first.is_ascii_digit())) {
            fs::remove_file(&path)?;
        }
    }
    Ok(fs::remove_file(from.join(format!("{name}.json")))?)
}

/// Reads every summary, in the order of their names, and compares with what the experiments' files state now.
fn read_all(measured: &Path, experiments: Option<&Path>) -> anyhow::Result<Vec<Found>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(measured)? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let summary = |file: &PathBuf| {
        let mut results = read(file)?;
        let newer = experiments.map(|directory| directory.join(format!("{}.toml", results.experiment)));
        if let Some(newer) = newer.filter(|newer| newer.exists()) {
            let all = Form { quick: false, parameters: Vec::new() };
            results.compare_again(&Experiment::read(&newer, &all)?);
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Found { name, results })
    };
    files.iter().map(summary).collect()
}

fn read(file: &Path) -> anyhow::Result<Results> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("expected the results of `plait lab run` in {}", file.display()))
}
