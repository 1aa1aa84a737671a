//! The audit: read the captures, attack what they contain, and describe the outcome.

use plait_config::Role;
use plait_trace::document::DamagedCapture;
use plait_trace::{Capture, Connections, InputError, Path, ReadError, ReadOptions};
use thiserror::Error;

use crate::document::Audit;
use crate::ground_truth::GroundTruth;
use crate::headers::Headers;
use crate::input::{Input, Source};
use crate::plan::Plan;
use crate::progress::{Progress, ProgressReader};
use crate::target::Target;
use crate::views;

/// Options of an audit.
#[derive(Clone, Debug)]
pub struct Options {
    /// The plaintext that was really sent, to score the recovered bytes. It is looked for in every stream.
    pub ground_truth: Option<Vec<u8>>,
    /// How many runs per path are attacked at most, the longest first.
    pub runs: usize,
    /// How many bytes of payload are held for all paths together; payload beyond that is not audited.
    pub payload_limit: u64,
}

impl Default for Options {
    /// No ground truth, 500 runs per path, 1 GiB of payload.
    fn default() -> Self {
        Self { ground_truth: None, runs: 500, payload_limit: 1 << 30 }
    }
}

/// Why captures could not be audited.
#[derive(Debug, Error)]
pub enum AuditError {
    /// A capture cannot be found, opened or read, or a file is not a capture.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A capture cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Only files of external metrics were given.
    #[error("expected a capture, got none")]
    NoCapture,
    /// The captures contain no TCP.
    #[error("expected TCP in the captures, got none in {packets} packets")]
    NoTcp {
        /// The number of packets read.
        packets: u64,
    },
}

/// Audits the captures of one measurement, one per path. `progress` is called from several threads.
///
/// # Errors
/// A file cannot be opened or read or is not a capture, or no capture contains TCP. A capture with damaged records is
/// used up to the first of them and listed in [`Audit::damaged`].
pub fn audit(
    sources: &[Source],
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Audit, AuditError> {
    let inputs: Vec<Option<Input>> = sources.iter().map(Input::open).collect::<Result<_, _>>()?;
    let inputs: Vec<Input> = inputs.into_iter().flatten().collect();
    if inputs.is_empty() {
        return Err(AuditError::NoCapture);
    }
    let mut headers = Vec::new();
    for input in &inputs {
        let read = Headers::read(input.reader(|file| ProgressReader { input: file, progress })?);
        let failed = |source| ReadError::Input { path: input.name.clone(), source };
        headers.push(read.map_err(failed)?);
    }
    let found = read(&inputs, options.payload_limit, progress)?;
    if found.connections.is_empty() {
        return Err(AuditError::NoTcp { packets: found.totals.packets });
    }
    let paths: Vec<_> = found.paths().map(|(id, _)| id).collect();
    let targets: Vec<Target> =
        found.connections.iter().map(|connection| Target::new(connection, &paths, &headers)).collect();
    let plan = Plan::new(&targets, &paths, options.runs);
    progress(Progress::Planned(plan.len()));
    let outcomes = plan.execute(&targets, &paths, progress);
    let truth = options.ground_truth.as_deref().map(GroundTruth::new);
    let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
    let dropped = found.totals.payload_dropped > 0;
    let paths = views::build(&names, &paths, &targets, &headers, outcomes, dropped, truth.as_ref());
    Ok(Audit {
        paths,
        packets: found.totals.packets,
        payload_dropped: found.totals.payload_dropped,
        damaged: found.totals.damaged.iter().map(DamagedCapture::from).collect(),
    })
}

fn read(
    inputs: &[Input],
    payload_limit: u64,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Connections, AuditError> {
    let mut captures = Vec::new();
    for input in inputs {
        let reader = input.reader(|file| ProgressReader { input: file, progress })?;
        captures.push(Capture { path: Path { name: input.name.clone(), role: Role::Untrusted }, reader });
    }
    let options = ReadOptions { payload_limit, ..ReadOptions::default() };
    Ok(Connections::read(captures, options)?)
}
