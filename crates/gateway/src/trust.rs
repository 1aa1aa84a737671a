//! By which keys peers are known (mode `sealed`): pinned ones, and those that were seen first.
//!
//! A peer is named as it was asked for, `HOST:PORT`. Keys that were seen first are kept in a file with one line for each
//! peer, `HOST:PORT plait-key:...`; the first line of a peer counts.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use plait_proto::RandomError;
use plait_proto::identity::{KeyPair, PublicKey};
use serde::Deserialize;
use tracing::warn;

use crate::identity::{self, IdentityError, private_directory};

/// How keys of peers are judged that are not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// Not at all: such peers are not asked who they are.
    Any,
    /// The first key of a peer is kept, and every other refused.
    FirstUse,
    /// Such peers are refused.
    Pinned,
}

/// A text is no name of a kind of trust.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected any, first-use or pinned, found '{0}'")]
pub struct UnknownTrust(String);

impl FromStr for Trust {
    type Err = UnknownTrust;

    fn from_str(name: &str) -> Result<Trust, UnknownTrust> {
        match name {
            "any" => Ok(Trust::Any),
            "first-use" => Ok(Trust::FirstUse),
            "pinned" => Ok(Trust::Pinned),
            _ => Err(UnknownTrust(name.to_owned())),
        }
    }
}

/// A peer as it is asked for: a name or an address, and a port. Names are compared without regard to case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct PeerName(String);

/// A text is no peer's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected HOST:PORT, an IPv6 address in brackets, found '{0}'")]
pub struct NoPeerName(String);

impl PeerName {
    /// The peer at this host, a name or an address, and port.
    #[must_use]
    pub fn new(host: &str, port: u16) -> PeerName {
        if let Ok(address) = host.parse::<IpAddr>() {
            return SocketAddr::new(address, port).into();
        }
        // Whatever a name holds, it is one word of one line.
        let host = host.strip_suffix('.').unwrap_or(host).to_lowercase();
        let host = host.escape_default().to_string().replace(' ', "\\u{20}");
        PeerName(format!("{host}:{port}"))
    }
}

impl From<SocketAddr> for PeerName {
    fn from(address: SocketAddr) -> PeerName {
        PeerName(SocketAddr::new(address.ip().to_canonical(), address.port()).to_string())
    }
}

impl FromStr for PeerName {
    type Err = NoPeerName;

    fn from_str(text: &str) -> Result<PeerName, NoPeerName> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| NoPeerName(text.to_owned()))?;
        let is_name = !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || "-._".contains(c));
        match port.parse() {
            Ok(port) if is_name => Ok(PeerName::new(host, port)),
            _ => Err(NoPeerName(text.to_owned())),
        }
    }
}

impl TryFrom<String> for PeerName {
    type Error = NoPeerName;

