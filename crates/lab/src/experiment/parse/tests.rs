use std::time::Duration;

use serde_json::json;

use super::*;

const FILE: &str = r#"
[experiment]
name = "x"
title = "t"
source = "s"
description = """
two
  lines"""
repetitions = 5
quick = { repetitions = 1, parameters = { size = [1] } }
[parameters]
size = [1, 2]
mode = ["off", "on"]
[hosts.h]
[[steps]]
name = "one"
host = "h"
command = ["true", "${mode}"]
when = { mode = "off" }
[[steps]]
name = "two"
host = "h"
command = ["true", "${size}"]
timeout = "2s"
[metrics.zero]
measure = "duration_s"
[metrics.a]
measure = "ratio"
numerator = "zero"
denominator = "zero"
denominator_variant = { size = 2 }
expect = { when = { mode = "on" }, at_least = 1 }
"#;

fn parse(text: &str, quick: bool, parameters: &[(&str, &[&str])]) -> Result<Experiment, Diagnostic> {
    let given = parameters.iter();
    let given = given
        .map(|(name, values)| (name.to_string(), values.iter().map(|value| value.to_string()).collect()));
    Experiment::parse(text, "x.toml", &Form { quick, parameters: given.collect() })
}

fn names(experiment: &Experiment) -> Vec<String> {
    experiment.variants.iter().map(Variant::name).collect()
}

#[test]
fn variants_and_metrics_come_in_the_order_of_the_file() {
    let experiment = parse(FILE, false, &[]).expect("an experiment");
    assert_eq!(
        names(&experiment),
        ["size=1, mode=off", "size=1, mode=on", "size=2, mode=off", "size=2, mode=on"]
    );
    assert_eq!(experiment.description, "two lines");
    let [off, on, ..] = &experiment.variants[..] else { panic!("four variants") };
    let metrics: Vec<_> = off.metrics.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(metrics, ["zero", "a"]);
    assert_eq!(
        off.steps.iter().map(|step| step.command.join(" ")).collect::<Vec<_>>(),
        ["true off", "true 1"]
    );
    assert_eq!(on.steps.len(), 1);
    assert_eq!(off.steps[0].timeout, Duration::from_secs(60));
    assert_eq!((off.metrics[1].1.at_least, on.metrics[1].1.at_least), (None, Some(1.0)));
}

#[test]
fn the_clock_starts_with_the_first_step_unless_another_is_named() {
    let starts = |text: &str| {
        let experiment = parse(text, false, &[]).expect("an experiment");
        experiment.variants[0].steps.iter().map(|step| step.starts_clock).collect::<Vec<_>>()
    };
    assert_eq!(starts(FILE), [true, false]);
    assert_eq!(starts(&FILE.replace("timeout = \"2s\"", "starts_clock = true")), [false, true]);
}

#[test]
fn a_short_form_has_its_own_repetitions_and_values() {
    let experiment = parse(FILE, true, &[]).expect("an experiment");
    assert!(experiment.quick);
    assert_eq!((experiment.repetitions, names(&experiment).len()), (1, 2));
    let experiment = parse(FILE, true, &[("size", &["3", "4", "5"])]).expect("an experiment");
    assert_eq!(experiment.parameters[0], ("size".into(), vec![json!(3), json!(4), json!(5)]));
    let experiment = parse(FILE, false, &[("mode", &["7"])]).expect("an experiment");
    assert_eq!(experiment.parameters[1], ("mode".into(), vec![json!("7")]), "a text stays one");
}

#[test]
fn too_many_combinations_and_unknown_parameters_are_mistakes() {
    let many: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mistake = parse(FILE, false, &[("size", &many)]).expect_err("too many");
    assert_eq!(mistake.message, "expected parameters with at most 1000 combinations, got 1200");
    let mistake = parse(FILE, false, &[("colour", &["red"])]).expect_err("unknown");
    assert_eq!(mistake.message, "expected one of the parameters (size, mode), got \"colour\"");
    let text = FILE.replace("when = { mode = \"on\" }", "when = { colour = \"red\" }");
    let mistake = parse(&text, false, &[]).expect_err("unknown");
    assert!(mistake.message.contains("got \"colour\""), "{mistake}");
}
