//! The URL of an exit, as `plait exit init` prints it.

use std::fmt;
use std::str::FromStr;

use plait_config::TextError;
use plait_proto::identity::PublicKey;
use plait_proto::sealed::Service;
use serde::Deserialize;

use crate::trust::PeerName;

const SCHEME: &str = "plait://";
const EXPECTED: &str = "plait://HOST:PORT#KEY, as `plait exit init` prints it";

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

    fn from_str(text: &str) -> Result<ExitUrl, TextError> {
        let parts = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('#'));
        let (peer, key) = parts.ok_or_else(|| TextError::new(EXPECTED, text))?;
        // A program that normalizes URLs appends the slash.
        let peer = peer.strip_suffix('/').unwrap_or(peer).parse::<PeerName>();
        let key = format!("{}{key}", PublicKey::PREFIX).parse();
        match (peer, key) {
            (Ok(peer), Ok(key)) if peer.host_and_port().1 != 0 => Ok(ExitUrl { peer, key }),
            _ => Err(TextError::new(EXPECTED, text)),
        }
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
}
