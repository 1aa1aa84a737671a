//! Programs of a lab, in the foreground or background.
//!
//! Every program has its own process group. A Ctrl-C on the terminal therefore reaches only the lab's owner, which
//! ends the programs in order, and ending a program also ends its children.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::error::Error;
use crate::output::Output;
use crate::wait::wait_for;
use plait_linux::signal::StopSignal;

/// How long a program may take to end after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(3);

/// A program that runs until it exits, is stopped, or this value is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Output,
    stderr: Output,
    stop: StopSignal,
}

impl Process {
    /// Starts `command` without stdin.
    pub(crate) fn start(command: Command, stop: StopSignal) -> Result<Self, Error> {
        Self::start_with_logs(command, stop, [None, None])
    }

    /// Like [`start`](Self::start), but also copies the output to the files `stdout` and `stderr` of a directory.
    pub(crate) fn start_logged(command: Command, stop: StopSignal, directory: &Path) -> Result<Self, Error> {
        let log = |name| {
            let path = directory.join(name);
            fs::File::create(&path).map(Some).map_err(|source| Error::File { path, source })
        };
        Self::start_with_logs(command, stop, [log("stdout")?, log("stderr")?])
    }

    fn start_with_logs(
        mut command: Command,
        stop: StopSignal,
        [out, err]: [Option<fs::File>; 2],
    ) -> Result<Self, Error> {
        let name = program_name(&command);
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|source| cannot_start(&name, source))?;
        let stdout = Output::of(child.stdout.take().expect("stdout was asked to be a pipe"), out);
        let stderr = Output::of(child.stderr.take().expect("stderr was asked to be a pipe"), err);
        Ok(Self { name, child, stdout, stderr, stop })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still running.
    pub fn is_running(&self) -> bool {
        self.has_ended().is_ok_and(|ended| !ended)
    }

    /// Its stdout so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Its stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until a socket of the program's namespace listens for TCP connections on `port`.
    pub fn wait_until_listening(&mut self, port: u16, limit: Duration) -> Result<(), Error> {
        let what = format!("{} to listen on port {port}", self.name);
        self.wait_until(&what, limit, |process| {
            let net = Path::new("/proc").join(process.id().to_string()).join("net");
            Ok(["tcp", "tcp6"].iter().any(|family| {
                fs::read_to_string(net.join(family)).is_ok_and(|table| has_listener(&table, port))
            }))
        })
    }

    /// Waits until `ready` returns true. If the program ends first, that is an error with its stderr.
    pub fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut ready: impl FnMut(&Self) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let stop = self.stop.clone();
        let waited = wait_for(&stop, what, limit, || {
            if ready(self)? {
                return Ok(Some(()));
            }
            if self.has_ended()? {
                let status = self.reap()?;
                return Err(self.failed(status));
            }
            Ok(None)
        });
        waited.map_err(|error| match error {
            Error::TimedOut { what, limit, .. } => {
                Error::TimedOut { what, limit, stderr: self.stderr().trim().into() }
            }
            other => other,
        })
    }

    /// Waits for the program to end and returns its stdout; an exit status other than 0 is an error with its stderr.
    /// Kills the remaining processes of its group.
    pub fn finish(mut self, limit: Duration) -> Result<String, Error> {
        let stop = self.stop.clone();
        let what = format!("the end of {}", self.name);
        wait_for(&stop, &what, limit, || Ok(self.has_ended()?.then_some(())))?;
        match self.reap()? {
            status if status.success() => Ok(self.stdout()),
            status => Err(self.failed(status)),
        }
    }

    /// Stops the program with `signal`, or by SIGKILL after 3 s, and returns its stderr.
    pub fn stop(mut self, signal: Signal) -> String {
        self.end(signal);
        self.stderr()
    }

    /// Whether it has ended. Does not reap it, so that its process id and group id are not reused.
    fn has_ended(&self) -> Result<bool, Error> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(self.pid()), options);
        ended.map(|status| status.is_some()).map_err(|errno| self.lost(errno.into()))
    }

    fn reap(&mut self) -> Result<ExitStatus, Error> {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let status = self.child.wait().map_err(|source| self.lost(source))?;
        self.stdout.wait_for_rest();
        self.stderr.wait_for_rest();
        Ok(status)
    }

    /// Ends the program first, so that it can end its children, then the rest of its group. Ignores the stop signal,
    /// because this runs in response to it.
    fn end(&mut self, signal: Signal) {
        let Ok(mut ended) = self.has_ended() else { return };
        if !ended {
            let _ = kill_process(self.pid(), signal);
            let end = Instant::now() + GRACE;
            while !ended && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
                ended = self.has_ended().unwrap_or(true);
            }
        }
        let _ = self.reap();
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn failed(&self, status: ExitStatus) -> Error {
        Error::Failed {
            command: self.name.clone(),
            status: status.to_string(),
            stderr: self.stderr().trim().to_owned(),
        }
    }

    fn lost(&self, source: io::Error) -> Error {
        Error::Lost { program: self.name.clone(), source }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Signal::TERM);
    }
}

/// `PATH` with the directory of this executable first, so that `plait` in a lab's commands runs this executable.
pub(crate) fn path_with_plait() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let directories = own.into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(directories).unwrap_or(path)
}

/// Runs `command` with `input` on stdin, waits for it, and returns its stdout. Only for programs that write little
/// before they have read their input.
pub(crate) fn run_with_input(mut command: Command, input: &str) -> Result<String, Error> {
    let name = program_name(&command);
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| cannot_start(&name, source))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early reports the reason on stderr.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|source| Error::Lost { program: name, source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Failed {
        command: command_line(&command),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Whether a table as in `/proc/net/tcp` (proc(5)) has a socket in state LISTEN (0A) on this local port.
fn has_listener(table: &str, port: u16) -> bool {
    let local_port = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, _remote, state) = (fields.next(), fields.next(), fields.next());
        local.is_some_and(|local| local.ends_with(&local_port)) && state == Some("0A")
    })
}

pub(crate) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn program_name(command: &Command) -> String {
    Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program())
        .to_string_lossy()
        .into_owned()
}

fn cannot_start(program: &str, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::NotFound {
        return Error::MissingProgram { program: program.into(), package: package(program).into() };
    }
    Error::Start { program: program.into(), source }
}

/// [`Error::MissingProgram`] if the program is not in `PATH`.
pub fn require_program(name: &str) -> Result<(), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|directory| directory.join(name).is_file()) {
        return Ok(());
    }
    Err(Error::MissingProgram { program: name.into(), package: package(name).into() })
}

/// The Debian package that provides a program.
fn package(program: &str) -> &str {
    match program {
        "ip" | "tc" => "iproute2",
        _ => program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_listener_and_nothing_else() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n   \
                     1: 01014D0A:D2F0 02014D0A:20FB 01 00000000:00000000 00:00000000 00000000     0\n";
        assert!(has_listener(table, 8080));
        assert!(!has_listener(table, 8443), "a connection to a port is no listener on it");
        assert!(!has_listener(table, 0xD2F0), "a connection from a port is no listener on it");
    }
}
