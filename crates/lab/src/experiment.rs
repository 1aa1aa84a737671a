//! Experiments: a topology, programs that run in it, metrics, and published values to compare them with.
//!
//! An experiment is a topology file with additional tables (docs/guide/lab.md describes every key):
//!
//! ```toml
//! [experiment]
//! name = "upload"
//! title = "An upload over two links"
//! source = "A paper, Table 3"
//! description = "What is done, and what the paper found."
//! repetitions = 10
//!
//! [parameters]
//! protocol = ["tcp", "mptcp"]
//!
//! [[steps]]
//! name = "upload"
//! host = "client"
//! command = ["iperf3", "--client", "${server.lte}", "--time", "25", "--json"]
//!
//! [capture]
//! on = ["client"]
//!
//! [metrics.total_mbps]
//! measure = "throughput"
//! from = "2s"
//! to = "25s"
//! paper = { value = 7.09, sigma = 0.31 }
//! ```
//!
//! Every combination of the parameters is a [`Variant`]. [`run`] repeats each variant: it builds a new lab, captures
//! while the steps run, computes the [metrics](Measure), and discards a repetition that fails its validity checks.
//! [`Results`] holds the outcome. Every error in a file is reported with its line before anything is built.

mod compute;
mod draw;
mod execute;
mod machine;
mod measure;
mod merge;
mod metric;
mod model;
mod observations;
mod one_or_many;
mod paper;
mod parse;
mod raw;
mod results;
mod run;
mod statistics;

use std::path::Path;

use plait_config::{Diagnostic, Source};

use crate::error::Error;
use crate::topology::Document;

pub use machine::Machine;
pub use measure::{Measure, Operand, Selection, Statistic, Window};
pub use model::{Captured, Condition, Experiment, Form, Metric, Plot, Shows, Step, Variant};
pub use paper::{Cause, Comparison, PaperValue, Verdict};
pub use results::{
    Analysis, EventResult, Expectation, LinkResult, MetricResult, PlotFile, Repetition, Results, StepResult,
    VariantResult,
};
pub use run::{Options, Progress, run};
pub use statistics::Summary;

impl Experiment {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid ([`Diagnostic`]).
    pub fn read(path: &Path, form: &Form) -> Result<Self, Error> {
        let source = Source::read(path)?;
        Ok(Self::parse(source.text(), source.file(), form)?)
    }

    /// Parses a text. `name` is its file name: diagnostics show it, and relative paths are resolved against its
    /// directory.
    ///
    /// # Errors
    /// The text is invalid; the diagnostic shows the line.
    pub fn parse(text: &str, name: &str, form: &Form) -> Result<Self, Diagnostic> {
        parse::parse(Document::parse(text, name)?, form)
    }
}
