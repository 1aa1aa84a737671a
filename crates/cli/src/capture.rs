//! `plait capture`: records the packets, subflow samples, links and kernel counters of a measurement in one directory.
//!
//! A recording lasts as long as a command, for a fixed time, or until a signal. It starts before the command and continues
//! briefly after it, to include packets in flight. `capture.json` is written last; it describes the directory and reports
//! anything missing.

mod document;
mod recorder;
mod tcpdump;

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use plait_config::{TextError, parse_duration_or_seconds};
use plait_gateway::exit_code;
use plait_linux::clock::unix_seconds;
use plait_linux::interfaces::interfaces;
use plait_linux::signal::StopSignal;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::stderr::eprintln;
use crate::stdout::print_json;
use crate::top::interval;
use document::{Document, EndedBy};
use recorder::Recorder;
use tcpdump::Tcpdump;

/// Arguments of `plait capture`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Output directory; created if missing, must be empty
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Interface to capture on; repeatable [default: all that are up, except loopback]
    #[arg(short, long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Bytes to capture of each packet [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(14..=262_144))]
    snaplen: Option<u32>,
    /// Packets to capture, as a pcap-filter(7) expression
    #[arg(long, value_name = "EXPRESSION", default_value = "tcp")]
    filter: String,
    /// Time between samples, such as 0.1s or 50ms
    #[arg(long, value_name = "TIME", default_value = "0.1s", value_parser = interval)]
    interval: Duration,
    /// Stop after this time, such as 30s or 5m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Print capture.json when done
    #[arg(long)]
    json: bool,
    /// Program to run, with its arguments; without one, record until Ctrl-C
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Records; the exit status is that of the command, if there is one.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let names = select_interfaces(&args.interfaces)?;
    create_directory(&args.output)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(record(&args, &names))
}

