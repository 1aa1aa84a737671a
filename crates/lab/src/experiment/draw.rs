//! Draws the charts of an experiment.

use std::fs;
use std::io;
use std::path::Path;

use plait_trace::plot::{Curve, Over, Plot as Picture, Style, Sweep, Value as Point};
use serde_json::Value;

use super::model::{Condition, Experiment, Plot, Shows, text_of};
use super::results::{PlotFile, Results, VariantResult};

/// Draws the experiment's charts into `directory`, as SVG and PNG. Skips charts without data.
///
/// # Errors
/// A file cannot be read or written.
pub(super) fn draw(
    experiment: &Experiment,
    results: &Results,
    directory: &Path,
) -> io::Result<Vec<PlotFile>> {
    let mut drawn = Vec::new();
    fs::create_dir_all(directory.join("plots"))?;
    for (index, plot) in experiment.plots.iter().enumerate() {
        let name = format!("plots/{}-{}", index + 1, file_name(&plot.title));
        let (svg, png) = (format!("{name}.svg"), format!("{name}.png"));
        let variants: Vec<_> = results.variants.iter().filter(|variant| fits(&plot.when, variant)).collect();
        let found = match &plot.shows {
            Shows::Sweep { metric, x, series } => {
                let picture = sweep(plot, (metric, x, series.as_deref()), &variants, results);
                Some((picture.svg.into_bytes(), picture.png))
            }
            Shows::Throughput => over_time("throughput", &variants, directory)?,
            Shows::RoundTrip => over_time("rtt", &variants, directory)?,
            Shows::Sequence => over_time("sequence", &variants, directory)?,
        };
        if let Some((as_svg, as_png)) = found {
            fs::write(directory.join(&svg), as_svg)?;
            fs::write(directory.join(&png), as_png)?;
            drawn.push(PlotFile { title: plot.title.clone(), svg, png, figure: plot.figure.clone() });
        }
    }
    Ok(drawn)
}

fn fits(when: &Condition, variant: &VariantResult) -> bool {
    let parameters: Vec<_> = variant.parameters.clone().into_iter().collect();
    when.holds(&parameters)
}

/// Converts a title to a file name.
pub(super) fn file_name(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

/// The chart of the main connection in the analysis of the first variant that has one, if it was drawn.
fn over_time(
    what: &str,
    variants: &[&VariantResult],
    directory: &Path,
) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let Some(analysis) = variants.iter().find_map(|variant| variant.analysis.as_ref()) else {
        return Ok(None);
    };
    let name = format!("plots/connection-{}-{what}.svg", analysis.connection);
    let svg = directory.join(&analysis.directory).join(name);
    match fs::read(&svg) {
        Ok(drawn) => Ok(Some((drawn, fs::read(svg.with_extension("png"))?))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn sweep(
    plot: &Plot,
    (metric, x, series): (&str, &str, Option<&str>),
    variants: &[&VariantResult],
    results: &Results,
) -> Picture {
    let values = |name: &str| {
        let all = results.parameters.get(name).cloned().unwrap_or_default();
        let has = |value: &Value| variants.iter().any(|variant| variant.parameters.get(name) == Some(value));
        all.into_iter().filter(has).collect::<Vec<_>>()
    };
    let places = values(x);
    let numbers: Option<Vec<f64>> = places.iter().map(Value::as_f64).collect();
    let over = numbers.map_or_else(|| Over::Names(places.iter().map(text_of).collect()), Over::Numbers);
    let of = |place: &Value, value: Option<(&str, &Value)>| {
        let variant = variants.iter().find(|variant| {
            variant.parameters.get(x) == Some(place)
                && value.is_none_or(|(name, value)| variant.parameters.get(name) == Some(value))
        })?;
        let measured = variant.metrics.get(metric)?;
        let (mean, error) = (measured.summary.mean?, measured.summary.confidence.unwrap_or_default());
        Some(Point { mean, error, reference: measured.paper.as_ref().and_then(|paper| paper.value) })
    };
    let curve = |index: usize, label: String, value: Option<(&str, &Value)>| Curve {
        label,
        style: Style::Nth(index),
        values: places.iter().map(|place| of(place, value)).collect(),
    };
    let curves = match series {
        Some(name) => {
            let values = values(name);
            let values = values.iter().enumerate();
            values
                .map(|(index, value)| curve(index, format!("{name} {}", text_of(value)), Some((name, value))))
                .collect()
        }
        None => vec![curve(0, metric.replace('_', " "), None)],
    };
    let unit = results.metrics.iter().find(|(name, _)| name.split('[').next() == Some(metric));
    let unit = unit.map_or(String::new(), |(_, measured)| measured.unit.clone());
    let interval = if results.repetitions > 1 { " and 95 % confidence interval" } else { "" };
    let runs = if results.repetitions == 1 { "run" } else { "runs" };
    let quick = if results.quick { "QUICK: " } else { "" };
    let sweep = Sweep {
        title: plot.title.clone(),
        note: format!("{quick}mean{interval} of {} {runs}", results.repetitions),
        y_label: if unit.is_empty() { metric.replace('_', " ") } else { unit },
        x_label: x.replace('_', " "),
        over,
        reference: "the paper's value".into(),
        curves,
    };
    Picture::draw(file_name(&plot.title), &sweep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_become_names_of_files() {
        assert_eq!(file_name("Return after a cut: 2 paths (10 Mb/s)"), "return-after-a-cut-2-paths-10-mb-s");
    }
}
