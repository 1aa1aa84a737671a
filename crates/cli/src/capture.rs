//! `plait capture`: packets, samples of subflows, links and kernel counters of one measurement, in one directory.
//!
//! Everything is recorded while a command runs, for a time, or until a signal. Recording begins before the command
//! does and goes on until what it left behind has arrived; `capture.json` is written last and says what the directory
//! holds, and whether anything is missing.

mod document;
mod recorder;
mod tcpdump;

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use plait_gateway::exit_code;
use plait_linux::interfaces::interfaces;
use plait_linux::signal::StopSignal;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::stdout::Stdout;
use crate::time;
use crate::top::interval;
use document::{Document, EndedBy};
use recorder::{Recorder, now};
use tcpdump::Tcpdump;

/// Arguments of `plait capture`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory to record into; made if it is not there, else it must be empty
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Interface whose packets are recorded [default: each that is up, but loopback]
    #[arg(short, long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Bytes recorded of each packet [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(14..=262_144))]
    snap: Option<u32>,
    /// Which packets, as pcap-filter(7) writes it
    #[arg(long, value_name = "EXPRESSION", default_value = "tcp")]
    filter: String,
    /// Time between samples, such as 0.1s or 50ms
    #[arg(long, value_name = "TIME", default_value = "0.1s", value_parser = interval)]
    interval: Duration,
    /// End after this time, such as 30s or 5m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Print capture.json when done
    #[arg(long)]
    json: bool,
    /// The program to run and record, and its arguments; without it, Ctrl-C ends
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Records; exits as the command did, if there is one.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let names = names(&args.interfaces)?;
    make_directory(&args.output)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(record(&args, &names))
}