    fn try_from(text: String) -> Result<PeerName, NoPeerName> {
        text.parse()
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who a gateway is, and by which keys it knows others.
#[derive(Clone, Debug)]
pub struct Identities {
    own: Option<Arc<KeyPair>>,
    trust: Trust,
    pins: BTreeMap<PeerName, PublicKey>,
    known: Option<PathBuf>,
    clients: Option<Vec<PublicKey>>,
}

impl Default for Identities {
    /// A gateway without an identity, for which everybody is as good.
    fn default() -> Identities {
        Identities { own: None, trust: Trust::Any, pins: BTreeMap::new(), known: None, clients: None }
    }
}

impl Identities {
    /// Reads this gateway's key pair: from a file that must be there, or from the default one if it is there. The peers'
    /// keys that are seen first are kept beside it, in `known_peers`.
    ///
    /// Pins hold under any `trust`; without a word on it, peers that have no pin are refused if there is a pin, and not
    /// asked who they are if there is none. With `clients`, a gateway accepts connections of these alone.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn new(
        file: Option<&Path>,
        trust: Option<Trust>,
        pins: BTreeMap<PeerName, PublicKey>,
        clients: Option<Vec<PublicKey>>,
    ) -> Result<Identities, IdentityError> {
        let default = identity::default_file();
        let own = match (file, &default) {
            (Some(file), _) => Some(identity::load(file)?),
            (None, Ok(default)) if default.exists() => Some(identity::load(default)?),
            (None, _) => None,
        };
        let file = file.map(Path::to_owned).or(default.ok());
        let trust = trust.unwrap_or(if pins.is_empty() { Trust::Any } else { Trust::Pinned });
        let known = file.map(|file| file.with_file_name("known_peers"));
        Ok(Identities { own: own.map(Arc::new), trust, pins, known, clients })
    }

    /// Whether peers that this gateway connects to may have to say who they are.
    #[must_use]
    pub fn judge_peers(&self) -> bool {
        self.trust != Trust::Any || !self.pins.is_empty()
    }

    /// Whether those that connect to this gateway have to say who they are.
    #[must_use]
    pub fn judge_clients(&self) -> bool {
        self.clients.is_some()
    }

    /// What is expected of a peer, asked for by this name and found at this address; `None`: anything.
    pub(crate) fn expected(&self, peer: &PeerName, at: SocketAddr) -> Result<Option<Expected>, Stranger> {
        let pin = self.pins.get(peer).or_else(|| self.pins.get(&PeerName::from(at)));
        let by = match (pin, self.trust) {
            (Some(pin), _) => By::Pin(*pin),
            (None, Trust::Any) => return Ok(None),
            (None, Trust::FirstUse) => match &self.known {
                Some(file) => By::FirstUse(file.clone()),
                None => return Err(Stranger::Nowhere),
            },
            (None, Trust::Pinned) => return Err(Stranger::NotPinned(peer.clone())),
        };
        Ok(Some(Expected { peer: peer.clone(), by }))
    }

    /// The key pair to answer with, if there is one.
    pub(crate) fn own(&self) -> Option<&KeyPair> {
        self.own.as_deref()
    }

    /// The key pair to connect with: a fresh one without a lasting one.
    pub(crate) fn shown(&self) -> Result<Arc<KeyPair>, RandomError> {
        self.own.as_ref().map_or_else(|| KeyPair::generate().map(Arc::new), |own| Ok(Arc::clone(own)))
    }

    /// Judges a client by its key; `None` where anybody may connect.
    pub(crate) fn judge_client(&self, got: &PublicKey) -> Result<Option<Recognised>, Stranger> {
        match &self.clients {
            None => Ok(None),
            Some(clients) if clients.contains(got) => Ok(Some(Recognised::Pinned)),
            Some(_) => Err(Stranger::Client(*got)),
        }
    }
}

/// How an end was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recognised {
    /// By the key that was pinned.
    Pinned,
    /// By the key that it had when it was first seen, which may be now.
    FirstUse,
}

impl fmt::Display for Recognised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Recognised::Pinned => "pinned",
            Recognised::FirstUse => "first-use",
        })
    }
}

/// An end is not who it is expected to be, or that cannot be told.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stranger {
    #[error(
        "{peer} is not who it should be: expected the pinned {expected}, got {got}: somebody stands between, or its key \
         was changed; if you know that it was, change it in [peers]"
    )]
    Pinned { peer: PeerName, expected: PublicKey, got: PublicKey },
    #[error(
        "{peer} is not who it was: expected {expected} of {}, line {line}, got {got}: somebody stands between, or its key \
         was changed; if you know that it was, remove that line", file.display()
    )]
    Changed { peer: PeerName, file: PathBuf, line: usize, expected: PublicKey, got: PublicKey },
    #[error(
        "{0} has no key in [peers], and only peers that have are trusted: add it, or use --peers first-use"
    )]
    NotPinned(PeerName),
    #[error("the client with {0} is none of those that may connect (`clients` of [identity])")]
    Client(PublicKey),
    #[error("the keys of peers cannot be kept: {}", IdentityError::NoDirectory)]
    Nowhere,
    #[error("the keys of peers cannot be read from {} or kept there: {reason}", file.display())]
    File { file: PathBuf, reason: io::Error },
    #[error("{}, line {line}: expected HOST:PORT and a key, as in `server.example:443 plait-key:...`", file.display())]
    Line { file: PathBuf, line: usize },
}

/// What is expected of one peer.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    peer: PeerName,
    by: By,
}

#[derive(Clone, Debug)]
enum By {
    Pin(PublicKey),
    FirstUse(PathBuf),
}

impl Expected {
    /// Judges the peer by its key, and keeps that if it is the first.
    pub(crate) fn judge(&self, got: &PublicKey) -> Result<Recognised, Stranger> {
        match &self.by {
            By::Pin(expected) if expected == got => Ok(Recognised::Pinned),
            By::Pin(expected) => {
                Err(Stranger::Pinned { peer: self.peer.clone(), expected: *expected, got: *got })
            }
            By::FirstUse(file) => self.judge_by_first_use(file, got),
        }
    }

