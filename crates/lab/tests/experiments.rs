//! The experiments that come with plait are valid.

use std::fs;
use std::path::{Path, PathBuf};

use plait_lab::experiment::{Experiment, Form, Variant};
use plait_lab::topology::Program;

fn files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let files = fs::read_dir(directory).expect("the directory of experiments");
    let files = files.map(|file| file.expect("an entry").path());
    // What the papers print is no experiment.
    let is_experiment = |file: &PathBuf| {
        file.extension().is_some_and(|extension| extension == "toml") && !file.ends_with("paper-values.toml")
    };
    files.filter(is_experiment).collect()
}

/// All arguments of all commands of services and steps.
fn words(variant: &Variant) -> Vec<&String> {
    let services = variant.topology.services.iter().filter_map(|service| match &service.program {
        Program::Command(words) => Some(words),
        _ => None,
    });
    services.chain(variant.steps.iter().map(|step| &step.command)).flatten().collect()
}

#[test]
fn every_experiment_is_whole_in_both_forms() {
    let files = files();
    assert!(files.len() > 10, "they are there");
    for file in files {
        for quick in [false, true] {
            let form = Form { quick, parameters: Vec::new() };
            let experiment = Experiment::read(&file, &form).expect("an experiment");
            assert_eq!(Some(experiment.name.as_str()), file.file_stem().and_then(|stem| stem.to_str()));
            for word in experiment.variants.iter().flat_map(words) {
                let is_policy = word.contains("/policies/");
                assert!(!is_policy || Path::new(word).exists(), "{word}, of {}", file.display());
            }
        }
    }
}
