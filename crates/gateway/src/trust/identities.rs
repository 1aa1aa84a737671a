//! A gateway's identities: its own key pair, pinned keys of peers, and the clients it accepts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use plait_config::TextError;
use plait_proto::RandomError;
use plait_proto::identity::{KeyPair, PublicKey};
use serde::Deserialize;

use super::identity::{self, IdentityError};
use super::invited_clients::{InvitedClients, InvitedKey};
use super::known_peers::KnownPeers;
use super::peer_name::PeerName;
use super::verification::{ExpectedPeer, KeyMatch, PeerAuthError, TrustAnchor};
use crate::monitor::Monitor;

/// How peers without a pinned key are authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// Not at all.
    Any,
    /// A peer's first key is stored, and every other rejected.
    FirstUse,
    /// They are rejected.
    Pinned,
}

impl FromStr for Trust {
    type Err = TextError;

    fn from_str(name: &str) -> Result<Trust, TextError> {
        match name {
            "any" => Ok(Trust::Any),
            "first-use" => Ok(Trust::FirstUse),
            "pinned" => Ok(Trust::Pinned),
            _ => Err(TextError::new("any, first-use or pinned", name)),
        }
    }
}

/// A gateway's key pair, and the keys it accepts from others.
#[derive(Clone, Debug)]
pub struct Identities {
    key_pair: Option<Arc<KeyPair>>,
    trust: Trust,
    pins: BTreeMap<PeerName, PublicKey>,
    known_peers: Option<KnownPeers>,
    clients: Option<Vec<PublicKey>>,
    /// Those that an exit admits beside them.
    invited: Option<InvitedClients>,
}

impl Default for Identities {
    /// A gateway without a key pair, which accepts everybody.
    fn default() -> Identities {
        Identities {
            key_pair: None,
            trust: Trust::Any,
            pins: BTreeMap::new(),
            known_peers: None,
            clients: None,
            invited: None,
        }
    }
}

