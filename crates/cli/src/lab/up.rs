//! `plait lab up`: starts the keeper of a lab and waits until the lab is up.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use plait_lab::{Backend, Lab};
use plait_linux::signal::StopSignal;
use rustix::process::{Pid, Signal, kill_process};

use super::description::Description;
use super::reader::end_without_reader;
use super::{keeper, ps};
use crate::stdout::Stdout;

/// Build the hosts, links and services of a topology, and keep them until `plait lab down`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The topology, in TOML (docs/guide/lab.md); - reads stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What is to be behind the links, whatever the file says: emu, netem or none
    #[arg(long, value_name = "BACKEND")]
    backend: Option<Backend>,
    /// Stay, and end the lab with Ctrl-C; with --json also when nobody reads that any more
    #[arg(long)]
    foreground: bool,
    /// Print JSON, as `plait lab ps --json` does of each lab
    #[arg(long)]
    json: bool,
    /// Be the keeper that `plait lab up` started
    #[arg(long, hide = true)]
    keeper: bool,
}

/// Builds a lab; an error leaves nothing of it.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.keeper {
        // Apart from the terminal and whoever started it. It fails if that is so already.
        let _ = rustix::process::setsid();
        return keeper::keep(&args.file, args.backend, keeper::announce_to_starter);
    }
    if args.foreground {
        return keeper::keep(&args.file, args.backend, |description| {
            print(description, args.json)?;
            match args.json {
                true => end_without_reader(),
                false => eprintln!("plait lab: Ctrl-C ends it"),
            }
            Ok(())
        });
    }
    let interrupt = StopSignal::listen().context("cannot listen for signals")?;
    Lab::check_permitted()?;
    let description = start(args, &interrupt)?;
    print(&description, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a keeper. What it writes on stderr goes to a file, which stays in the lab's directory.
fn start(args: &Args, interrupt: &StopSignal) -> anyhow::Result<Description> {
    let log = Log::new()?;
    let mut command = Command::new(std::env::current_exe().context("cannot find the program plait itself")?);
    command.args(["lab", "up", "--keeper"]);
    command.args(args.backend.iter().map(|backend| format!("--backend={backend}")));
    command.arg("--").arg(&args.file);
    let stdin = if args.file == Path::new("-") { Stdio::inherit() } else { Stdio::null() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(log.open()?);
    let mut keeper = command.spawn().context("cannot start the keeper of the lab")?;
    let line = announced(&mut keeper, interrupt)?;
    if line.is_empty() {
        let _ = keeper.wait();
        let said = log.text();
        interrupt.check()?;
        let said = said.trim().strip_prefix("error: ").unwrap_or(said.trim()).to_owned();
        bail!("{}", if said.is_empty() { "the keeper of the lab ended without a word".into() } else { said });
    }
    eprint!("{}", log.text());
    let description: Description = serde_json::from_str(&line).context("what the keeper said")?;
    log.keep(&plait_linux::run_directory()?.join(format!("lab-{}", description.id)))?;
    Ok(description)
}

/// The line with which a keeper says that its lab is up; empty if it ended before. An interrupt is passed on to it.
fn announced(keeper: &mut Child, interrupt: &StopSignal) -> anyhow::Result<String> {
    let stdout = keeper.stdout.take().expect("stdout was asked to be a pipe");
    let (said, heard) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        let _ = said.send(read.map(|_| line));
    });
    let mut told = false;
    loop {
        match heard.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => return line.context("cannot hear the keeper of the lab"),
            Err(RecvTimeoutError::Disconnected) => return Ok(String::new()),
            Err(RecvTimeoutError::Timeout) if interrupt.check().is_err() && !told => {
                told = true;
                let _ = kill_process(Pid::from_child(keeper), Signal::TERM);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn print(description: &Description, json: bool) -> anyhow::Result<()> {
    let mut out = Stdout::new();
    match json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(description)?)?,
        false => write!(out, "{}", ps::text(description))?,
    }
    Ok(out.flush()?)
}

/// A file for what a keeper writes before its lab has a directory; removed when dropped.
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
        fs::rename(&self.0, directory.join("keeper.log")).context("cannot keep what the keeper said")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
