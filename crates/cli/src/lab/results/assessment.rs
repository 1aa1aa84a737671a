//! How the measured values compare with the printed ones: for each value, and for each table and figure.

use std::collections::BTreeMap;

use plait_lab::experiment::{Comparison, MetricResult, Verdict};
use plait_lab::papers::{Item, Paper, Papers, PrintedValue};

use super::Found;
use crate::lab::number::format_number;

/// The state of a value, or of a table or figure, which is the last in this order that one of its values has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    NotComparable,
    Reproduced,
    NotDone,
    Differs,
}

impl State {
    pub(super) const ALL: [Self; 4] = [Self::Reproduced, Self::Differs, Self::NotComparable, Self::NotDone];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Differs => "differs",
            Self::NotComparable => "not comparable",
            Self::NotDone => "not yet done",
        }
    }
}

/// A printed value beside a measured one.
pub(super) struct Row {
    pub(super) label: String,
    pub(super) paper: String,
    pub(super) ours: String,
    pub(super) n: String,
    pub(super) state: State,
    pub(super) why: String,
}

/// A table or figure.
pub(super) struct Assessed<'a> {
    pub(super) item: &'a Item,
    pub(super) state: State,
    pub(super) why: String,
    pub(super) rows: Vec<Row>,
    /// The runs that measured it.
    pub(super) found: Vec<&'a Found>,
}

/// Assesses every table and figure of a paper, in its order.
pub(super) fn assess<'a>(paper: &'a Paper, papers: &'a Papers, all: &'a [Found]) -> Vec<Assessed<'a>> {
    paper
        .items
        .iter()
        .map(|item| assess_item(&format!("{}/{}", paper.id, item.id), item, papers, all))
        .collect()
}

fn assess_item<'a>(name: &str, item: &'a Item, papers: &'a Papers, all: &'a [Found]) -> Assessed<'a> {
    let found: Vec<&Found> =
        item.experiments.iter().flat_map(|experiment| runs_of(experiment, all)).collect();
    let rows: Vec<Row> = item
        .values
        .iter()
        .flat_map(|value| rows_of(&format!("{name}/{}", value.id), value, item, &found))
        .collect();
    let (state, why) = match item {
        Item { not_comparable: Some(why), .. } => (State::NotComparable, why.clone()),
        Item { not_done: Some(why), .. } => (State::NotDone, why.clone()),
        Item { shows, .. } if !shows.is_empty() => shown(shows, papers, all),
        _ => summary(&rows),
    };
    Assessed { item, state, why, rows, found }
}

/// The runs of an experiment, which may differ in their parameters.
pub(super) fn runs_of<'a>(experiment: &str, all: &'a [Found]) -> impl Iterator<Item = &'a Found> {
    all.iter().filter(move |found| found.results.experiment == experiment)
}

/// The state of an item that shows the values of others.
fn shown(shows: &[String], papers: &Papers, all: &[Found]) -> (State, String) {
    let others = shows.iter().filter_map(|name| {
        // An item that shows others in turn could lead back here.
        let item = papers.item(name).filter(|item| item.shows.is_empty())?;
        Some((name, assess_item(name, item, papers, all)))
    });
    let others: Vec<_> = others.collect();
    let state = others.iter().map(|(_, assessed)| assessed.state).max().unwrap_or(State::NotDone);
    let names: Vec<_> =
        others.iter().map(|(name, assessed)| format!("{} ({name})", assessed.item.name)).collect();
    (state, format!("shows the values of {}", names.join(" and ")))
}

/// The state that follows from the values', and how many have which.
fn summary(rows: &[Row]) -> (State, String) {
    let state = rows.iter().map(|row| row.state).max().unwrap_or(State::NotDone);
    let mut reasons: Vec<&str> = rows
        .iter()
        .filter(|row| row.state == state && state != State::Reproduced)
        .map(|row| &*row.why)
        .collect();
    reasons.dedup();
    let counts = State::ALL.into_iter().filter_map(|state| {
        let count = rows.iter().filter(|row| row.state == state).count();
        let word = if (state, count > 1) == (State::Differs, true) { "differ" } else { state.word() };
        (count > 0).then(|| format!("{count} {word}"))
    });
    let values = if rows.len() == 1 { "1 value".to_owned() } else { format!("{} values", rows.len()) };
    let mut why = format!("of {values}, {}", counts.collect::<Vec<_>>().join(", "));
    if let [reason, more @ ..] = &reasons[..] {
        let more = if more.is_empty() { "" } else { "; and other reasons" };
        why = format!("{why}: {reason}{more}");
    }
    (state, why)
}

