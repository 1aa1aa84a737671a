//! A capture on one interface by `tcpdump`, which writes every packet immediately.
//!
//! Contract: the capture is running once [`Capture::start`] has returned, and [`Capture::stop`] returns the file only if
//! no packet was missed in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::Error;
use crate::host::Host;
use crate::process::Process;

/// How long `tcpdump` may take to open an interface.
const START_LIMIT: Duration = Duration::from_secs(10);
/// A file that has not grown for this long contains all packets so far.
const QUIET: Duration = Duration::from_millis(300);
/// How long tcpdump may take to write its buffer.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);
/// Longer than any frame on a lab's links. tcpdump's default is a hundred times as large and leaves room for only 250
/// packets in immediate mode, where each packet occupies the space of the longest one.
const FULL_SNAPLEN: u32 = 2048;
/// The ring buffer in KiB: some 30,000 packets, a third of a second at 1 Gb/s.
const BUFFER_KIB: &str = "65536";

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    interface: String,
    file: PathBuf,
    tcpdump: Process,
}

impl Capture {
    /// Captures on `interface` of `host` to `file`; returns once packets are being captured.
    pub fn start(host: &Host, interface: &str, file: &Path) -> Result<Self, Error> {
        Self::start_with_snaplen(host, interface, FULL_SNAPLEN, file)
    }

    /// Like [`start`](Self::start), but keeps at most `snaplen` bytes of each packet.
    pub fn start_with_snaplen(
        host: &Host,
        interface: &str,
        snaplen: u32,
        file: &Path,
    ) -> Result<Self, Error> {
        let mut command = host.command("tcpdump");
        // -Z root: tcpdump would otherwise switch to a user that may not write to the directory.
        command.args([
            "-Z",
            "root",
            "-n",
            "-U",
            "--immediate-mode",
            "-s",
            &snaplen.to_string(),
            "-B",
            BUFFER_KIB,
        ]);
        command.args(["-i", interface, "-w"]).arg(file);
        let mut tcpdump = host.spawn(command)?;
        let opened = |tcpdump: &Process| Ok(tcpdump.stderr().contains("listening on"));
        tcpdump.wait_until(&format!("tcpdump to listen on {interface}"), START_LIMIT, opened)?;
        Ok(Self { interface: interface.into(), file: file.into(), tcpdump })
    }

    /// Waits until all packets are written, ends tcpdump, and returns the file.
    ///
    /// [`Error::IncompleteCapture`] if a packet was dropped.
    pub fn stop(mut self) -> Result<PathBuf, Error> {
        let mut size = 0;
        let mut since = Instant::now();
        let file = self.file.clone();
        self.tcpdump.wait_until("the capture to be written", DRAIN_LIMIT, |_| {
            let now = fs::metadata(&file).map_err(|source| Error::File { path: file.clone(), source })?.len();
            if now != size {
                (size, since) = (now, Instant::now());
            }
            Ok(since.elapsed() >= QUIET)
        })?;
        let counts = Counts::read(&self.tcpdump.stop(Signal::INT));
        match counts {
            Some(Counts { captured, seen, dropped: 0 }) if captured == seen => Ok(self.file),
            counts => {
                let Counts { captured, seen, dropped } = counts.unwrap_or_default();
                Err(Error::IncompleteCapture { interface: self.interface, seen, captured, dropped })
            }
        }
    }
}

/// The final counters of `tcpdump`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    captured: u64,
    seen: u64,
    dropped: u64,
}

impl Counts {
    fn read(stderr: &str) -> Option<Self> {
        Some(Self {
            captured: counted(stderr, "captured")?,
            seen: counted(stderr, "received by filter")?,
            dropped: dropped(stderr)?,
        })
    }
}

/// The counter of tcpdump's stderr with this label, `captured` or `received by filter`; `None` without one.
pub fn counted(stderr: &str, what: &str) -> Option<u64> {
    stderr.lines().find_map(|line| {
        let number = line.trim().strip_suffix(what)?.trim_end();
        number.strip_suffix(" packets").or(number.strip_suffix(" packet"))?.parse().ok()
    })
}

/// The packets dropped by the kernel and by the interface; `None` if tcpdump reports neither counter. It omits the
/// interface's counter if it is 0.
pub fn dropped(stderr: &str) -> Option<u64> {
    let by_kernel = counted(stderr, "dropped by kernel")?;
    Some(by_kernel + counted(stderr, "dropped by interface").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_listeners_counts() {
        let text = "tcpdump: listening on wlan, link-type EN10MB (Ethernet), snapshot length 262144 bytes\n\
                    25194 packets captured\n25196 packets received by filter\n1 packet dropped by kernel\n\
                    2 packets dropped by interface\n";
        assert_eq!(Counts::read(text), Some(Counts { captured: 25194, seen: 25196, dropped: 3 }));
    }

    #[test]
    fn counts_are_read() {
        let said = "25194 packets captured\n25196 packets received by filter\n1 packet dropped by kernel\n";
        assert_eq!(counted(said, "captured"), Some(25194));
        assert_eq!(counted(said, "dropped by kernel"), Some(1));
        assert_eq!(counted(said, "dropped by interface"), None);
        assert_eq!(dropped(said), Some(1));
    }

    #[test]
    fn no_counts_is_no_capture() {
        assert_eq!(Counts::read("tcpdump: wlan: That device is not up\n"), None);
    }
}