async fn record(args: &Args, names: &[String]) -> anyhow::Result<ExitCode> {
    let mut stop = StopSignal::listen().context("cannot listen for signals")?;
    let mut document = Document::new(args.interval, args.snaplen, &args.filter, &args.command);
    let Recording { mut tcpdumps, mut recorder, began, command } = match start(args, names).await {
        Ok(recording) => recording,
        Err(error) => {
            // Remove partial files, so that the directory is empty for the next attempt.
            let files = recorder::FILES.map(str::to_owned).into_iter();
            for name in files.chain(names.iter().map(|name| tcpdump::file_name(name))) {
                let _ = fs::remove_file(args.output.join(name));
            }
            return Err(error);
        }
    };
    document.begin = began;
    let mut ended = until_end(args.duration, command, &mut stop, &mut tcpdumps, &mut recorder).await;
    // Wait for packets in flight and for the kernel's notifications about closed sockets.
    if ended.is_ok() {
        sleep(DRAIN_TIME).await;
        if let Some(error) = failure(&mut tcpdumps, &mut recorder).await {
            ended = Err(error);
        }
    }
    document.end = unix_seconds();
    let recorded = recorder.finish().await;
    for tcpdump in tcpdumps {
        document.interfaces.push(tcpdump.stop().await);
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
        print_json(&document)?;
    }
    Ok(document.exit_status.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// A recording in progress.
struct Recording {
    tcpdumps: Vec<Tcpdump>,
    recorder: Recorder,
    /// Seconds since 1970.
    began: f64,
    command: Option<Child>,
}

async fn start(args: &Args, names: &[String]) -> anyhow::Result<Recording> {
    let mut tcpdumps = Vec::new();
    for name in names {
        tcpdumps.push(Tcpdump::start(name, &args.output, args.snaplen, &args.filter).await?);
    }
    let recorder = Recorder::start(&args.output, args.interval)?;
    eprintln!("plait: recording {} into {}", names.join(", "), args.output.display());
    let began = unix_seconds();
    let command = match args.command.split_first() {
        None => None,
        Some((program, arguments)) => {
            let child = Command::new(program).args(arguments).kill_on_drop(true).spawn();
            Some(child.with_context(|| format!("cannot run {}", program.display()))?)
        }
    };
    Ok(Recording { tcpdumps, recorder, began, command })
}

/// Waits until the recording ends. Returns what ended it, and the command's exit status.
async fn until_end(
    duration: Option<Duration>,
    mut command: Option<Child>,
    stop: &mut StopSignal,
    tcpdumps: &mut [Tcpdump],
    recorder: &mut Recorder,
) -> anyhow::Result<(EndedBy, Option<u8>)> {
    let deadline = async {
        match duration {
            Some(duration) => sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    let by = tokio::select! {
        status = wait(&mut command) => {
            return Ok((EndedBy::Command, Some(exit_code(status.context("cannot wait for the command")?))));
        }
        error = next_failure(tcpdumps, recorder) => {
            if let Some(command) = &mut command {
                terminate(command, Signal::TERM, stop).await;
            }
            return Err(error);
        }
        signal = stop.next() => {
            let by = EndedBy::Signal;
            return Ok((by, match &mut command {
                // The terminal sent Ctrl-C to the command too.
                Some(command) if signal == Signal::INT && io::stdin().is_terminal() => {
                    match timeout(DRAIN_TIME, command.wait()).await {
                        Ok(status) => status.ok().map(exit_code),
                        Err(_) => terminate(command, signal, stop).await,
                    }
                }
                Some(command) => terminate(command, signal, stop).await,
                None => None,
            }));
        }
        () = deadline => EndedBy::Duration,
    };
    match &mut command {
        Some(command) => Ok((by, terminate(command, Signal::TERM, stop).await)),
        None => Ok((by, None)),
    }
}

async fn wait(command: &mut Option<Child>) -> std::io::Result<std::process::ExitStatus> {
    match command {
        Some(command) => command.wait().await,
        None => std::future::pending().await,
    }
}

/// Waits for the recording to fail.
async fn next_failure(tcpdumps: &mut [Tcpdump], recorder: &mut Recorder) -> anyhow::Error {
    loop {
        if let Some(error) = failure(tcpdumps, recorder).await {
            return error;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// The failure of a tcpdump or the recorder, if any.
async fn failure(tcpdumps: &mut [Tcpdump], recorder: &mut Recorder) -> Option<anyhow::Error> {
    for tcpdump in tcpdumps {
        if let Some(error) = tcpdump.failure().await {
            return Some(error);
        }
    }
    recorder.failure()
}

/// Terminates the command with a signal, and kills it after [`EXIT_TIMEOUT`] or at a second stop signal. Returns its exit
/// status.
async fn terminate(command: &mut Child, signal: Signal, stop: &mut StopSignal) -> Option<u8> {
    if let Some(pid) = command.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        let _ = kill_process(pid, signal);
    }
    tokio::select! {
        status = command.wait() => return status.ok().map(exit_code),
        _ = stop.next() => {}
        () = sleep(EXIT_TIMEOUT) => {}
    }
    let _ = command.kill().await;
    command.wait().await.ok().map(exit_code)
}

/// The interfaces to record: those given, or all that are up except loopback.
fn select_interfaces(requested: &[String]) -> anyhow::Result<Vec<String>> {
    let present = interfaces().context("cannot list the interfaces")?;
    let known = || present.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut names: Vec<String> = Vec::new();
    for name in requested {
        let Some(interface) = present.iter().find(|interface| interface.name == *name) else {
            bail!("expected one of the interfaces {}, got {name}", known());
        };
        ensure!(interface.up, "interface {name} is down: bring it up with `ip link set {name} up`");
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    if requested.is_empty() {
        let usable = present.iter().filter(|interface| interface.up && !interface.loopback);
        names.extend(usable.map(|interface| interface.name.clone()));
        ensure!(
            !names.is_empty(),
            "no interface except loopback is up: select interfaces with -i ({} exist)",
            known()
        );
    }
    Ok(names)
}

/// Creates the directory, or checks that it is empty.
fn create_directory(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create the directory {}", directory.display()))?;
    let first = fs::read_dir(directory).and_then(|mut entries| entries.next().transpose());
    match first {
        Ok(None) => Ok(()),
        Ok(Some(entry)) => bail!(
            "expected {} to be empty, got a directory that contains {}: choose another directory",
            directory.display(),
            entry.file_name().display()
        ),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            bail!("expected a directory, got the file {}", directory.display())
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot read the directory {}", directory.display()))
        }
    }
}

/// Parses a duration from a millisecond to a week.
fn duration(text: &str) -> Result<Duration, TextError> {
    parse_duration_or_seconds(text, &(Duration::from_millis(1)..=Duration::from_secs(7 * 86_400)))
}

/// How often failures of the recording are checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the command may take to exit after a signal.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long recording continues after the end; tcpdump reads packets from the kernel once a second.
const DRAIN_TIME: Duration = Duration::from_millis(1200);

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
