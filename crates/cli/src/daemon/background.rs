//! A daemon in the background, started by another command.

use std::env;
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use plait_linux::signal::StopSignal;
use rustix::process::{Pid, Signal, kill_process};

/// How long it may take to start, and to reach its exit.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long it may take to end.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// This executable.
pub(crate) fn executable() -> anyhow::Result<PathBuf> {
    env::current_exe().context("cannot find this executable")
}

/// Starts a daemon with this file. Returns its process once it works, and has reached its exit, if it has one. `log` is created, `notify` is
/// the path of a socket by which it tells so.
pub(crate) fn start(config: &Path, log: &Path, notify: &Path) -> anyhow::Result<Pid> {
    // That of a start that was killed.
    let _ = fs::remove_file(notify);
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    let socket = UnixDatagram::bind(notify).context("cannot listen for the daemon")?;
    socket.set_read_timeout(Some(POLL_INTERVAL))?;
    let out = File::create(log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut command = Command::new(executable()?);
    command.args(["-v", "daemon", "--check-exit", "--config"]).arg(config);
    command.env("NOTIFY_SOCKET", notify).env_remove("LISTEN_PID").env_remove("WATCHDOG_USEC");
    // Not of the terminal's foreground process group, whose Ctrl-C is for others.
    command.process_group(0).current_dir("/").stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    let mut daemon = command.spawn().context("cannot start the daemon")?;
    let ready = wait_until_ready(&mut daemon, &socket, &stop);
    let _ = fs::remove_file(notify);
    if ready.is_err() {
        end(&mut daemon);
        let text = fs::read_to_string(log).unwrap_or_default();
        if let Some(error) = reported_error(&text) {
            bail!("{error}");
        }
    }
    ready.map(|()| Pid::from_child(&daemon))
}

/// The last error that this command has written to stderr, with the lines that follow it.
pub(crate) fn reported_error(stderr: &str) -> Option<&str> {
    let starts_line = |at: usize| at == 0 || stderr[..at].ends_with('\n');
    let (at, prefix) = stderr.match_indices("error: ").filter(|(at, _)| starts_line(*at)).last()?;
    Some(stderr[at + prefix.len()..].trim_end())
}

fn wait_until_ready(daemon: &mut Child, socket: &UnixDatagram, stop: &StopSignal) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut message = [0; 4096];
    while begin.elapsed() < START_TIMEOUT {
        stop.check()?;
        if let Ok(length) = socket.recv(&mut message)
            && message[..length].split(|byte| *byte == b'\n').any(|line| line == b"READY=1")
        {
            return Ok(());
        }
        if let Some(status) = daemon.try_wait()? {
            bail!("the daemon has ended: {status}");
        }
    }
    bail!("the daemon has not reached the exit within {} s", START_TIMEOUT.as_secs())
}

/// Ends a daemon that does not work.
fn end(daemon: &mut Child) {
    let pid = Pid::from_child(daemon);
    // It may have ended.
    let _ = kill_process(pid, Signal::TERM);
    let begin = Instant::now();
    while begin.elapsed() < STOP_TIMEOUT {
        if !matches!(daemon.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let _ = daemon.kill();
    let _ = daemon.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_counts_with_the_lines_that_follow() {
        let log = " INFO started\nerror: one\nerror: cannot start: error: of a cause\n  |\n1 | mode\n";
        assert_eq!(reported_error(log), Some("cannot start: error: of a cause\n  |\n1 | mode"));
        assert_eq!(reported_error(" INFO no error: here\n"), None);
    }
}