async fn record(args: &Args, names: &[String]) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignal::listen().context("cannot listen for signals")?;
    let mut document = Document::new(args.interval, args.snap, &args.filter, &args.command);
    let Recording { mut listeners, mut recorder, began, command } = match begin(args, names).await {
        Ok(recording) => recording,
        Err(error) => {
            // Nothing was recorded; what was begun would only keep the next attempt from this directory.
            let files = recorder::FILES.map(str::to_owned).into_iter();
            for name in files.chain(names.iter().map(|name| tcpdump::file_of(name))) {
                let _ = fs::remove_file(args.output.join(name));
            }
            return Err(error);
        }
    };
    document.begin = began;
    let mut ended = until_end(args.duration, command, &mut stop, &mut listeners, &mut recorder).await;
    // What is under way on the links, and what the kernel has yet to tell of sockets that were closed.
    if ended.is_ok() {
        sleep(LINGER).await;
        if let Some(error) = failure(&mut listeners, &mut recorder).await {
            ended = Err(error);
        }
    }
    document.end = now();
    let recorded = recorder.finish().await;
    for listener in listeners {
        document.interfaces.push(listener.stop().await);
    }
    let failed = match (ended, &recorded) {
        (Err(error), _) => Some(error),
        (Ok((by, status)), Ok(_)) => {
            document.ended_by = Some(by);
            document.exit_status = status;
            None
        }
        (Ok(_), Err(error)) => Some(anyhow::anyhow!("{error:#}")),
    };
    document.recorded = recorded.unwrap_or_default();
    document.error = failed.as_ref().map(|error| format!("{error:#}"));
    let written = document.write(&args.output);
    document.warn();
    if let Some(error) = failed {
        return Err(error);
    }
    written?;
    eprintln!("plait: {}", document.summary(&args.output));
    if args.json {
        let mut out = Stdout::new();
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)?;
        out.flush()?;
    }
    Ok(document.exit_status.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// Everything that runs during a recording.
struct Recording {
    listeners: Vec<Tcpdump>,
    recorder: Recorder,
    /// Seconds since 1970.
    began: f64,
    command: Option<Child>,
}

async fn begin(args: &Args, names: &[String]) -> anyhow::Result<Recording> {
    let mut listeners = Vec::new();
    for name in names {
        listeners.push(Tcpdump::start(name, &args.output, args.snap, &args.filter).await?);
    }
    let recorder = Recorder::start(&args.output, args.interval)?;
    eprintln!("plait: recording {} into {}", names.join(", "), args.output.display());
    let began = now();
    let command = match args.command.split_first() {
        None => None,
        Some((program, arguments)) => {
            let child = Command::new(program).args(arguments).kill_on_drop(true).spawn();
            Some(child.with_context(|| format!("cannot run {}", program.display()))?)
        }
    };
    Ok(Recording { listeners, recorder, began, command })
}

/// Waits until the recording is to end; what ended it, and the command's exit status.
async fn until_end(
    duration: Option<Duration>,
    mut command: Option<Child>,
    stop: &mut StopSignal,
    listeners: &mut [Tcpdump],
    recorder: &mut Recorder,
) -> anyhow::Result<(EndedBy, Option<u8>)> {
    let time_is_up = async {
        match duration {
            Some(duration) => sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let by = tokio::select! {
        status = wait(&mut command) => {
            return Ok((EndedBy::Command, Some(exit_code(status.context("cannot wait for the command")?))));
        }
        error = next_failure(listeners, recorder) => {
            if let Some(command) = &mut command {
                end(command, Signal::TERM, stop).await;
            }
            return Err(error);
        }
        signal = stop.next() => {
            let by = EndedBy::Signal;
            return Ok((by, match &mut command {
                // A terminal sent it to the command too.
                Some(command) if signal == Signal::INT && io::stdin().is_terminal() => {
                    match timeout(LINGER, command.wait()).await {
                        Ok(status) => status.ok().map(exit_code),
                        Err(_) => end(command, signal, stop).await,
                    }
                }
                Some(command) => end(command, signal, stop).await,
                None => None,
            }));
        }
        () = time_is_up => EndedBy::Duration,
    };
    match &mut command {
        Some(command) => Ok((by, end(command, Signal::TERM, stop).await)),
        None => Ok((by, None)),
    }
}

async fn wait(command: &mut Option<Child>) -> std::io::Result<std::process::ExitStatus> {
    match command {
        Some(command) => command.wait().await,
        None => std::future::pending().await,
    }
}

/// The first thing that goes wrong with the recording from now on.
async fn next_failure(listeners: &mut [Tcpdump], recorder: &mut Recorder) -> anyhow::Error {
    loop {
        if let Some(error) = failure(listeners, recorder).await {
            return error;
        }
        sleep(LOOK).await;
    }
}

/// What has gone wrong with the recording.
async fn failure(listeners: &mut [Tcpdump], recorder: &mut Recorder) -> Option<anyhow::Error> {
    for listener in listeners {
        if let Some(error) = listener.failure().await {
            return Some(error);
        }
    }
    recorder.failure()
}

/// Asks a command to end; kills it if it takes too long, or at another signal. Its exit status.
async fn end(command: &mut Child, signal: Signal, stop: &mut StopSignal) -> Option<u8> {
    if let Some(pid) = command.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        let _ = kill_process(pid, signal);
    }
    tokio::select! {
        status = command.wait() => return status.ok().map(exit_code),
        _ = stop.next() => {}
        () = sleep(PATIENCE) => {}
    }
    let _ = command.kill().await;
    command.wait().await.ok().map(exit_code)
}

/// The interfaces to record: those wanted, or all that are of use.
fn names(wanted: &[String]) -> anyhow::Result<Vec<String>> {
    let present = interfaces().context("cannot list the interfaces")?;
    let known = || present.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut names: Vec<String> = Vec::new();
    for name in wanted {
        let Some(interface) = present.iter().find(|interface| interface.name == *name) else {
            bail!("expected an interface, found no {name}: there are {}", known());
        };
        ensure!(interface.up, "interface {name} is down: switch it on with `ip link set {name} up`");
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    if wanted.is_empty() {
        let useful = present.iter().filter(|interface| interface.up && !interface.loopback);
        names.extend(useful.map(|interface| interface.name.clone()));
        ensure!(
            !names.is_empty(),
            "no interface but loopback is up: name those to record with -i (there are {})",
            known()
        );
    }
    Ok(names)
}

/// Makes the directory, or checks that it holds nothing that could be mistaken for a part of this recording.
fn make_directory(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create the directory {}", directory.display()))?;
    let first = fs::read_dir(directory).and_then(|mut entries| entries.next().transpose());
    match first {
        Ok(None) => Ok(()),
        Ok(Some(entry)) => bail!(
            "expected {} to be empty, found {} in it: name a new directory",
            directory.display(),
            entry.file_name().display()
        ),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            bail!("expected a directory, found the file {}", directory.display())
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot read the directory {}", directory.display()))
        }
    }
}

/// From a millisecond to a week.
fn duration(text: &str) -> Result<Duration, String> {
    time::duration(text, time::LONG, 0.001..=604_800.0)
        .ok_or_else(|| "expected a time from 1ms to 168h, such as 30s or 5m".into())
}

/// How soon a failure of the recording is noticed.
const LOOK: Duration = Duration::from_millis(50);
/// How long a command may take to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(15);
/// tcpdump takes packets from the kernel once a second.
const LINGER: Duration = Duration::from_millis(1200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let read = ["1500ms", "2s", "2", "0.5m", "1h"].map(|text| duration(text).map(|d| d.as_millis()));
        assert_eq!(read, [Ok(1500), Ok(2000), Ok(2000), Ok(30_000), Ok(3_600_000)]);
        for wrong in ["", "0", "-1s", "NaN", "inf", "1d", "200h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
