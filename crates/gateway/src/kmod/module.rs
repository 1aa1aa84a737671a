//! The interface of plait.ko: its rules and counters in `/proc/plait`, described in `kmod/rules.c` and `kmod/status.c`.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use serde::Serialize;

const RULES: &str = "/proc/plait/rules";
const COUNTERS: &str = "/proc/plait/counters";
const VERSION: &str = "/sys/module/plait/version";

/// The module cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// It is not loaded.
    #[error(
        "the kernel module plait is not loaded: build it with `make kmod` and load it with `insmod kmod/plait.ko`, \
         or with `modprobe plait` if it is installed (docs/guide/kernel-module.md)"
    )]
    NotLoaded,
    /// It rejected a request.
    #[error("the kernel module plait did not {operation}: {reason}{}", hint(.reason))]
    Refused {
        /// The request.
        operation: String,
        /// Why.
        reason: io::Error,
    },
}

fn hint(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::PermissionDenied => "; needs root, or CAP_NET_ADMIN",
        _ => "",
    }
}

/// The state of the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Its version.
    pub version: Option<String>,
    /// The rules of this network namespace, as the module prints them; `None` if this user may not read them.
    pub rules: Option<Vec<String>>,
    /// Its counters since it was loaded, by name, for all network namespaces.
    pub counters: BTreeMap<String, u64>,
}

impl Module {
    /// Whether it is loaded.
    pub fn is_loaded() -> bool {
        Path::new(RULES).exists()
    }

    /// Reads its state; `None` if it is not loaded.
    pub fn read() -> Option<Module> {
        if !Module::is_loaded() {
            return None;
        }
        let rules = fs::read_to_string(RULES).ok();
        Some(Module {
            version: fs::read_to_string(VERSION).ok().map(|version| version.trim().to_owned()),
            rules: rules.map(|rules| rules.lines().map(str::to_owned).collect()),
            counters: counters(&fs::read_to_string(COUNTERS).unwrap_or_default()),
        })
    }

    /// Adds a rule to this network namespace.
    pub(super) fn add(rule: &str) -> Result<(), ModuleError> {
        write(rule, || format!("take the rule '{rule}'"))
    }

    /// Removes the rules that name a map of verdicts from this network namespace.
    pub(super) fn clear(verdicts: u32) -> Result<(), ModuleError> {
        write(&format!("clear verdicts={verdicts}"), || format!("remove its rules with verdicts={verdicts}"))
    }
}

fn write(line: &str, operation: impl FnOnce() -> String) -> Result<(), ModuleError> {
    match fs::write(RULES, line) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !Module::is_loaded() => {
            Err(ModuleError::NotLoaded)
        }
        Err(reason) => Err(ModuleError::Refused { operation: operation(), reason }),
    }
}

/// Parses lines of a name and a number.
fn counters(text: &str) -> BTreeMap<String, u64> {
    let words = text.lines().filter_map(|line| line.split_once(' '));
    words.filter_map(|(name, count)| Some((name.to_owned(), count.trim().parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_counters_by_name() {
        let read = counters("bytes_sent 12\nodd\nfaults x\nconnections_plain 0\n");
        assert_eq!(read, BTreeMap::from([("bytes_sent".into(), 12), ("connections_plain".into(), 0)]));
    }
}
