//! The process that owns a lab: builds it, answers the other commands, and removes it at the end.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use plait_lab::topology::Action;
use plait_lab::{Backend, Lab, Topology};
use plait_linux::signal::StopSignal;

use super::control::{Asker, Control, Request};
use super::description::Description;

/// How often it looks whether it is to stop, when no signal wakes it.
const STEP: Duration = Duration::from_millis(200);

/// Keeps the lab of a file, or of stdin (`-`), up until a signal or `plait lab down`. Once it is up, `announce` is told,
/// and the clock of its events begins.
pub(super) fn keep(
    file: &Path,
    backend: Option<Backend>,
    announce: impl FnOnce(&Description) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let interrupt = StopSignal::listen().context("cannot listen for signals")?;
    Lab::check_permitted()?;
    let topology = match file.to_str() {
        Some("-") => Topology::parse(&io::read_to_string(io::stdin()).context("cannot read stdin")?, "-")?,
        _ => Topology::read(file)?,
    };
    let mut lab = Lab::up(&topology, backend, interrupt.clone())?;
    let control = Control::open(lab.scratch())?;
    lab.start_events()?;
    let since = Instant::now();
    announce(&Description::of(&lab, file, since))?;
    let asker = answer(&control, &lab, file, since, &interrupt);
    drop(lab);
    // Whoever asked for the end waits for that of the connection.
    drop(asker);
    Ok(ExitCode::SUCCESS)
}

/// Prints a description as the line that the starter of a keeper waits for.
pub(super) fn announce_to_starter(description: &Description) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(description)?;
    line.push(b'\n');
    io::stdout().write_all(&line).context("whoever started this keeper is gone")
}

/// Answers until the lab is to end; gives whoever asked for it.
fn answer(
    control: &Control,
    lab: &Lab,
    file: &Path,
    since: Instant,
    interrupt: &StopSignal,
) -> Option<Asker> {
    while interrupt.check().is_ok() {
        let Some((request, asker)) = control.next(STEP) else { continue };
        match request {
            Request::Describe => asker.answer(&Ok(Description::of(lab, file, since))),
            Request::Event { link, event } => asker.answer(&happen(lab, &link, &event)),
            Request::Down => return Some(asker),
        }
    }
    None
}

fn happen(lab: &Lab, link: &str, event: &str) -> Result<(), String> {
    let action = Action::parse(event, "event").map_err(|mistake| mistake.to_string())?;
    lab.apply(link, &action).map_err(|error| error.to_string())
}
