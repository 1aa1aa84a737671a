//! experiments/ against experiments/paper-values.toml: what an experiment compares with is what the paper prints, and
//! nothing that a paper prints is without an experiment or a reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use plait_lab::experiment::{Experiment, Form};
use plait_lab::papers::Papers;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")
}

fn papers() -> Papers {
    Papers::read(&directory().join("paper-values.toml")).expect("the papers' values")
}

fn experiments() -> Vec<Experiment> {
    let files =
        std::fs::read_dir(directory()).expect("experiments").map(|entry| entry.expect("a file").path());
    let is_experiment = |file: &PathBuf| {
        file.extension().is_some_and(|extension| extension == "toml") && !file.ends_with("paper-values.toml")
    };
    let read =
        |file: PathBuf| Experiment::read(&file, &Form::default()).unwrap_or_else(|error| panic!("{error}"));
    files.filter(is_experiment).map(read).collect()
}

#[test]
fn experiments_compare_with_what_the_papers_print() {
    let papers = papers();
    for experiment in experiments() {
        for (name, metric) in experiment.variants.iter().flat_map(|variant| &variant.metrics) {
            let Some(paper) = &metric.paper else { continue };
            let place = format!("{}: {name}", experiment.name);
            let entry = paper.entry.as_deref().unwrap_or_else(|| panic!("{place} refers to no entry"));
            let printed = papers.value(entry).unwrap_or_else(|| panic!("{place}: there is no {entry}"));
            let ours = (paper.value, paper.sigma, paper.at_least, paper.at_most);
            assert_eq!(
                ours,
                (printed.value, printed.sigma, printed.at_least, printed.at_most),
                "{place}: {entry}"
            );
            assert_eq!(metric.unit, printed.unit, "{place}: the unit of {entry}");
            let (item, _) = entry.rsplit_once('/').expect("PAPER/ITEM/VALUE");
            let item = papers.item(item).expect("the value's item");
            assert!(
                item.experiments.contains(&experiment.name),
                "{place}: {entry} does not name this experiment"
            );
        }
    }
}

#[test]
fn every_printed_value_is_measured_or_says_why_not() {
    let papers = papers();
    let experiments = experiments();
    let metrics =
        experiments.iter().flat_map(|experiment| &experiment.variants).flat_map(|variant| &variant.metrics);
    let measured: BTreeSet<&str> =
        metrics.filter_map(|(_, metric)| metric.paper.as_ref()?.entry.as_deref()).collect();
    for paper in &papers.papers {
        for item in &paper.items {
            let place = format!("{}/{}", paper.id, item.id);
            let states = [
                !item.experiments.is_empty(),
                !item.shows.is_empty(),
                item.not_comparable.is_some(),
                item.not_done.is_some(),
            ];
            assert_eq!(states.iter().filter(|state| **state).count(), 1, "{place}: exactly one state");
            let excused = item.not_comparable.is_some() || item.not_done.is_some();
            for value in &item.values {
                let entry = format!("{place}/{}", value.id);
                let reason = excused || value.not_comparable.is_some() || value.not_done.is_some();
                assert_ne!(measured.contains(&*entry), reason, "{entry}: either measured, or with a reason");
            }
            for shown in &item.shows {
                let shown = papers
                    .item(shown)
                    .unwrap_or_else(|| panic!("{place} shows {shown}, which does not exist"));
                assert!(shown.shows.is_empty(), "{place} shows what shows others");
            }
        }
    }
}

#[test]
fn every_experiment_has_a_page() {
    let papers = papers();
    let of_papers = papers.papers.iter().flat_map(|paper| &paper.items).flat_map(|item| &item.experiments);
    let of_pages = papers.pages.iter().flat_map(|page| &page.experiments);
    let listed: BTreeSet<&str> = of_papers.chain(of_pages).map(String::as_str).collect();
    let experiments = experiments();
    let present: BTreeSet<&str> = experiments.iter().map(|experiment| &*experiment.name).collect();
    assert_eq!(listed, present);
}

#[test]
fn plots_correspond_to_published_figures() {
    let papers = papers();
    for experiment in experiments() {
        for figure in experiment.plots.iter().filter_map(|plot| plot.figure.as_deref()) {
            assert!(papers.item(figure).is_some(), "{}: there is no {figure}", experiment.name);
        }
    }
}

#[test]
fn a_cause_names_the_experiment_that_tested_it() {
    let experiments = experiments();
    for experiment in &experiments {
        for (name, metric) in experiment.variants.iter().flat_map(|variant| &variant.metrics) {
            let Some(cause) = metric.paper.as_ref().and_then(|paper| paper.differs.as_ref()) else {
                continue;
            };
            let names = |other: &&Experiment| cause.tested_by.contains(&other.name);
            assert!(
                experiments.iter().find(names).is_some(),
                "{}: {name}: {}",
                experiment.name,
                cause.tested_by
            );
        }
    }
}