/// The rows of a value: one for each metric that is compared with it.
fn rows_of(entry: &str, value: &PrintedValue, item: &Item, found: &[&Found]) -> Vec<Row> {
    let label = labelled(&value.row, &value.unit);
    let paper = printed(value);
    let compared = found.iter().flat_map(|found| {
        found.results.variants.iter().flat_map(move |variant| {
            let of_entry = variant.metrics.iter().filter_map(move |(name, measured)| {
                let comparison = measured.paper.as_ref()?;
                (comparison.entry.as_deref() == Some(entry)).then_some((name, measured, comparison))
            });
            let of_entry: Vec<_> = of_entry.collect();
            let is_one = of_entry.len() == 1;
            of_entry.into_iter().map(move |(name, measured, comparison)| {
                let metric = (!is_one).then(|| words(name));
                let of = [metric.as_deref(), Some(&*variant.name).filter(|name| !name.is_empty())];
                (
                    of.into_iter().flatten().map(|of| format!(" ({of})")).collect::<String>(),
                    measured,
                    comparison,
                )
            })
        })
    });
    let rows: Vec<Row> = compared
        .map(|(of, measured, comparison)| {
            let (state, why) = verdict(comparison);
            Row {
                label: format!("{label}{of}"),
                paper: paper.clone(),
                ours: ours(measured),
                n: measured.summary.n.to_string(),
                state,
                why,
            }
        })
        .collect();
    if !rows.is_empty() {
        return rows;
    }
    let (state, why) = match (value, item) {
        (PrintedValue { not_comparable: Some(why), .. }, _) | (_, Item { not_comparable: Some(why), .. }) => {
            (State::NotComparable, why.clone())
        }
        (PrintedValue { not_done: Some(why), .. }, _) | (_, Item { not_done: Some(why), .. }) => {
            (State::NotDone, why.clone())
        }
        _ => (State::NotDone, "the experiment has not been run since it measures this".to_owned()),
    };
    vec![Row { label, paper, ours: String::new(), n: String::new(), state, why }]
}

fn verdict(comparison: &Comparison) -> (State, String) {
    let because = || comparison.because.clone().unwrap_or_default();
    match comparison.verdict {
        None => {
            let why = comparison.because.as_deref().unwrap_or("what it measures did not occur");
            (State::NotDone, why.to_owned())
        }
        Some(Verdict::NotComparable) => (State::NotComparable, because()),
        Some(Verdict::Reproduced) => (State::Reproduced, criterion(comparison)),
        Some(Verdict::Differs) => {
            let why = match (&comparison.because, &comparison.tested_by) {
                (Some(because), Some(tested_by)) => format!("{because}; tested: {tested_by}"),
                _ => "no cause has been tested".to_owned(),
            };
            (State::Differs, format!("{why} (not {})", criterion(comparison)))
        }
    }
}

fn criterion(comparison: &Comparison) -> String {
    let factor = comparison.factor.map(|factor| match factor == 1.0 {
        true => "equal".to_owned(),
        false => format!("within a factor of {}", format_number(factor)),
    });
    match (comparison.value, factor) {
        (_, Some(factor)) => factor,
        (Some(_), None) => "within the paper's sigma".to_owned(),
        (None, None) => "within the paper's bounds".to_owned(),
    }
}

/// A printed value with its sigma, or its bounds, in the digits that the paper prints.
fn printed(value: &PrintedValue) -> String {
    let mut text = match (value.value, value.at_least, value.at_most) {
        (Some(number), ..) => number.to_string(),
        (None, Some(least), Some(most)) => format!("{least} to {most}"),
        (None, Some(least), None) => format!("at least {least}"),
        (None, None, most) => format!("at most {}", most.unwrap_or(f64::INFINITY)),
    };
    if let Some(sigma) = value.sigma {
        text += &format!(" \u{b1} {sigma}");
    }
    match &value.derived {
        Some(how) => format!("{text} ({how})"),
        None => text,
    }
}

/// A mean with the standard deviation over the repetitions.
pub(super) fn ours(measured: &MetricResult) -> String {
    let Some(mean) = measured.summary.mean else { return "none".into() };
    let sigma =
        measured.summary.stddev.map_or(String::new(), |stddev| format!(" \u{b1} {}", format_number(stddev)));
    format!("{}{sigma}", format_number(mean))
}

/// A name of the file in words; its last one is dropped where it is the unit, which stands beside it.
pub(super) fn words(name: &str) -> String {
    let units = ["_gb_per_s", "_mbps", "_percent", "_ms", "_ns", "_us", "_s"];
    let name = units.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    name.replace('_', " ")
}

pub(super) fn labelled(label: &str, unit: &str) -> String {
    if unit.is_empty() { label.to_owned() } else { format!("{label}, {unit}") }
}

/// How many have each state, in the order of [`State::ALL`].
pub(super) fn counts(states: impl Iterator<Item = State>) -> [usize; 4] {
    let mut found: BTreeMap<State, usize> = BTreeMap::new();
    for state in states {
        *found.entry(state).or_default() += 1;
    }
    State::ALL.map(|state| found.get(&state).copied().unwrap_or_default())
}
