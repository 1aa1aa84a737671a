use std::io::{self, Read};

use plait_trace::document::Damaged;
use plait_trace::{AnalyzeError, Capture, Connections, Path, ReadError, ReadOptions};
use plait_wire::Role;
use thiserror::Error;

use crate::attacks::Attacks;
use crate::document::Audit;
use crate::handshake::Headers;
use crate::input::{Input, Source};
use crate::subject::Subject;
use crate::truth::Truth;
use crate::views;

/// How to audit.
#[derive(Clone, Debug)]
pub struct Options {
    /// What was really sent, to score what is recovered by. It is looked for in every stream.
    pub truth: Option<Vec<u8>>,
    /// How many runs of each path are attacked at most, the longest first.
    pub runs: usize,
    /// How much payload is held of all paths together, in bytes; what is beyond is not audited.
    pub payload_limit: u64,
}

impl Default for Options {
    /// No truth, 500 runs a path, 1 GiB of payload.
    fn default() -> Self {
        Self { truth: None, runs: 500, payload_limit: 1 << 30 }
    }
}

/// What an audit is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Some bytes of captures were read; each is read twice.
    Read(u64),
    /// All is read, and so many runs are to be attacked.
    Runs(usize),
    /// One of them was.
    Attacked,
}

/// Why captures could not be audited.
#[derive(Debug, Error)]
pub enum AuditError {
    /// A capture cannot be found, opened or read, or a file is none.
    #[error(transparent)]
    Input(#[from] AnalyzeError),
    /// Only what other tools measured was given.
    #[error("expected a capture, found none")]
    NoCapture,
    /// There is nothing to listen to.
    #[error("expected TCP in the captures, found none in {packets} packets")]
    NoTcp {
        /// How many packets were read.
        packets: u64,
    },
}

/// Audits captures of one measurement, one for each path. `progress` is told of every step, from several threads.
///
/// # Errors
/// A file cannot be opened or read, is no capture, or there is no TCP in any. A capture that is damaged further on is
/// used up to there and listed in [`Audit::damaged`].
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
        let read = Headers::read(input.capture(|file| Watched { input: file, progress })?);
        let failed = |source| AnalyzeError::Read(ReadError::Input { path: input.name.clone(), source });
        headers.push(read.map_err(failed)?);
    }
    let found = read(&inputs, options.payload_limit, progress)?;
    if found.connections.is_empty() {
        return Err(AuditError::NoTcp { packets: found.totals.packets });
    }
    let paths: Vec<_> = found.paths().map(|(id, _)| id).collect();
    let subjects: Vec<Subject> =
        found.connections.iter().map(|connection| Subject::of(connection, &paths, &headers)).collect();
    let attacks = Attacks::plan(&subjects, &paths, options.runs);
    progress(Progress::Runs(attacks.planned()));
    let attacked = attacks.carry_out(&subjects, &paths, progress);
    let truth = options.truth.as_deref().map(Truth::new);
    let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
    let paths = views::of(&names, &paths, &subjects, &headers, attacked, truth.as_ref());
    Ok(Audit {
        paths,
        packets: found.totals.packets,
        payload_dropped: found.totals.payload_dropped,
        damaged: (found.totals.cut.iter())
            .map(|cut| Damaged { capture: cut.path.clone(), error: cut.error.to_string() })
            .collect(),
    })
}

fn read(
    inputs: &[Input],
    payload_limit: u64,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Connections, AnalyzeError> {
    let mut captures = Vec::new();
    for input in inputs {
        let reader = input.capture(|file| Watched { input: file, progress })?;
        captures.push(Capture { path: Path { name: input.name.clone(), role: Role::Untrusted }, reader });
    }
    let options = ReadOptions { payload_limit, ..ReadOptions::default() };
    Connections::read(captures, options).map_err(AnalyzeError::Read)
}

struct Watched<'a, R> {
    input: R,
    progress: &'a (dyn Fn(Progress) + Sync),
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buf)?;
        (self.progress)(Progress::Read(count as u64));
        Ok(count)
    }
}
