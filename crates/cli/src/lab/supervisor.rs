//! The process that owns a lab: builds it, serves the other commands, and removes it at the end.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use plait_lab::topology::Action;
use plait_lab::{Backend, Lab, Seed, Topology};
use plait_linux::signal::StopSignal;

use super::control::{Client, Control, Request};
use super::description::Description;
use crate::stdout::Stdout;

/// How often the stop signal is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the lab of a file, or of stdin (`-`), until a signal or `plait lab down`. Once the lab is up, calls `announce` and
/// starts the clock of its events.
pub(super) fn run(
    file: &Path,
    backend: Option<Backend>,
    seed: Option<Seed>,
    announce: impl FnOnce(&Description) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    Lab::check_permitted()?;
    let topology = match file.to_str() {
        Some("-") => Topology::parse(&io::read_to_string(io::stdin()).context("cannot read stdin")?, "-")?,
        _ => Topology::read(file)?,
    };
    let mut lab = Lab::up(&topology, backend, seed.unwrap_or_else(Seed::random), stop.clone())?;
    let control = Control::open(lab.scratch())?;
    lab.start_events()?;
    let since = Instant::now();
    announce(&Description::of(&lab, file, since))?;
    let client = answer(&control, &lab, file, since, &stop);
    drop(lab);
    // The client of `Down` waits for the connection to close.
    drop(client);
    Ok(ExitCode::SUCCESS)
}

/// Prints the description for the process that started this supervisor.
pub(super) fn announce_on_stdout(description: &Description) -> anyhow::Result<()> {
    let line = serde_json::to_string(description)?;
    let mut out = Stdout::until_closed();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("the process that started this supervisor has ended")
}

/// Serves requests until the lab is to be removed; returns the client that asked for it.
fn answer(control: &Control, lab: &Lab, file: &Path, since: Instant, stop: &StopSignal) -> Option<Client> {
    while stop.check().is_ok() {
        let Some((request, client)) = control.next(POLL_INTERVAL) else { continue };
        match request {
            Request::Describe => client.answer(&Ok(Description::of(lab, file, since))),
            Request::Inject { link, event } => client.answer(&inject(lab, &link, &event)),
            Request::Down => return Some(client),
        }
    }
    None
}

fn inject(lab: &Lab, link: &str, event: &str) -> Result<(), String> {
    let action = Action::parse(event, "event").map_err(|diagnostic| diagnostic.to_string())?;
    lab.apply(link, &action).map_err(|error| error.to_string())
}
