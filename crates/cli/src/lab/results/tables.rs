//! The measured values of one run, as tables.

use std::fmt::Write as _;

use plait_lab::experiment::{MetricResult, Results, VariantResult};

use super::assessment::{labelled, ours, words};
use crate::lab::number::{format_limits, format_number};

/// A table of more columns than this is wider than a page.
const MAX_COLUMNS: usize = 10;

/// A row for each metric, or, of several variants, a row for each variant, if these have few metrics.
pub(super) fn table(results: &Results) -> String {
    match &results.variants[..] {
        [variant] if variant.parameters.is_empty() => by_metric(variant),
        variants => by_variant(results, variants),
    }
}

fn by_metric(variant: &VariantResult) -> String {
    let mut table =
        String::from("| metric | mean | sigma | 95 % | n | own bound |\n|---|---:|---:|---:|---:|---|\n");
    for (name, measured) in &variant.metrics {
        let number = |value: Option<f64>| value.map_or(String::new(), format_number);
        let summary = &measured.summary;
        let interval = summary.mean.zip(summary.confidence);
        let interval = interval.map_or(String::new(), |(mean, half)| {
            format!("{} to {}", format_number(mean - half), format_number(mean + half))
        });
        let bound = measured.expect.map_or(String::new(), |bound| {
            format!("{}: {}", format_limits(&bound), if bound.met { "met" } else { "**not met**" })
        });
        // Writing into a string does not fail.
        let _ = writeln!(
            table,
            "| {} | {} | {} | {interval} | {} | {bound} |",
            named(name, &measured.unit),
            summary.mean.map_or("none".into(), format_number),
            number(summary.stddev),
            summary.n,
        );
    }
    table
}

fn by_variant(results: &Results, variants: &[VariantResult]) -> String {
    let mut metrics: Vec<(&String, &MetricResult)> = Vec::new();
    for (name, measured) in variants.iter().flat_map(|variant| &variant.metrics) {
        if metrics.iter().all(|(known, _)| *known != name) {
            metrics.push((name, measured));
        }
    }
    if metrics.len() > MAX_COLUMNS.max(variants.len()) {
        return of_variants(&metrics, variants);
    }
    let headings = results.parameters.keys().map(|name| words(name));
    let headings = headings.chain(metrics.iter().map(|(name, measured)| named(name, &measured.unit)));
    let columns = results.parameters.len();
    let mut rows = vec![
        format!("| {} | n |", headings.collect::<Vec<_>>().join(" | ")),
        format!("{}{}|---:|", "|---".repeat(columns), "|---:".repeat(metrics.len())),
    ];
    for variant in variants {
        let values =
            results.parameters.keys().map(|name| variant.parameters.get(name).map_or(String::new(), text));
        let cells = metrics.iter().map(|(name, _)| variant.metrics.get(*name).map_or(String::new(), cell));
        let n = variant.metrics.values().map(|measured| measured.summary.n).max().unwrap_or_default();
        rows.push(format!("| {} | {n} |", values.chain(cells).collect::<Vec<_>>().join(" | ")));
    }
    rows.join("\n") + "\n"
}

/// A row for each metric, and a column for each variant.
fn of_variants(metrics: &[(&String, &MetricResult)], variants: &[VariantResult]) -> String {
    let names: Vec<_> = variants.iter().map(|variant| variant.name.as_str()).collect();
    let mut table = format!("| metric | {} |\n|---|{}\n", names.join(" | "), "---:|".repeat(variants.len()));
    for (name, measured) in metrics {
        let cells = variants.iter().map(|variant| variant.metrics.get(*name).map_or(String::new(), cell));
        let _ = writeln!(
            table,
            "| {} | {} |",
            named(name, &measured.unit),
            cells.collect::<Vec<_>>().join(" | ")
        );
    }
    let n =
        variants.iter().flat_map(|variant| variant.metrics.values()).map(|measured| measured.summary.n).max();
    table + &format!("\nn = {}.\n", n.unwrap_or_default())
}

fn cell(measured: &MetricResult) -> String {
    let missed = measured.expect.filter(|bound| !bound.met);
    let missed = missed.map_or(String::new(), |bound| format!(" **not {}**", format_limits(&bound)));
    format!("{}{missed}", ours(measured))
}

/// The experiment's own bounds, and how many means are within them; empty without any.
pub(super) fn own_bounds(results: &Results) -> String {
    let metrics = || results.variants.iter().flat_map(|variant| variant.metrics.values());
    let bounds: Vec<_> = metrics().filter_map(|measured| measured.expect).collect();
    match bounds.iter().filter(|bound| bound.met).count() {
        _ if bounds.is_empty() => String::new(),
        met => format!("Own bounds: {met} of {} met.", bounds.len()),
    }
}

/// How it was measured, in a line.
pub(super) fn circumstances(results: &Results) -> String {
    let Results { experiment, repetitions, backend, kernel, machine, started, discarded, .. } = results;
    let variants = match results.variants.len() {
        1 => String::new(),
        count => format!(" of each of {count} variants"),
    };
    let lateness = results.lateness_p99_ms.map_or(String::new(), |latest| {
        format!(
            "; lateness p99 {} ms (limit {} ms)",
            format_number(latest),
            format_number(results.lateness_limit_ms)
        )
    });
    let repetitions =
        if *repetitions == 1 { "1 repetition".into() } else { format!("{repetitions} repetitions") };
    let versions = results.versions.iter().map(|(name, version)| match name.as_str() {
        "plait" => format!("plait {version}"),
        // results.json has what it was built with.
        _ => version.split(" (").next().unwrap_or(version).to_owned(),
    });
    let seed = results.seed.map_or("not recorded".into(), |seed| seed.to_string());
    let exact = results.variants.iter().flat_map(|variant| variant.metrics.values());
    let rounded =
        exact.map(|measured| measured.summary).any(|summary| summary.n > 0 && summary.min.is_none());
    let rounded = if rounded { "; four digits, carried over from an earlier page" } else { "" };
    format!(
        "{experiment}: measured {started}, {repetitions}{variants}, {discarded} discarded{lateness}; seed {seed}; \
         backend {backend}; kernel {kernel}; {} x {}, {} MiB; {}; {} s{rounded}",
        machine.processors,
        machine.processor,
        machine.memory_mib,
        versions.collect::<Vec<_>>().join(", "),
        format_number(results.duration_s.round()),
    )
}

fn named(name: &str, unit: &str) -> String {
    labelled(&words(name), unit)
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