impl Identities {
    /// Reads this gateway's key pair: from `file`, which must exist, or from the default one if that exists. Peers' keys
    /// trusted on first use are stored beside it, in `known_peers`.
    ///
    /// Pins apply under any `trust`. By default peers without a pin are rejected if there is any pin, and else not
    /// authenticated. With `clients`, a gateway accepts connections from these only.
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
        let key_pair = match (file, &default) {
            (Some(file), _) => Some(identity::load(file)?),
            (None, Ok(default)) if default.exists() => Some(identity::load(default)?),
            (None, _) => None,
        };
        let file = file.map(Path::to_owned).or(default.ok());
        let trust = trust.unwrap_or(if pins.is_empty() { Trust::Any } else { Trust::Pinned });
        let known_peers = file.map(|file| KnownPeers::in_file(file.with_file_name("known_peers")));
        Ok(Identities { key_pair: key_pair.map(Arc::new), trust, pins, known_peers, clients, invited: None })
    }

    /// The same key pair and keys of first use, with other pins and clients, of which none were invited: for a gateway that can no longer read the files.
    #[must_use]
    pub fn with(
        &self,
        trust: Option<Trust>,
        pins: BTreeMap<PeerName, PublicKey>,
        clients: Option<Vec<PublicKey>>,
    ) -> Identities {
        let trust = trust.unwrap_or(if pins.is_empty() { Trust::Any } else { Trust::Pinned });
        Identities { trust, pins, clients, invited: None, ..self.clone() }
    }

    /// The same, for an exit: with the clients that were invited, beside those that are listed.
    #[must_use]
    pub fn with_invited(self, invited: Option<InvitedClients>) -> Identities {
        Identities { invited, ..self }
    }

    /// The same, with another key pair.
    #[must_use]
    pub fn with_key_pair(self, key_pair: Arc<KeyPair>) -> Identities {
        Identities { key_pair: Some(key_pair), ..self }
    }

    /// Whether peers that this gateway connects to may have to authenticate.
    #[must_use]
    pub fn authenticates_peers(&self) -> bool {
        self.trust != Trust::Any || !self.pins.is_empty()
    }

    /// The keys that were trusted on first use, if any are.
    fn first_use(&self) -> Option<&KnownPeers> {
        self.known_peers.as_ref().filter(|_| self.trust == Trust::FirstUse)
    }

    /// The file of the keys that were trusted on first use, if any are.
    #[must_use]
    pub fn known_peers(&self) -> Option<&Path> {
        self.first_use().map(KnownPeers::file)
    }

    /// Those that an exit admits beside the listed ones, if this is one.
    #[must_use]
    pub fn invited(&self) -> Option<&InvitedClients> {
        self.invited.as_ref()
    }

    /// Reads and writes the keys of first use, and of invited clients, through a monitor.
    pub(crate) fn set_monitor(&mut self, monitor: &Arc<Monitor>) {
        if let Some(known) = &mut self.known_peers {
            known.set_monitor(Arc::clone(monitor));
        }
        if let Some(invited) = &mut self.invited {
            invited.set_monitor(Arc::clone(monitor));
        }
    }

    /// The directories of the keys that were trusted on first use, if any are, and of invited clients.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let known = self.first_use().map(KnownPeers::directories).unwrap_or_default();
        known.into_iter().chain(self.invited.iter().flat_map(InvitedClients::directories)).collect()
    }

    /// Whether clients that connect to this gateway have to authenticate.
    #[must_use]
    pub fn authenticates_clients(&self) -> bool {
        self.clients.is_some()
    }

    /// What the key of a peer with this name and address is verified against; `None` if it need not authenticate. It reads the
    /// keys of first use, if they apply.
    pub(crate) fn expected(
        &self,
        peer: &PeerName,
        at: SocketAddr,
    ) -> Result<Option<ExpectedPeer>, PeerAuthError> {
        let pin = self.pins.get(peer).or_else(|| self.pins.get(&PeerName::from(at)));
        let anchor = match (pin, self.trust) {
            (Some(pin), _) => TrustAnchor::Pin(*pin),
            (None, Trust::Any) => return Ok(None),
            (None, Trust::FirstUse) => match &self.known_peers {
                Some(known) => {
                    let found = known.find(peer);
                    let found = found.map_err(|error| PeerAuthError::known_peers(known.file(), error))?;
                    TrustAnchor::FirstUse(known.clone(), found)
                }
                None => return Err(PeerAuthError::NoDirectory),
            },
            (None, Trust::Pinned) => return Err(PeerAuthError::NotPinned(peer.clone())),
        };
        Ok(Some(ExpectedPeer { peer: peer.clone(), anchor }))
    }

    /// Whether this gateway has a long-term key pair.
    #[must_use]
    pub fn has_key_pair(&self) -> bool {
        self.key_pair.is_some()
    }

    /// The long-term key pair, if there is one.
    pub(crate) fn key_pair(&self) -> Option<&KeyPair> {
        self.key_pair.as_deref()
    }

    /// The key pair to connect with: without a long-term one, one for this connection.
    pub(crate) fn outbound_key_pair(&self) -> Result<Arc<KeyPair>, RandomError> {
        self.key_pair.as_ref().map_or_else(|| KeyPair::generate().map(Arc::new), |own| Ok(Arc::clone(own)))
    }

    /// Verifies the key of a client of a service, which may be for `clients` alone; `None` if anybody may connect.
    pub(crate) fn verify_client(
        &self,
        got: &PublicKey,
        clients: Option<&[PublicKey]>,
    ) -> Result<Option<KeyMatch>, PeerAuthError> {
        match clients.or(self.clients.as_deref()) {
            None => Ok(None),
            Some(clients) if clients.contains(got) => Ok(Some(KeyMatch::Pinned)),
            Some(_) if clients.is_some() => Err(PeerAuthError::ServiceClient(*got)),
            Some(_) => {
                let invited = self.invited.as_ref().map(|invited| invited.find(got)).transpose()?.flatten();
                match invited {
                    Some(InvitedKey::Client) => Ok(Some(KeyMatch::Pinned)),
                    Some(InvitedKey::Invitation) => Ok(Some(KeyMatch::Invitation)),
                    None => Err(PeerAuthError::Client(*got)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

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

    /// The identities of a gateway, and its directory.
    fn identities(trust: Option<Trust>, pins: &[(&str, u8)]) -> (Identities, TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("identity.key");
        identity::load_or_create(&file).expect("a writable directory");
        let pins = pins.iter().map(|(peer, byte)| (name(peer), key(*byte))).collect();
        (Identities::new(Some(&file), trust, pins, None).expect("it was created"), directory)
    }

    #[test]
    fn pins_apply_by_name_and_address_and_reject_other_peers_by_default() {
        let pins = [("server.example:443", 1), ("192.0.2.7:80", 2)];
        let (identities, _directory) = identities(None, &pins);
        let verify = |peer: &str, address: &str, byte| {
            let expected = identities.expected(&name(peer), at(address)).expect("pinned");
            expected.expect("something is expected").verify(&key(byte))
        };
        assert!(matches!(verify("SERVER.example:443", "192.0.2.9:443", 1), Ok(KeyMatch::Pinned)));
        let error = verify("server.example:443", "192.0.2.9:443", 2).expect_err("another").to_string();
        for part in ["server.example:443", &key(1).to_string(), &key(2).to_string(), "[peers]"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(matches!(verify("other.example:80", "192.0.2.7:80", 2), Ok(KeyMatch::Pinned)));
        let unpinned = identities.expected(&name("server.example:80"), at("192.0.2.9:80"));
        assert!(matches!(unpinned, Err(PeerAuthError::NotPinned(_))));
        assert!(identities.authenticates_peers() && !identities.authenticates_clients());
    }

    #[test]
    fn trust_applies_to_peers_without_a_pin() {
        for (trust, expects) in [(Trust::Any, false), (Trust::FirstUse, true)] {
            let (identities, _directory) = identities(Some(trust), &[("server.example:443", 1)]);
            let of = |peer| identities.expected(&name(peer), at("192.0.2.7:443")).expect("not refused");
            assert_eq!(of("other.example:443").is_some(), expects);
            assert!(of("server.example:443").is_some_and(|expected| expected.verify(&key(2)).is_err()));
        }
        let nobody = Identities::default().expected(&name("a.example:1"), at("192.0.2.7:1"));
        assert!(nobody.is_ok_and(|expected| expected.is_none()));
    }

    #[test]
    fn first_key_of_a_peer_is_stored_and_every_other_rejected() {
        let (identities, directory) = identities(Some(Trust::FirstUse), &[]);
        let file = directory.path().join("known_peers");
        let verify = |peer: &str, byte| {
            let expected = identities.expected(&name(peer), at("192.0.2.7:443")).expect("not refused");
            expected.expect("something is expected").verify(&key(byte))
        };
        assert!(matches!(verify("one.example:443", 1), Ok(KeyMatch::FirstUse)));
        assert!(matches!(verify("two.example:443", 2), Ok(KeyMatch::FirstUse)));
        assert!(matches!(verify("one.example:443", 1), Ok(KeyMatch::FirstUse)));
        let text = fs::read_to_string(&file).expect("readable");
        assert_eq!(text, format!("one.example:443 {}\ntwo.example:443 {}\n", key(1), key(2)));
        assert_eq!(fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
        let error = verify("two.example:443", 1).expect_err("another").to_string();
        let place = format!("{}, line 2", file.display());
        assert!(error.contains(&place) && error.contains("remove that line"), "{error}");
        assert_eq!(fs::read_to_string(&file).expect("readable"), text, "nothing is appended");
        // A removed line is forgotten at once.
        fs::write(&file, "\n").expect("it was created here");
        assert!(matches!(verify("two.example:443", 1), Ok(KeyMatch::FirstUse)));
    }

    #[test]
    fn broken_file_of_known_peers_rejects_everybody() {
        let (identities, directory) = identities(Some(Trust::FirstUse), &[]);
        let file = directory.path().join("known_peers");
        let expected = || identities.expected(&name("one.example:443"), at("192.0.2.7:443"));
        let good = format!("other.example:1 {}\n", key(2));
        for (text, at_line) in
            [("one.example:443\n".to_owned(), 1), (format!("{good}one.example:443 plait-k"), 2)]
        {
            fs::write(&file, text).expect("it was created here");
            assert!(matches!(expected(), Err(PeerAuthError::Line { line, .. }) if line == at_line));
        }
        fs::remove_file(&file).expect("it was created here");
        fs::create_dir(&file).expect("it was created here");
        assert!(matches!(expected(), Err(PeerAuthError::File { .. })));
    }

    #[test]
    fn key_that_another_connection_stored_meanwhile_takes_precedence() {
        let (identities, _directory) = identities(Some(Trust::FirstUse), &[]);
        let expected = || {
            let expected = identities.expected(&name("one.example:443"), at("192.0.2.7:443"));
            expected.expect("not refused").expect("something is expected")
        };
        let (one, other) = (expected(), expected());
        assert!(one.is_first_use() && other.is_first_use());
        assert!(matches!(one.verify(&key(1)), Ok(KeyMatch::FirstUse)));
        assert!(matches!(other.verify(&key(2)), Err(PeerAuthError::Changed { line: 1, .. })));
        assert!(!expected().is_first_use());
    }

    #[test]
    fn only_listed_clients_are_accepted() {
        let anybody = Identities::default();
        assert!(matches!(anybody.verify_client(&key(1), None), Ok(None)));
        let named = Identities { clients: Some(vec![key(1)]), ..Identities::default() };
        assert!(matches!(named.verify_client(&key(1), None), Ok(Some(KeyMatch::Pinned))));
        assert!(matches!(named.verify_client(&key(2), None), Err(PeerAuthError::Client(_))));
        let of_service = [key(2)];
        for identities in [&anybody, &named] {
            let verify = |byte| identities.verify_client(&key(byte), Some(&of_service));
            assert!(matches!(verify(2), Ok(Some(KeyMatch::Pinned))));
            assert!(matches!(verify(1), Err(PeerAuthError::ServiceClient(_))));
        }
        assert!(named.authenticates_clients());
    }

    #[test]
    fn without_a_long_term_key_pair_each_connection_has_its_own() {
        let nobody = Identities::default();
        let public = || nobody.outbound_key_pair().expect("random").public();
        assert_ne!(public(), public());
        let (identities, _directory) = identities(None, &[]);
        let own = identities.key_pair().expect("it was created").public();
        assert_eq!(identities.outbound_key_pair().expect("it is there").public(), own);
    }
}
