//! What the demo found, for programs: summary.json.

use plait_proto::option::Mode;
use plait_wire::Role;
use serde::Serialize;

use super::document::Document;
use super::judge::{JudgedPath, JudgedRun};

/// The content of summary.json; `failures` says what did not come out as it must.
pub(super) fn json(document: &Document, runs: &[JudgedRun], failures: &[String]) -> anyhow::Result<String> {
    let summary = Summary {
        runs: runs.iter().map(RunSummary::new).collect(),
        document: DocumentSummary {
            bytes: document.text.len(),
            sha256: document.sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
        },
        kernel: kernel(),
        failures,
    };
    Ok(serde_json::to_string_pretty(&summary)? + "\n")
}

#[derive(Serialize)]
struct Summary<'a> {
    runs: Vec<RunSummary<'a>>,
    document: DocumentSummary,
    kernel: String,
    failures: &'a [String],
}

#[derive(Serialize)]
struct DocumentSummary {
    bytes: usize,
    sha256: String,
}

#[derive(Serialize)]
struct RunSummary<'a> {
    mode: Mode,
    bytes: u64,
    sha256_ok: bool,
    throughput_mbps: f64,
    first_payload_after_data_ack: bool,
    paths: Vec<PathSummary<'a>>,
}

#[derive(Serialize)]
struct PathSummary<'a> {
    name: &'a str,
    role: Role,
    rate_bps: u64,
    exposure: ExposureSummary,
    readable_fraction: f64,
}

#[derive(Serialize)]
struct ExposureSummary {
    fraction: f64,
    longest_run: u64,
    runs: usize,
}

impl<'a> RunSummary<'a> {
    fn new(run: &'a JudgedRun) -> Self {
        Self {
            mode: run.mode,
            bytes: run.bytes,
            sha256_ok: run.sha256_ok,
            throughput_mbps: run.throughput_mbps(),
            first_payload_after_data_ack: run.first_payload_after_data_ack,
            paths: run.paths.iter().map(PathSummary::new).collect(),
        }
    }
}

impl<'a> PathSummary<'a> {
    fn new(path: &'a JudgedPath) -> Self {
        Self {
            name: &path.name,
            role: path.role,
            rate_bps: path.rate.bits_per_second(),
            exposure: ExposureSummary {
                fraction: path.exposure.fraction,
                longest_run: path.exposure.longest_run,
                runs: path.exposure.runs,
            },
            readable_fraction: path.readable_fraction,
        }
    }
}

fn kernel() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}
