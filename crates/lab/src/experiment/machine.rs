//! The machine and the program versions that an experiment ran with.

use std::process::Command;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::Experiment;
use crate::topology::Program;

/// A machine.
#[derive(Debug, Clone, JsonSchema, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor model.
    pub processor: String,
    /// The number of processors available to this process.
    pub processors: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
}

impl Machine {
    /// The machine that this process runs on.
    pub(super) fn this() -> Self {
        let field = |file: &str, name: &str| {
            let text = std::fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let memory = memory.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory.unwrap_or_default() / 1024,
        }
    }
}

/// Programs whose version is recorded, and the arguments that print it.
const PROGRAMS: [(&str, &str); 6] = [
    ("iperf3", "--version"),
    ("nginx", "-v"),
    ("curl", "--version"),
    ("openssl", "version"),
    ("socat", "-V"),
    ("tcpdump", "--version"),
];

/// The versions of plait and of the programs that the experiment uses.
pub(super) fn versions(experiment: &Experiment) -> IndexMap<String, String> {
    let takes_part = |program: &str| {
        let in_text = |text: &String| {
            let mut words = text.split(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)));
            words.any(|word| word == program)
        };
        experiment.variants.iter().any(|variant| {
            let by_service = variant.topology.services.iter().any(|service| match &service.program {
                Program::Command(words) => words.iter().any(in_text),
                Program::Nginx { .. } => program == "nginx",
                Program::Iperf3 => program == "iperf3",
                Program::Serve { .. } => false,
            });
            by_service
                || variant.steps.iter().any(|step| step.command.iter().any(in_text))
                || (program == "tcpdump" && !variant.capture.on.is_empty())
        })
    };
    let own = ("plait".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let others = PROGRAMS.into_iter().filter(|(program, _)| takes_part(program));
    let others = others.filter_map(|(program, option)| {
        let samples = Command::new(program).arg(option).output().ok()?;
        let samples = [samples.stdout, samples.stderr].concat();
        let samples = String::from_utf8_lossy(&samples);
        let line =
            samples.lines().find(|line| line.contains(|c: char| c.is_ascii_digit()))?.trim().to_owned();
        Some((program.to_owned(), line))
    });
    std::iter::once(own).chain(others).collect()
}
