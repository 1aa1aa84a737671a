//! The clients of an exit that were admitted by invitations.
//!
//! An invitation is a key pair. Its private key is a part of the URL that `plait exit init` prints: a client that the exit does not know
//! authenticates by it once, for nothing else than to have its own key admitted. An invitation admits one client, and expires after
//! a week.
//!
//! The file has one line for each, with the date (UTC): `invitation KEY DATE`, and in its place, once it has admitted a client, `client KEY DATE
//! INVITATION`: a client that is removed takes its invitation with it. A process replaces the file atomically, while it holds a lock on
//! the directory.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use chrono::{DateTime, NaiveDate, Utc};
use plait_config::with_path;
use plait_proto::identity::PublicKey;
use serde::{Deserialize, Serialize};

use super::state_directory::{ensure_directories, lock_directory, private_directory, replace_private};
use crate::monitor::Monitor;

/// The name of the file, beside that of the exit's key pair.
const FILE_NAME: &str = "exit_clients";

const INVITATION_DAYS: i64 = 7;

/// The file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum InvitedClientsError {
    /// It cannot be read.
    #[error("cannot read {}: {reason}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// It cannot be written; the error names it.
    #[error(transparent)]
    Write(io::Error),
    /// The monitor of this gateway, which may use the file, could not.
    #[error(transparent)]
    Monitor(io::Error),
    /// A line has another format.
    #[error(
        "{}, line {line}: expected `invitation KEY DATE` or `client KEY DATE INVITATION`: correct or remove that line", file.display()
    )]
    Line {
        /// The file.
        file: PathBuf,
        /// The number of the line, from 1.
        line: usize,
    },
}

/// An invitation, or a client that was admitted by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvitedClient {
    /// Its public key.
    pub key: PublicKey,
    /// When it was issued, or admitted (UTC).
    pub date: NaiveDate,
    /// Of a client, the invitation by which it was admitted.
    pub invitation: Option<PublicKey>,
}

/// What a key is to an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum InvitedKey {
    /// That of an invitation that has not expired.
    Invitation,
    /// That of a client that was admitted.
    Client,
}

/// The clients that were admitted by invitations, on disk.
#[derive(Clone, Debug)]
pub struct InvitedClients {
    file: PathBuf,
    /// The process that may open the file, if this one may not.
    monitor: Option<Arc<Monitor>>,
}

impl InvitedClients {
    /// Those of the exit with the key pair in this file.
    #[must_use]
    pub fn of_exit(key_file: &Path) -> InvitedClients {
        InvitedClients::in_file(key_file.with_file_name(FILE_NAME))
    }

    pub(crate) fn in_file(file: PathBuf) -> InvitedClients {
        InvitedClients { file, monitor: None }
    }

    /// Uses the file through a monitor.
    pub(super) fn set_monitor(&mut self, monitor: Arc<Monitor>) {
        self.monitor = Some(monitor);
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The directories of the file; that of its name is created if there is none.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        ensure_directories(&self.file)
    }

