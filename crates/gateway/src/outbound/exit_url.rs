//! The URL of an exit, and the one with an invitation, which `plait exit init` prints.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use plait_config::TextError;
use plait_proto::identity::{KeyPair, PublicKey};
use plait_proto::sealed::Service;
use serde::Deserialize;
use zeroize::Zeroizing;

use crate::trust::PeerName;

const SCHEME: &str = "plait://";
const EXPECTED: &str = "plait://HOST:PORT#KEY, with .INVITATION or without, as `plait exit init` prints it";

/// Between the exit's key and an invitation.
const INVITATION_MARK: char = '.';

/// Where an exit is, and its public key: `plait://HOST:PORT#KEY`, with an IPv6 address in brackets. `KEY` is a public key's text
/// without `plait-key:`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ExitUrl {
    peer: PeerName,
    key: PublicKey,
}

impl ExitUrl {
    /// The exit with this name or address and port, and this key.
    #[must_use]
    pub fn new(peer: PeerName, key: PublicKey) -> ExitUrl {
        ExitUrl { peer, key }
    }

    /// The exit as a peer.
    #[must_use]
    pub fn peer(&self) -> &PeerName {
        &self.peer
    }

    /// The key by which it authenticates.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// What a handshake asks of it.
    pub(super) fn service(&self) -> Service {
        Service::exit(self.peer.host_and_port().1)
    }
}

impl FromStr for ExitUrl {
    type Err = TextError;

    /// An invitation is left out: [`InvitationUrl`] has it.
    fn from_str(text: &str) -> Result<ExitUrl, TextError> {
        Ok(text.parse::<InvitationUrl>()?.exit)
    }
}

/// The text of an URL as it may be shown.
fn without_invitation(text: &str) -> &str {
    let key = text.find('#').unwrap_or(text.len());
    let end = text[key..].find(INVITATION_MARK).map_or(text.len(), |mark| key + mark + 1);
    &text[..end]
}

/// The URL of an exit with an invitation, `plait://HOST:PORT#KEY.INVITATION`, or without one. `INVITATION` is a private key's text without
/// `plait-private-key:`.
#[derive(Clone, Debug)]
pub struct InvitationUrl {
    /// The exit.
    pub exit: ExitUrl,
    /// The key pair by which a client that the exit does not know authenticates to be admitted.
    pub invitation: Option<Arc<KeyPair>>,
}

impl InvitationUrl {
    /// Its text, which contains the private key.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(self.exit.to_string());
        if let Some(pair) = &self.invitation {
            let private = pair.private_text();
            text.push(INVITATION_MARK);
            text.push_str(private.strip_prefix(KeyPair::PRIVATE_PREFIX).unwrap_or(&private));
        }
        text
    }
}

impl FromStr for InvitationUrl {
    type Err = TextError;

    fn from_str(text: &str) -> Result<InvitationUrl, TextError> {
        let wrong = || TextError::new(EXPECTED, without_invitation(text));
        let parts = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('#'));
        let (peer, keys) = parts.ok_or_else(wrong)?;
        let (key, invitation) = match keys.split_once(INVITATION_MARK) {
            Some((key, invitation)) => (key, Some(invitation)),
            None => (keys, None),
        };
        // A program that normalizes URLs appends the slash.
        let peer: PeerName = peer.strip_suffix('/').unwrap_or(peer).parse().map_err(|_| wrong())?;
        let key = format!("{}{key}", PublicKey::PREFIX).parse().map_err(|_| wrong())?;
        if peer.host_and_port().1 == 0 {
            return Err(wrong());
        }
        let key_pair = |digits| {
            let private = Zeroizing::new(format!("{}{digits}", KeyPair::PRIVATE_PREFIX));
            KeyPair::parse_private(&private).map(Arc::new).ok_or_else(wrong)
        };
        let invitation = invitation.map(key_pair).transpose()?;
        Ok(InvitationUrl { exit: ExitUrl { peer, key }, invitation })
    }
}

impl TryFrom<String> for ExitUrl {
    type Error = TextError;

    fn try_from(text: String) -> Result<ExitUrl, TextError> {
        text.parse()
    }
}

impl fmt::Display for ExitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.to_string();
        let key = key.strip_prefix(PublicKey::PREFIX).unwrap_or(&key);
        write!(f, "{SCHEME}{}#{key}", self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_url_is_a_peer_and_its_key() {
        let key = PublicKey::new([7; 32]);
        let digits = key.to_string().replace("plait-key:", "");
        for peer in ["server.example:8443", "192.0.2.7:8443", "[2001:db8::1]:8443"] {
            let url: ExitUrl = format!("plait://{peer}#{digits}").parse().expect("an URL");
            assert_eq!(url, ExitUrl::new(peer.parse().expect("a peer"), key));
            assert_eq!(url.to_string(), format!("plait://{peer}#{digits}"));
            assert_eq!(url.service(), Service::exit(8443));
        }
        let slash: ExitUrl = format!("plait://server.example:8443/#{digits}").parse().expect("an URL");
        assert_eq!(slash.peer().to_string(), "server.example:8443");
        for wrong in [
            String::new(),
            "plait://server.example:8443".into(),
            format!("plait://server.example#{digits}"),
            format!("plait://server.example:0#{digits}"),
            format!("plait://2001:db8::1#{digits}"),
            format!("https://server.example:8443#{digits}"),
            format!("plait://server.example:8443#{}", &digits[1..]),
            format!("plait://server.example:8443#plait-key:{digits}"),
            format!("plait://user@server.example:8443#{digits}"),
            format!("plait://server.example:8443/path#{digits}"),
        ] {
            let error = wrong.parse::<ExitUrl>().expect_err("no URL").to_string();
            assert!(error.starts_with("expected plait://HOST:PORT#KEY"), "{error}");
        }
    }

    #[test]
    fn an_invitation_follows_the_key_and_is_not_shown() {
        let pair = Arc::new(KeyPair::generate().expect("random"));
        let exit = ExitUrl::new("[2001:db8::1]:8443".parse().expect("a peer"), PublicKey::new([7; 32]));
        let url = InvitationUrl { exit: exit.clone(), invitation: Some(Arc::clone(&pair)) };
        let text = url.to_text();
        let private = text.rsplit('.').next().expect("the last part").to_owned();
        let parsed: InvitationUrl = text.parse().expect("an URL");
        assert_eq!(
            (parsed.exit, parsed.invitation.map(|pair| pair.public())),
            (exit.clone(), Some(pair.public()))
        );
        assert!(!format!("{url:?}").contains(&private));
        let plain: InvitationUrl = exit.to_string().parse().expect("an URL");
        assert!(plain.exit == exit && plain.invitation.is_none());
        assert_eq!(text.parse::<ExitUrl>().expect("an URL"), exit);
        for wrong in [format!("{exit}."), format!("{exit}.{}", &private[1..]), format!("{}x", *text)] {
            let error = wrong.parse::<InvitationUrl>().expect_err("no URL").to_string();
            assert!(error.contains("plait://HOST:PORT#KEY") && !error.contains(&private[1..]), "{error}");
        }
    }
}
