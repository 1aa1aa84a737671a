//! `capture.json`, the description of a recording.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use super::{recorder, tcpdump};
use crate::stderr::eprintln;
use crate::stdout::json_text;

/// What was recorded, how, and whether anything is missing.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Document {
    plait: &'static str,
    kernel: String,
    host: String,
    command: Vec<String>,
    pub(super) exit_status: Option<u8>,
    pub(super) ended_by: Option<EndedBy>,
    /// Seconds since 1970.
    pub(super) begin: f64,
    pub(super) end: f64,
    interval_s: f64,
    snaplen: Option<u32>,
    filter: String,
    pub(super) interfaces: Vec<tcpdump::Recorded>,
    #[serde(flatten)]
    pub(super) recorded: recorder::Recorded,
    /// Why the recording failed.
    pub(super) error: Option<String>,
}

/// What ended a successful recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EndedBy {
    Command,
    Duration,
    Signal,
}

impl Document {
    pub(super) fn new(
        interval: Duration,
        snaplen: Option<u32>,
        filter: &str,
        command: &[OsString],
    ) -> Document {
        let system = rustix::system::uname();
        let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Document {
            plait: env!("CARGO_PKG_VERSION"),
            kernel: format!("{} {}", text(system.sysname()), text(system.release())),
            host: text(system.nodename()),
            command: command.iter().map(|part| part.to_string_lossy().into_owned()).collect(),
            interval_s: interval.as_secs_f64(),
            snaplen,
            filter: filter.to_owned(),
            ..Document::default()
        }
    }

    pub(super) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        let path = directory.join("capture.json");
        let text = json_text(self)? + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Prints to stderr what is missing.
    pub(super) fn warn(&self) {
        for tcpdump::Recorded { interface, file, received_by_filter, dropped, .. } in &self.interfaces {
            match dropped {
                Some(0) => {}
                Some(dropped) => eprintln!(
                    "plait: INCOMPLETE: {dropped} of {} packets on {interface} were dropped because tcpdump was too slow \
                                         and are missing in {file}: capture fewer bytes of each packet with --snaplen",
                    received_by_filter.unwrap_or(0)
                ),
                None => {
                    eprintln!("plait: INCOMPLETE: tcpdump on {interface} did not report its packet counts")
                }
            }
        }
        if self.recorded.missed_notifications > 0 {
            eprintln!(
                "plait: INCOMPLETE: the last samples of some subflows are missing, because many closed at once"
            );
        }
    }

    /// One line of text.
    pub(super) fn summary(&self, directory: &Path) -> String {
        let packets: Vec<String> = self
            .interfaces
            .iter()
            .map(|recorded| format!("{} on {}", recorded.captured.unwrap_or(0), recorded.interface))
            .collect();
        format!(
            "recorded {} packets ({}), {} samples and {} sets of counters in {:.1} s into {}",
            self.interfaces.iter().filter_map(|recorded| recorded.captured).sum::<u64>(),
            packets.join(", "),
            self.recorded.samples,
            self.recorded.counters,
            self.end - self.begin,
            directory.display()
        )
    }
}
