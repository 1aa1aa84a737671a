//! `plait audit`: attack captures as an eavesdropper on each path would, and report what that recovers.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;

use anstyle::Style;
use anyhow::{Context as _, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use plait_audit::{Audit, Conclusion, Options, PathView, Progress, Source, audit, write_html};
use plait_config::AtomicFile;

use crate::analyze::progress_bar;
use crate::escape::escape_line;
use crate::stderr::eprintln;
use crate::stdout::{BAD, BOLD, GOOD, Stdout, StyledText, json_text};

/// Arguments of `plait audit`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Captures, one per path, or directories of captures; - reads stdin
    #[arg(required = true, value_name = "CAPTURE|DIR")]
    captures: Vec<PathBuf>,
    /// The plaintext that was sent, to score the recovered bytes
    #[arg(long, value_name = "FILE")]
    ground_truth: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write an HTML page that shows the paths side by side
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Maximum number of contiguous runs to attack per path, longest first
    #[arg(long, value_name = "N", default_value_t = 500)]
    runs: usize,
    /// Exit with 1 unless every path could be judged completely
    #[arg(long)]
    strict: bool,
}

/// Audits the captures and prints the result.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let ground_truth = args
        .ground_truth
        .as_ref()
        .map(|file| fs::read(file).with_context(|| format!("cannot read {}", file.display())));
    let options = Options { ground_truth: ground_truth.transpose()?, runs: args.runs, ..Options::default() };
    let report = args.report.map(AtomicFile::create).transpose()?;
    let sources = Source::all(&args.captures)?;
    let progress = ProgressDisplay::new(&sources);
    let found = audit(&sources, &options, &|step| progress.step(step));
    progress.bar.finish_and_clear();
    let found = found?;
    if let Some(mut report) = report {
        write_html(&found, &mut report)?;
        report.publish()?;
    }
    warn(&found);
    let printed = if args.json { print_json(&found) } else { print_table(&found) };
    match printed {
        // The reader closed the pipe, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    ensure!(!args.strict || unjudged(&found).is_empty(), "cannot judge {}", unjudged(&found).join(", "));
    Ok(())
}

/// The paths of which evidence is missing.
fn unjudged(audit: &Audit) -> Vec<&str> {
    let paths = audit.paths.iter().filter(|path| !path.missing_evidence.is_empty());
    paths.map(|path| path.path.as_str()).collect()
}

/// A progress bar, if stderr is a terminal.
struct ProgressDisplay {
    bar: ProgressBar,
}

impl ProgressDisplay {
    fn new(sources: &[Source]) -> Self {
        let files: Vec<PathBuf> = sources.iter().map(|source| source.file.clone()).collect();
        let bar = progress_bar(&files);
        if let Some(length) = bar.length() {
            // Each capture is read twice.
            bar.set_length(2 * length);
        }
        Self { bar }
    }

    fn step(&self, step: Progress) {
        match step {
            Progress::Read(bytes) => self.bar.inc(bytes),
            Progress::Attacked => self.bar.inc(1),
            Progress::Planned(runs) => {
                let style =
                    ProgressStyle::with_template("{wide_bar} {pos} of {len} runs attacked, {eta} left");
                self.bar.set_style(style.expect("a template of known fields"));
                self.bar.set_position(0);
                self.bar.set_length(runs as u64);
                self.bar.reset_eta();
            }
        }
    }
}

/// Prints warnings about incomplete input.
fn warn(audit: &Audit) {
    let mut warnings: Vec<String> = (audit.damaged.iter())
        .map(|damaged| format!("{}: {}; packets before the damage are used", damaged.capture, damaged.error))
        .collect();
    if audit.payload_dropped > 0 {
        warnings.push(format!(
            "{} bytes of payload exceed the memory limit and are not audited",
            audit.payload_dropped
        ));
    }
    for warning in warnings {
        eprintln!("plait: {warning}");
    }
}

fn print_json(audit: &Audit) -> io::Result<()> {
    let mut out = Stdout::until_closed();
    writeln!(out, "{}", json_text(audit)?)?;
    out.flush()
}

fn print_table(audit: &Audit) -> io::Result<()> {
    let mut text = StyledText::default();
    // Writing to it cannot fail.
    let _ = write_table(audit, &mut text);
    let mut out = Stdout::until_closed();
    out.write_styled(&text)?;
    out.flush()
}

fn write_table(audit: &Audit, out: &mut StyledText) -> std::fmt::Result {
    let names: Vec<_> = audit.paths.iter().map(|path| escape_line(&path.path)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max("path".len());
    let heading = format!(
        "{:<width$}  {:<7} {:>9} {:>8} {:>14} {:>10} {:>9} {:>8}\n",
        "path", "mode", "crossed", "runs", "longest run", "read", "correct", "time"
    );
    out.push(BOLD, heading);
    for (path, name) in audit.paths.iter().zip(&names) {
        let PathView { exposure, .. } = path;
        let style = match path.conclusion {
            Conclusion::NothingCrossed | Conclusion::CannotJudge => Style::new(),
            Conclusion::NothingRead => GOOD,
            Conclusion::Read => BAD,
        };
        write!(
            out,
            "{name:<width$}  {:<7} {:>9} {:>8} {:>12} B ",
            path.mode.map_or("-", plait_audit::Mode::name),
            percent(exposure.fraction),
            exposure.runs,
            exposure.longest_run,
        )?;
        out.push(style, format_args!("{:>10}", share_read(path)));
        writeln!(
            out,
            " {:>9} {:>6.1} s",
            path.correct_fraction.map_or_else(|| "-".into(), percent),
            path.attack_seconds,
        )?;
    }
    for (path, name) in audit.paths.iter().zip(&names) {
        out.push(BOLD, format_args!("\n{name}"));
        writeln!(out, ": {}", path.verdict)?;
    }
    writeln!(
        out,
        "\ncrossed: share of the connections' streams that crossed the path. read: share of that which an eavesdropper recovers as plaintext; \
         ? where that cannot be judged.{}",
        match audit.paths.iter().any(|path| path.correct_fraction.is_some()) {
            true => "\ncorrect: share of the ground truth that crossed and was recovered correctly.",
            false => "",
        }
    )
}

fn share_read(path: &PathView) -> String {
    match path.conclusion {
        Conclusion::CannotJudge => "?".into(),
        _ if !path.missing_evidence.is_empty() => format!(">= {}", percent(path.recovered_fraction)),
        _ => percent(path.recovered_fraction),
    }
}

fn percent(fraction: f64) -> String {
    format!("{:.2} %", 100.0 * fraction)
}
