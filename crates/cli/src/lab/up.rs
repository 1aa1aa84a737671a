//! `plait lab up`: starts the supervisor of a lab and waits until the lab is up.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use plait_lab::{Backend, Lab, Seed};
use plait_linux::signal::StopSignal;
use rustix::process::{Pid, Signal, kill_process};

use super::broken_pipe::terminate_without_reader;
use super::description::Description;
use super::{ps, supervisor};
use crate::stderr::{self, eprintln};
use crate::stdout::{print_json, print_text};

/// Build the hosts, links and services of a topology, and keep them until `plait lab down`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The topology, in TOML (docs/guide/lab.md); - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The backend of all links, instead of the file's: emu, netem or none
    #[arg(long, value_name = "BACKEND")]
    backend: Option<Backend>,
    /// Seed of everything random in the lab, to repeat a run [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<Seed>,
    /// Stay in the foreground until Ctrl-C; with --json also until the reader of stdout closes it
    #[arg(long)]
    foreground: bool,
    /// Print JSON, as `plait lab ps --json` does for each lab
    #[arg(long)]
    json: bool,
    /// Run as the supervisor that `plait lab up` started
    #[arg(long, hide = true)]
    supervisor: bool,
}

/// Builds a lab; on an error nothing of it is left.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.supervisor {
        // Detached from the terminal and the parent. This fails if it is detached already.
        let _ = rustix::process::setsid();
        return supervisor::run(&args.file, args.backend, args.seed, supervisor::announce_on_stdout);
    }
    if args.foreground {
        return supervisor::run(&args.file, args.backend, args.seed, |description| {
            print(description, args.json)?;
            match args.json {
                true => terminate_without_reader(),
                false => eprintln!("plait lab: press Ctrl-C to stop"),
            }
            Ok(())
        });
    }
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    Lab::check_permitted()?;
    let description = start(args, &stop)?;
    print(&description, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a supervisor. Its stderr goes to a file in the lab's directory.
fn start(args: &Args, stop: &StopSignal) -> anyhow::Result<Description> {
    let log = Log::new()?;
    let mut command = Command::new(std::env::current_exe().context("cannot find the executable of plait")?);
    command.args(["lab", "up", "--supervisor"]);
    command.args(args.backend.iter().map(|backend| format!("--backend={backend}")));
    command.args(args.seed.iter().map(|seed| format!("--seed={seed}")));
    command.arg("--").arg(&args.file);
    let stdin = if args.file == Path::new("-") { Stdio::inherit() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(log.open()?);
    let mut supervisor = command.spawn().context("cannot start the supervisor of the lab")?;
    let line = announced(&mut supervisor, stop)?;
    if line.is_empty() {
        let _ = supervisor.wait();
        let text = log.text();
        stop.check()?;
        let text = text.trim().strip_prefix("error: ").unwrap_or(text.trim()).to_owned();
        bail!(
            "{}",
            if text.is_empty() { "the supervisor of the lab exited unexpectedly".into() } else { text }
        );
    }
    stderr::print(&log.text());
    let description: Description =
        serde_json::from_str(&line).context("cannot parse the output of the supervisor")?;
    log.keep(&plait_linux::run_directory()?.join(format!("lab-{}", description.id)))?;
    Ok(description)
}

/// The line in which a supervisor announces its lab; empty if it ended before. A stop signal is forwarded to it.
fn announced(supervisor: &mut Child, stop: &StopSignal) -> anyhow::Result<String> {
    let stdout = supervisor.stdout.take().expect("stdout was asked to be a pipe");
    let (text, heard) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let _ = text.send(read.map(|_| line));
    });
    let mut signalled = false;
    loop {
        match heard.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => return line.context("cannot read from the supervisor of the lab"),
            Err(RecvTimeoutError::Disconnected) => return Ok(String::new()),
            Err(RecvTimeoutError::Timeout) if stop.check().is_err() && !signalled => {
                signalled = true;
                let _ = kill_process(Pid::from_child(supervisor), Signal::TERM);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn print(description: &Description, json: bool) -> anyhow::Result<()> {
    if json { print_json(description) } else { print_text(&ps::text(description)) }
}

/// A log file for the supervisor until its lab has a directory; removed when dropped.
struct Log(PathBuf);

impl Log {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(plait_linux::run_directory()?.join(format!("lab_up-{}.log", std::process::id()))))
    }

    fn open(&self) -> anyhow::Result<File> {
        File::create(&self.0).with_context(|| format!("cannot write {}", self.0.display()))
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap_or_default()
    }

    fn keep(&self, directory: &Path) -> anyhow::Result<()> {
        fs::rename(&self.0, directory.join("supervisor.log")).context("cannot move the log of the supervisor")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