    fn judge_by_first_use(&self, file: &Path, got: &PublicKey) -> Result<Recognised, Stranger> {
        if self.known(file)?.is_none() {
            let kept = keep(file, &format!("{} {got}\n", self.peer));
            kept.map_err(|reason| Stranger::File { file: file.to_owned(), reason })?;
            warn!("{} is seen for the first time: its {got} is kept in {}", self.peer, file.display());
        }
        // Also after it was written: of several that met the peer for the first time, one was first.
        match self.known(file)? {
            Some((_, expected)) if expected == *got => Ok(Recognised::FirstUse),
            Some((line, expected)) => Err(Stranger::Changed {
                peer: self.peer.clone(),
                file: file.to_owned(),
                line,
                expected,
                got: *got,
            }),
            None => {
                let reason = io::Error::other("what was written is not there");
                Err(Stranger::File { file: file.to_owned(), reason })
            }
        }
    }

    /// The peer's first line, and its key.
    fn known(&self, file: &Path) -> Result<Option<(usize, PublicKey)>, Stranger> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(reason) => return Err(Stranger::File { file: file.to_owned(), reason }),
        };
        for (before, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = || Stranger::Line { file: file.to_owned(), line: before + 1 };
            let (peer, key) = line.trim().split_once(' ').ok_or_else(wrong)?;
            let key: PublicKey = key.trim().parse().map_err(|_| wrong())?;
            if peer == self.peer.0 {
                return Ok(Some((before + 1, key)));
            }
        }
        Ok(None)
    }
}

