//! The pages: the first one, one for each paper, and those of experiments of our own.

use plait_config::pluralize;
use plait_lab::papers::{Page, Paper, Papers};

use super::Found;
use super::assessment::{Assessed, State, assess, counts, runs_of};
use super::tables::{circumstances, own_bounds, table};

const INTRODUCTION: &str = "\
# Results

Every table and figure of the papers that plait implements, with the paper's value, ours, and a verdict:

- *reproduced*: our mean is within the sigma or the bounds that the paper prints, or within the stated factor;
- *differs*: it is not, because of a cause that was tested by changing it, or for a cause that has not been tested;
- *not comparable*, for the stated reason.

`plait lab results` writes these pages: the papers' values are in experiments/paper-values.toml, the measured ones in
`measured/`, and the experiments state how the two are compared. Means are over all valid repetitions, \u{b1} is the sample's
standard deviation over them. A repetition in which the emulator was late, a capture incomplete or a program failed is
discarded. [The guide](../../guide/lab.md) defines each metric.
";

/// Writes the pages: their file names and texts.
pub(super) fn write(papers: &Papers, all: &[Found]) -> Vec<(String, String)> {
    if papers.papers.is_empty() {
        return vec![("README.md".into(), own_page("Results", all.iter()))];
    }
    let assessed: Vec<_> = papers.papers.iter().map(|paper| (paper, assess(paper, papers, all))).collect();
    let mut pages = vec![("README.md".to_owned(), overview(papers, &assessed, all))];
    pages
        .extend(assessed.iter().map(|(paper, items)| (format!("{}.md", paper.id), paper_page(paper, items))));
    pages.extend(
        papers
            .pages
            .iter()
            .map(|page| (format!("{}.md", page.id), own_page(&page.title, of_page(page, all)))),
    );
    pages
}

fn of_page<'a>(page: &Page, all: &'a [Found]) -> impl Iterator<Item = &'a Found> {
    page.experiments.iter().flat_map(|experiment| runs_of(experiment, all))
}

fn overview(papers: &Papers, assessed: &[(&Paper, Vec<Assessed>)], all: &[Found]) -> String {
    let mut page = INTRODUCTION.to_owned();
    if all.iter().any(|found| found.results.quick) {
        page +=
            "\nSome values are from shortened runs (QUICK), which the line below their experiment says.\n";
    }
    let states = |items: &[Assessed]| items.iter().map(|item| item.state).collect::<Vec<_>>();
    let values = |items: &[Assessed]| items.iter().flat_map(|item| &item.rows).map(|row| row.state).collect();
    page += &count_table("Tables and figures", assessed, states);
    page += &count_table("Values", assessed, values);
    for (paper, items) in assessed {
        page +=
            &format!("\n## [{}]({}.md)\n\n| | | verdict | why |\n|---|---|---|---|\n", paper.title, paper.id);
        for Assessed { item, state, why, .. } in items {
            page += &format!(
                "| [{}]({}.md#{}) | {} | {} | {} |\n",
                item.name,
                paper.id,
                anchor(&item.name),
                item.what,
                state.word(),
                cell(why),
            );
        }
    }
    page += "\n## Our own experiments\n\nNo paper prints values for these.\n\n";
    for own in &papers.pages {
        let count = pluralize(own.experiments.len(), "experiment");
        page += &format!("- [{}]({}.md): {count}\n", own.title, own.id);
    }
    page
}

fn count_table(
    what: &str,
    assessed: &[(&Paper, Vec<Assessed>)],
    states: impl Fn(&[Assessed]) -> Vec<State>,
) -> String {
    let words = State::ALL.map(State::word).join(" | ");
    let mut table = format!("\n| {what} | {words} |\n|---|---:|---:|---:|---:|\n");
    let mut row = |name: &str, states: Vec<State>| {
        let numbers = counts(states.into_iter()).map(|count| count.to_string());
        table += &format!("| {name} | {} |\n", numbers.join(" | "));
    };
    for (paper, items) in assessed {
        row(&format!("[{}]({}.md)", paper.title, paper.id), states(items));
    }
    row("all", assessed.iter().flat_map(|(_, items)| states(items)).collect());
    table
}

fn paper_page(paper: &Paper, items: &[Assessed]) -> String {
    let mut page = format!("# {}\n\n{}.\n", paper.title, paper.cite);
    let mut shown: Vec<&Found> = Vec::new();
    for Assessed { item, state, why, rows, found } in items {
        page += &format!(
            "\n## {}\n\n{} (section {}).\n\n**{}**: {why}.\n",
            item.name,
            item.what,
            item.section,
            state.word()
        );
        if !rows.is_empty() {
            page += "\n| | paper | ours | n | verdict | why |\n|---|---:|---:|---:|---|---|\n";
            for row in rows {
                page += &format!(
                    "| {} | {} | {} | {} | {} | {} |\n",
                    row.label,
                    row.paper,
                    row.ours,
                    row.n,
                    row.state.word(),
                    cell(&row.why)
                );
            }
        }
        let name = format!("{}/{}", paper.id, item.id);
        let runs = items.iter().flat_map(|other| &other.found).copied();
        // Several items may have the same runs.
        let mut drawn: Vec<String> = Vec::new();
        for picture in runs.flat_map(|found| pictures(found, |figure| figure == Some(&*name))) {
            if !drawn.contains(&picture) {
                drawn.push(picture);
            }
        }
        page += &drawn.concat();
        for found in found {
            if shown.iter().all(|other| other.name != found.name) {
                shown.push(found);
            }
        }
    }
    if !shown.is_empty() {
        page += "\n## Experiments\n";
    }
    for found in shown {
        page += &experiment(found, "###", |figure| figure.is_none());
    }
    page
}

fn own_page<'a>(title: &str, all: impl Iterator<Item = &'a Found>) -> String {
    let mut page = format!("# {title}\n\nOur own experiments: no paper prints values for them.\n");
    for found in all {
        page += &experiment(found, "##", |_| true);
    }
    page
}

/// An experiment: what was done, everything that was measured, and how.
fn experiment(found: &Found, heading: &str, draws: impl Fn(Option<&str>) -> bool) -> String {
    let results = &found.results;
    let quick = if results.quick { " (QUICK)" } else { "" };
    let mut text = format!(
        "\n{heading} {}{quick}\n\n*{}.* {}\n",
        results.title,
        capitalised(&results.source),
        results.description
    );
    if !results.valid {
        text += &format!("\n> **NOT VALID**: {}.\n", results.invalid_because.join("; "));
    }
    text += &format!("\n{}", table(results));
    let remarks: Vec<_> = [own_bounds(results), results.note.clone().unwrap_or_default()].into();
    let remarks: Vec<_> = remarks.into_iter().filter(|remark| !remark.is_empty()).collect();
    if !remarks.is_empty() {
        text += &format!("\n{}\n", remarks.join(" "));
    }
    text += &pictures(found, draws).concat();
    text + &format!("\n<sub>{}; `measured/{}.json`</sub>\n", circumstances(results), found.name)
}

fn pictures(found: &Found, draws: impl Fn(Option<&str>) -> bool) -> Vec<String> {
    let plots = found.results.plots.iter().filter(|plot| draws(plot.figure.as_deref()));
    plots.map(|plot| format!("\n![{}]({})\n", plot.title, found.picture(&plot.svg))).collect()
}

/// A text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The name that mdBook gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || "-_".contains(c) => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
