//! Names of peers, by which their keys are found.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use plait_config::TextError;
use plait_proto::sealed::Service;
use serde::Deserialize;

use crate::socket::canonical;

/// A peer as the application names it: a host name or address, and a port. Host names are case-insensitive.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct PeerName(String);

impl PeerName {
    /// The peer with this host name or address, and port.
    #[must_use]
    pub fn new(host: &str, port: u16) -> PeerName {
        if let Ok(address) = host.parse::<IpAddr>() {
            return SocketAddr::new(address, port).into();
        }
        // Whatever a name contains, it is one word of a line.
        let host = host.strip_suffix('.').unwrap_or(host).to_lowercase();
        let host = host.escape_default().to_string().replace(' ', "\\u{20}");
        PeerName(format!("{host}:{port}"))
    }

    /// A name as it is displayed, in a line of a file.
    pub(crate) fn from_line(word: &str) -> Option<PeerName> {
        let (host, port) = word.rsplit_once(':')?;
        let is_word = !host.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
        (is_word && port.parse::<u16>().is_ok()).then(|| PeerName(word.to_owned()))
    }

    /// What a handshake asks of the peer.
    pub(crate) fn service(&self) -> Service {
        let (host, port) = self.host_and_port();
        Service::new(host, port)
    }

    /// An IPv6 address is without brackets.
    #[must_use]
    pub fn host_and_port(&self) -> (&str, u16) {
        let (host, port) = self.0.rsplit_once(':').expect("made with a port");
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        (host, port.parse().expect("made of a number"))
    }
}

impl From<SocketAddr> for PeerName {
    fn from(address: SocketAddr) -> PeerName {
        PeerName(canonical(address).to_string())
    }
}

impl FromStr for PeerName {
    type Err = TextError;

    fn from_str(text: &str) -> Result<PeerName, TextError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        let is_name = |host: &str| host.chars().all(|c| c.is_alphanumeric() || "-._".contains(c));
        let (host, port) = text.rsplit_once(':').unwrap_or_default();
        match port.parse() {
            Ok(port) if !host.is_empty() && is_name(host) => Ok(PeerName::new(host, port)),
            _ => Err(TextError::new("HOST:PORT, with an IPv6 address in brackets", text)),
        }
    }
}

impl TryFrom<String> for PeerName {
    type Error = TextError;

    fn try_from(text: String) -> Result<PeerName, TextError> {
        text.parse()
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PeerName {
        text.parse().expect("a peer's name")
    }

    #[test]
    fn equivalent_names_are_equal() {
        for (one, other) in [
            ("Server.Example:443", "server.example.:443"),
            ("[::ffff:192.0.2.7]:80", "192.0.2.7:80"),
            ("[2001:DB8::0:1]:80", "[2001:db8::1]:80"),
        ] {
            assert_eq!(name(one), name(other));
            assert_eq!(name(one).to_string().parse(), Ok(name(one)), "it parses as written");
        }
        assert_eq!(PeerName::new("192.0.2.7", 80), name("192.0.2.7:80"));
        assert_eq!(name("[2001:DB8::1]:80").service(), Service::new("2001:db8::1", 80));
        assert_eq!(name("Server.example:443").service(), Service::new("server.example", 443));
        assert_ne!(name("a.example:80"), name("a.example:81"));
        for wrong in ["", "host", ":80", "host:", "host:65536", "a b:80", "2001:db8::1:x", "[::1]", "a/b:80"]
        {
            assert!(wrong.parse::<PeerName>().is_err(), "{wrong}");
        }
        // A proxy client may ask for any name; it stays one word.
        let asked = PeerName::new("x\ny:1 plait-key:", 80).to_string();
        assert!(!asked.contains(char::is_whitespace), "{asked}");
    }
}