/// Adds a line to a file that only its owner can read; all of it at once, so that lines of others are not torn.
fn keep(file: &Path, line: &str) -> io::Result<()> {
    private_directory(file)?;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    file.write_all(line.as_bytes())?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key(byte: u8) -> PublicKey {
        PublicKey::new([byte; 32])
    }

    fn name(text: &str) -> PeerName {
        text.parse().expect("a peer's name")
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// Of a gateway that keeps what it knows in a directory of this test's own.
    fn identities(test: &str, trust: Option<Trust>, pins: &[(&str, u8)]) -> (Identities, PathBuf) {
        let directory = std::env::temp_dir().join(format!("plait-trust-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let file = directory.join("identity.key");
        identity::load_or_create(&file).expect("a writable directory");
        let pins = pins.iter().map(|(peer, byte)| (name(peer), key(*byte))).collect();
        (Identities::new(Some(&file), trust, pins, None).expect("it was made"), directory)
    }

    #[test]
    fn a_peers_name_has_one_form() {
        for (one, other) in [
            ("Server.Example:443", "server.example.:443"),
            ("[::ffff:192.0.2.7]:80", "192.0.2.7:80"),
            ("[2001:DB8::0:1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(name(one), name(other));
            assert_eq!(name(one).to_string().parse(), Ok(name(one)), "what is written is read");
        }
        assert_eq!(PeerName::new("192.0.2.7", 80), name("192.0.2.7:80"));
        assert_ne!(name("a.example:80"), name("a.example:81"));
        for wrong in ["", "host", ":80", "host:", "host:65536", "a b:80", "2001:db8::1:x", "[::1]", "a/b:80"]
        {
            assert!(wrong.parse::<PeerName>().is_err(), "{wrong}");
        }
        // Whoever asks by a proxy protocol may ask for anything; it stays one word.
        let asked = PeerName::new("x\ny:1 plait-key:", 80).to_string();
        assert!(!asked.contains(char::is_whitespace), "{asked}");
    }

    #[test]
    fn pins_hold_by_name_and_by_address_and_without_a_word_alone() {
        let pins = [("server.example:443", 1), ("192.0.2.7:80", 2)];
        let (identities, directory) = identities("pins", None, &pins);
        let judged = |peer: &str, address: &str, byte| {
            let expected = identities.expected(&name(peer), at(address)).expect("pinned");
            expected.expect("something is expected").judge(&key(byte))
        };
        assert!(matches!(judged("SERVER.example:443", "192.0.2.9:443", 1), Ok(Recognised::Pinned)));
        let error = judged("server.example:443", "192.0.2.9:443", 2).expect_err("another").to_string();
        for part in ["server.example:443", &key(1).to_string(), &key(2).to_string(), "[peers]"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(matches!(judged("other.example:80", "192.0.2.7:80", 2), Ok(Recognised::Pinned)));
        let unpinned = identities.expected(&name("server.example:80"), at("192.0.2.9:80"));
        assert!(matches!(unpinned, Err(Stranger::NotPinned(_))));
        assert!(identities.judge_peers() && !identities.judge_clients());
        fs::remove_dir_all(directory).expect("it is ours");
    }

    #[test]
    fn a_word_on_trust_is_for_peers_without_a_pin() {
        for (trust, expects) in [(Trust::Any, false), (Trust::FirstUse, true)] {
            let (identities, directory) = identities("word", Some(trust), &[("server.example:443", 1)]);
            let of = |peer| identities.expected(&name(peer), at("192.0.2.7:443")).expect("not refused");
            assert_eq!(of("other.example:443").is_some(), expects);
            assert!(of("server.example:443").is_some_and(|expected| expected.judge(&key(2)).is_err()));
            fs::remove_dir_all(directory).expect("it is ours");
        }
        let nobody = Identities::default().expected(&name("a.example:1"), at("192.0.2.7:1"));
        assert!(nobody.is_ok_and(|expected| expected.is_none()));
    }

    #[test]
    fn the_first_key_of_a_peer_is_kept_and_every_other_refused() {
        let (identities, directory) = identities("first", Some(Trust::FirstUse), &[]);
        let file = directory.join("known_peers");
        let judged = |peer: &str, byte| {
            let expected = identities.expected(&name(peer), at("192.0.2.7:443")).expect("not refused");
            expected.expect("something is expected").judge(&key(byte))
        };
        assert!(matches!(judged("one.example:443", 1), Ok(Recognised::FirstUse)));
        assert!(matches!(judged("two.example:443", 2), Ok(Recognised::FirstUse)));
        assert!(matches!(judged("one.example:443", 1), Ok(Recognised::FirstUse)));
        let text = fs::read_to_string(&file).expect("readable");
        assert_eq!(text, format!("one.example:443 {}\ntwo.example:443 {}\n", key(1), key(2)));
        assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
        let error = judged("two.example:443", 1).expect_err("another").to_string();
        let place = format!("{}, line 2", file.display());
        assert!(error.contains(&place) && error.contains("remove that line"), "{error}");
        assert_eq!(fs::read_to_string(&file).expect("readable"), text, "nothing is added");
        // What somebody removes is forgotten at once.
        fs::write(&file, "\n").expect("it is ours");
        assert!(matches!(judged("two.example:443", 1), Ok(Recognised::FirstUse)));
        fs::remove_dir_all(directory).expect("it is ours");
    }

    #[test]
    fn a_file_of_known_peers_that_is_broken_trusts_nobody() {
        let (identities, directory) = identities("broken", Some(Trust::FirstUse), &[]);
        let file = directory.join("known_peers");
        let judged = || {
            let expected = identities.expected(&name("one.example:443"), at("192.0.2.7:443"));
            expected.expect("not refused").expect("something is expected").judge(&key(1))
        };
        let good = format!("other.example:1 {}\n", key(2));
        for (text, at_line) in
            [("one.example:443\n".to_owned(), 1), (format!("{good}one.example:443 plait-k"), 2)]
        {
            fs::write(&file, text).expect("it is ours");
            assert!(matches!(judged(), Err(Stranger::Line { line, .. }) if line == at_line));
        }
        fs::remove_file(&file).expect("it is ours");
        fs::create_dir(&file).expect("it is ours");
        assert!(matches!(judged(), Err(Stranger::File { .. })));
        fs::remove_dir_all(directory).expect("it is ours");
    }

    #[test]
    fn clients_are_those_that_are_named() {
        let anybody = Identities::default();
        assert!(matches!(anybody.judge_client(&key(1)), Ok(None)));
        let named = Identities { clients: Some(vec![key(1)]), ..Identities::default() };
        assert!(matches!(named.judge_client(&key(1)), Ok(Some(Recognised::Pinned))));
        assert!(matches!(named.judge_client(&key(2)), Err(Stranger::Client(_))));
        assert!(named.judge_clients());
    }

    #[test]
    fn without_a_lasting_key_pair_each_connection_has_its_own() {
        let nobody = Identities::default();
        let shown = || nobody.shown().expect("random").public();
        assert_ne!(shown(), shown());
        let (somebody, directory) = identities("lasting", None, &[]);
        let own = somebody.own().expect("it was made").public();
        assert_eq!(somebody.shown().expect("it is there").public(), own);
        fs::remove_dir_all(directory).expect("it is ours");
    }
}
