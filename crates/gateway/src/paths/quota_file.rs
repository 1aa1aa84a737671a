//! What was used of quotas, on disk: over restarts, and for all gateways of this user together.
//!
//! `path-quotas.json` in the state directory has an entry for each rule with a quota, by what the rule matches. Writers add what they
//! carried since they wrote last, while they hold a lock, and replace the file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use chrono::NaiveDate;
use plait_config::with_path;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::calendar::Period;
use crate::trust::{ensure_directories, private_directory, state_directory};

/// What was used of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUse {
    /// The first day of the period, local time.
    pub since: NaiveDate,
    /// Bytes of IP packets, sent and received.
    pub bytes: u64,
}

impl QuotaUse {
    /// What was used in the current period, of what is known.
    pub(crate) fn current(known: Option<&QuotaUse>, period: Period, today: NaiveDate) -> QuotaUse {
        let since = period.current(known.map(|known| known.since), today);
        let bytes = known.filter(|known| known.since >= since).map_or(0, |known| known.bytes);
        QuotaUse { since, bytes }
    }
}

/// What is to be added to a quota's use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QuotaUpdate {
    /// What the rule matches.
    pub(crate) rule: String,
    /// How often the quota is given.
    pub(crate) period: Period,
    /// The local date: what was used in an earlier period does not count any longer.
    pub(crate) today: NaiveDate,
    /// Bytes.
    pub(crate) bytes: u64,
    /// The kernel's count that these bytes reach, if the monitor reads it, too.
    pub(crate) reached: Option<KernelCount>,
}

/// What the kernel had counted of a rule ([`super::PathUses`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelCount {
    /// The number of the rule.
    pub(crate) rule: usize,
    /// Since the gateway's start.
    pub(crate) bytes: u64,
}

/// The use of quotas, by what their rules match.
pub type QuotaUses = BTreeMap<String, QuotaUse>;

/// The file.
#[derive(Clone, Debug)]
pub struct QuotaFile(PathBuf);

impl QuotaFile {
    /// That of this user; `None` if the environment names no state directory.
    pub fn of_user() -> Option<QuotaFile> {
        state_directory().map(|directory| QuotaFile(directory.join("path-quotas.json")))
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Its directories; that of its name is created if there is none.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        ensure_directories(&self.0)
    }

    /// What it contains; nothing if there is no file.
    ///
    /// # Errors
    /// It cannot be read, or another program has changed it. The error names it.
    pub fn read(&self) -> io::Result<QuotaUses> {
        let named = |error: io::Error| {
            let hint = "to count from 0, remove it";
            io::Error::new(error.kind(), format!("cannot read {}: {error}; {hint}", self.0.display()))
        };
        match fs::read(&self.0) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| named(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(QuotaUses::default()),
            Err(error) => Err(named(error)),
        }
    }

    /// Adds what was used, and returns what has been used then. It survives the end of this process; that of the machine as well, if
    /// `sync` is set, soon after.
    ///
    /// # Errors
    /// The file cannot be read or written. The error names it.
    pub(crate) fn add(&self, updates: &[QuotaUpdate], sync: bool) -> io::Result<QuotaUses> {
        private_directory(&self.0)?;
        let _lock = self.lock().map_err(|error| with_path(error, &self.0))?;
        let before = self.read()?;
        let mut uses = before.clone();
        for QuotaUpdate { rule, period, today, bytes, .. } in updates {
            let mut usage = QuotaUse::current(uses.get(rule), *period, *today);
            usage.bytes = usage.bytes.saturating_add(*bytes);
            uses.insert(rule.clone(), usage);
        }
        if uses == before && !sync {
            return Ok(uses);
        }
        self.write(&uses, sync).map_err(|error| with_path(error, &self.0))?;
        Ok(uses)
    }

    /// A lock of its own: this file is written often.
    fn lock(&self) -> io::Result<File> {
        let lock = self.0.with_extension("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    fn write(&self, uses: &QuotaUses, sync: bool) -> io::Result<()> {
        let partial = self.0.with_extension("partial");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(&serde_json::to_vec(uses)?)?;
        fs::rename(partial, &self.0)?;
        if sync {
            // A slow disk must not delay what is counted next. What fails is done again a second later.
            let _ = thread::Builder::new().name("sync".into()).spawn(move || file.sync_data());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota_update(rule: &str, today: &str, bytes: u64) -> QuotaUpdate {
        let (period, today) = (Period::Month { reset_day: 1 }, today.parse().expect("a date"));
        QuotaUpdate { rule: rule.into(), period, today, bytes, reached: None }
    }

    #[test]
    fn adds_what_several_gateways_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = QuotaFile(directory.path().join("plait/path-quotas.json"));
        assert_eq!(file.read().expect("no file"), QuotaUses::default());
        let other = file.clone();
        std::thread::scope(|scope| {
            for file in [&file, &other] {
                scope.spawn(move || {
                    for _ in 0..50 {
                        file.add(&[quota_update("wwan*", "2026-11-01", 7)], false).expect("written");
                    }
                });
            }
        });
        let uses = file.add(&[quota_update("eth0", "2026-11-25", 1)], true).expect("written");
        assert_eq!((uses["wwan*"].bytes, uses["eth0"].bytes), (700, 1));
        assert_eq!(file.read().expect("a file"), uses);
    }

    #[test]
    fn period_begins_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = QuotaFile(directory.path().join("path-quotas.json"));
        let add = |today, bytes| {
            let uses = file.add(&[quota_update("a", today, bytes)], false).expect("written");
            (uses["a"].since.to_string(), uses["a"].bytes)
        };
        assert_eq!(add("2026-11-30", 5), ("2026-11-01".into(), 5));
        assert_eq!(add("2026-12-01", 2), ("2026-12-01".into(), 2));
        assert_eq!(add("2026-11-30", 3), ("2026-12-01".into(), 5), "the clock was set back");
        assert_eq!(add("2038-01-19", 1), ("2038-01-01".into(), 1), "the clock was set forward");
        assert_eq!(add("2026-12-02", 1), ("2026-12-01".into(), 2), "and corrected");
        assert_eq!(add("1970-01-01", 1), ("2026-12-01".into(), 3), "it is not set yet");
    }

    #[test]
    fn damaged_file_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = QuotaFile(directory.path().join("path-quotas.json"));
        fs::write(file.path(), "{").expect("writable");
        let error = file.add(&[quota_update("a", "2026-11-01", 1)], false).expect_err("damaged").to_string();
        assert!(error.contains("path-quotas.json") && error.contains("remove it"), "{error}");
    }
}