    /// All clients, and the invitations that admit one, in the order in which they were added.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self) -> Result<Vec<InvitedClient>, InvitedClientsError> {
        let mut entries = self.read()?;
        entries.retain(|entry| !entry.is_expired(today()));
        Ok(entries)
    }

    fn read(&self) -> Result<Vec<InvitedClient>, InvitedClientsError> {
        let text = match fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(reason) => return Err(InvitedClientsError::Read { file: self.file.clone(), reason }),
        };
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines
            .map(|(index, line)| {
                let malformed = || InvitedClientsError::Line { file: self.file.clone(), line: index + 1 };
                parse_line(line).ok_or_else(malformed)
            })
            .collect()
    }

    /// Adds an invitation with this public key.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn invite(&self, key: PublicKey) -> Result<(), InvitedClientsError> {
        self.update(|entries| entries.push(InvitedClient { key, date: today(), invitation: None }))
    }

    /// Removes an invitation or a client. Returns whether it was there.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn remove(&self, key: PublicKey) -> Result<bool, InvitedClientsError> {
        self.update(|entries| {
            let before = entries.len();
            entries.retain(|entry| entry.key != key);
            entries.len() < before
        })
    }

    /// What a key is; `None`: nothing.
    pub(crate) fn find(&self, key: &PublicKey) -> Result<Option<InvitedKey>, InvitedClientsError> {
        match &self.monitor {
            Some(monitor) => monitor.find_invited(key).map_err(InvitedClientsError::Monitor),
            None => Ok(find(&self.read()?, key, today())),
        }
    }

    /// Admits a client by an invitation. Returns whether that was for it: not if the invitation has admitted another one, or has expired.
    pub(crate) fn admit(
        &self,
        invitation: &PublicKey,
        client: &PublicKey,
    ) -> Result<bool, InvitedClientsError> {
        match &self.monitor {
            Some(monitor) => monitor.admit_client(invitation, client).map_err(InvitedClientsError::Monitor),
            None => self.update(|entries| admit(entries, invitation, client, today())),
        }
    }

    /// Changes the file, as the only process that does.
    fn update<T>(&self, change: impl FnOnce(&mut Vec<InvitedClient>) -> T) -> Result<T, InvitedClientsError> {
        let write = |error: io::Error| InvitedClientsError::Write(with_path(error, &self.file));
        private_directory(&self.file).map_err(write)?;
        let _lock = lock_directory(&self.file).map_err(write)?;
        let before = self.read()?;
        let mut entries = before.clone();
        let changed = change(&mut entries);
        if entries != before {
            let text: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
            replace_private(&self.file, &text).map_err(InvitedClientsError::Write)?;
        }
        Ok(changed)
    }
}

impl InvitedClient {
    /// Whether it is an invitation that has expired.
    fn is_expired(&self, today: NaiveDate) -> bool {
        self.invitation.is_none() && (today - self.date).num_days() > INVITATION_DAYS
    }

    /// Whether it is the invitation with this key, and admits a client.
    fn is_open_invitation(&self, key: &PublicKey, today: NaiveDate) -> bool {
        self.key == *key && self.invitation.is_none() && !self.is_expired(today)
    }
}

impl fmt::Display for InvitedClient {
    /// Its line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InvitedClient { key, date, invitation } = self;
        match invitation {
            Some(invitation) => write!(f, "client {key} {date} {invitation}"),
            None => write!(f, "invitation {key} {date}"),
        }
    }
}

fn parse_line(line: &str) -> Option<InvitedClient> {
    let mut words = line.split_ascii_whitespace();
    let (kind, key, date) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let invitation = match kind {
        "invitation" => None,
        "client" => Some(words.next()?.parse().ok()?),
        _ => return None,
    };
    words.next().is_none().then_some(InvitedClient { key, date, invitation })
}

fn find(entries: &[InvitedClient], key: &PublicKey, today: NaiveDate) -> Option<InvitedKey> {
    let is_client = |entry: &InvitedClient| entry.key == *key && entry.invitation.is_some();
    // Who has redeemed one asks again if the answer was lost.
    let is_invitation = |entry: &InvitedClient| {
        entry.invitation.as_ref() == Some(key) || entry.is_open_invitation(key, today)
    };
    if entries.iter().any(is_client) {
        Some(InvitedKey::Client)
    } else {
        entries.iter().any(is_invitation).then_some(InvitedKey::Invitation)
    }
}

fn admit(
    entries: &mut [InvitedClient],
    invitation: &PublicKey,
    client: &PublicKey,
    today: NaiveDate,
) -> bool {
    if let Some(admitted) = entries.iter().find(|entry| entry.invitation.as_ref() == Some(invitation)) {
        return admitted.key == *client;
    }
    let is_known = find(entries, client, today) == Some(InvitedKey::Client);
    match entries.iter_mut().find(|entry| entry.is_open_invitation(invitation, today)) {
        Some(_) if is_known => true,
        Some(open) => {
            *open = InvitedClient { key: *client, date: today, invitation: Some(*invitation) };
            true
        }
        None => false,
    }
}

