//! Runs `ip` and `tc` in a namespace, and reads interface counters.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use plait_linux::netns::NetNs;

use crate::error::Error;

/// A program and its arguments.
pub(crate) type Words = Vec<String>;

pub(crate) fn ip<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Words {
    words("ip", arguments)
}

pub(crate) fn tc<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Words {
    words("tc", arguments)
}

fn words<'a>(program: &'a str, arguments: impl IntoIterator<Item = &'a str>) -> Words {
    std::iter::once(program).chain(arguments).map(str::to_owned).collect()
}

/// Runs a program in a namespace, or in the current one, and returns its stdout; failure is an error with its stderr.
pub(crate) fn run(namespace: Option<&NetNs>, words: Words) -> Result<String, Error> {
    let refused = Error::refused(format!("run `{}`", words.join(" ")));
    let run = || {
        // In its own process group, so that a Ctrl-C on the terminal does not interrupt it.
        Command::new(&words[0]).args(&words[1..]).process_group(0).stdin(Stdio::null()).output()
    };
    let output = match namespace {
        Some(namespace) => namespace.run(run).map_err(&refused)?,
        None => run(),
    };
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refused(io::Error::new(
            error.kind(),
            format!("{} not found: install it (Debian, Ubuntu: apt-get install iproute2)", words[0]),
        )),
        _ => refused(error),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(refused(io::Error::other(if said.is_empty() { output.status.to_string() } else { said })))
}

/// The path by which other processes can open the namespace while this process has it open.
pub(crate) fn path_of(namespace: &NetNs) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd())
}

/// The counters of an interface. The kernel counts a super-packet of segmentation offload as one frame.
pub(crate) struct InterfaceCounters {
    pub(crate) rx_bytes: u64,
    pub(crate) rx_frames: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_frames: u64,
}

pub(crate) fn counters(namespace: &NetNs, interface: &str) -> Result<InterfaceCounters, Error> {
    let refused = Error::refused(format!("read the counters of {interface}"));
    // The file shows the namespace of the thread that opens it.
    let table = namespace.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).map_err(&refused)?;
    let table = table.map_err(&refused)?;
    match columns(&table, interface)[..] {
        [rx_bytes, rx_frames, _, _, _, _, _, _, tx_bytes, tx_frames, ..] => {
            Ok(InterfaceCounters { rx_bytes, rx_frames, tx_bytes, tx_frames })
        }
        _ => Err(refused(io::Error::new(io::ErrorKind::NotFound, "it is gone"))),
    }
}

/// The columns of an interface in the text of `/proc/net/dev` (proc(5)); none if it is not there. The first 8 count what
/// it received, the others what it sent: bytes, packets, errors, drops and others.
pub(crate) fn columns(table: &str, interface: &str) -> Vec<u64> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    line.unwrap_or_default().split_ascii_whitespace().map_while(|column| column.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_interface_by_its_whole_name() {
        let table = "Inter-|   Receive                                                |  Transmit\n \
                     face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n  \
                     lte10:     900       9    0    0    0     0          0         0     1800      18    0    0    0\n  \
                     lte1:     100       1    0    0    0     0          0         0      200       2    0    0    0\n";
        assert_eq!(columns(table, "lte1"), [100, 1, 0, 0, 0, 0, 0, 0, 200, 2, 0, 0, 0]);
        assert_eq!(columns(table, "lte"), [0; 0]);
    }

    #[test]
    fn errors_contain_the_stderr_of_the_program() {
        let error = run(None, words("sh", ["-c", "echo no such qdisc >&2; exit 2"])).expect_err("a failure");
        assert!(error.to_string().ends_with("no such qdisc"), "{error}");
        let error = run(None, words("plait-nonexistent", [])).expect_err("no program");
        assert!(error.to_string().contains("not found"), "{error}");
    }
}