fn today() -> NaiveDate {
    DateTime::<Utc>::from(SystemTime::now()).date_naive()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ISSUED: &str = "2026-11-27";

    fn key(byte: u8) -> PublicKey {
        PublicKey::new([byte; 32])
    }

    fn date(text: &str) -> NaiveDate {
        text.parse().expect("a date")
    }

    fn clients() -> (InvitedClients, tempfile::TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        (InvitedClients::of_exit(&directory.path().join("state").join("identity.key")), directory)
    }

    #[test]
    fn an_invitation_admits_one_client_as_often_as_it_asks() {
        let (clients, _directory) = clients();
        assert_eq!(clients.find(&key(1)).expect("no file"), None);
        clients.invite(key(1)).expect("writable");
        assert_eq!(clients.find(&key(1)).expect("readable"), Some(InvitedKey::Invitation));
        for (client, admitted) in [(2, true), (2, true), (3, false), (2, true)] {
            assert_eq!(clients.admit(&key(1), &key(client)).expect("writable"), admitted, "{client}");
        }
        assert!(!clients.admit(&key(9), &key(3)).expect("writable"), "no invitation");
        assert!(!clients.admit(&key(2), &key(3)).expect("writable"), "a client");
        let found = |byte| clients.find(&key(byte)).expect("readable");
        assert_eq!((found(2), found(3), found(9)), (Some(InvitedKey::Client), None, None));
        let mode = fs::metadata(clients.file()).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_is_removed_is_refused() {
        let (clients, _directory) = clients();
        clients.invite(key(1)).expect("writable");
        assert!(clients.admit(&key(1), &key(2)).expect("writable"));
        assert!(clients.remove(key(2)).expect("writable") && !clients.remove(key(2)).expect("writable"));
        assert_eq!(clients.find(&key(2)).expect("readable"), None);
        assert_eq!(clients.find(&key(1)).expect("readable"), None);
        assert!(!clients.admit(&key(1), &key(2)).expect("writable"), "by the invitation of before");
        clients.invite(key(3)).expect("writable");
        assert!(clients.remove(key(3)).expect("writable"));
        assert!(!clients.admit(&key(3), &key(2)).expect("writable"));
        assert_eq!(clients.list().expect("readable"), []);
    }

    #[test]
    fn an_invitation_expires_after_a_week_and_its_client_does_not() {
        let mut entries = vec![InvitedClient { key: key(1), date: date(ISSUED), invitation: None }];
        let (last, after) = (date("2026-12-04"), date("2026-12-05"));
        assert_eq!(find(&entries, &key(1), last), Some(InvitedKey::Invitation));
        assert_eq!(find(&entries, &key(1), after), None);
        assert!(!admit(&mut entries.clone(), &key(1), &key(2), after));
        assert!(admit(&mut entries, &key(1), &key(2), last));
        assert_eq!(find(&entries, &key(2), after), Some(InvitedKey::Client));
    }

    #[test]
    fn a_client_that_was_admitted_already_uses_up_no_invitation() {
        let invitation = |byte| InvitedClient { key: key(byte), date: date(ISSUED), invitation: None };
        let mut entries = vec![invitation(1), invitation(2)];
        assert!(admit(&mut entries, &key(1), &key(3), date(ISSUED)));
        assert!(admit(&mut entries, &key(2), &key(3), date(ISSUED)));
        assert_eq!(entries.len(), 2);
        assert!(admit(&mut entries, &key(2), &key(4), date(ISSUED)));
    }

    #[test]
    fn lines_round_trip_and_others_are_named() {
        let (clients, _directory) = clients();
        let (one, two) = (key(1), key(2));
        let text = format!("invitation {one} {ISSUED}\nclient {two} {ISSUED} {one}\n");
        private_directory(clients.file()).expect("writable");
        fs::write(clients.file(), &text).expect("writable");
        let lines: String =
            clients.read().expect("readable").iter().map(|entry| format!("{entry}\n")).collect();
        assert_eq!(lines, text);
        for wrong in [
            format!("invitation {one}"),
            format!("client {two} {ISSUED}"),
            format!("invitation {one} {ISSUED} {two}"),
            format!("friend {one} {ISSUED}"),
            "client plait-key:short 2026-11-27 plait-key:short".into(),
        ] {
            fs::write(clients.file(), format!("\n{wrong}\n")).expect("writable");
            for result in [clients.find(&one).map(drop), clients.invite(one)] {
                assert!(matches!(result, Err(InvitedClientsError::Line { line: 2, .. })), "{wrong}");
            }
        }
    }
}
