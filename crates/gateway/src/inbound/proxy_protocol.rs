//! The PROXY protocol, version 2, by which services learn the addresses of their clients
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>).

use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

use plait_config::{TextError, deserialize_text};
use ppp::v2::{Addresses, Builder, Command, Protocol, Type, Version};
use serde::Deserialize;
use serde::de::Deserializer;

use crate::socket::canonical;

const EXPECTED: &str = "v2, the version of the PROXY protocol";

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// The binary one, 2.
    V2,
}

impl ProxyProtocol {
    /// The header of a connection from `client` to `server`, an address of this host. `name`: that by which the client asked for
    /// the service, if the service has one.
    pub(super) fn header(
        self,
        client: SocketAddr,
        server: SocketAddr,
        name: Option<&str>,
    ) -> io::Result<Vec<u8>> {
        let ProxyProtocol::V2 = self;
        let addresses = Addresses::from((canonical(client), canonical(server)));
        let builder = Builder::with_addresses(Version::Two | Command::Proxy, Protocol::Stream, addresses);
        match name {
            Some(name) => builder.write_tlv(Type::Authority, name.as_bytes())?.build(),
            None => builder.build(),
        }
    }

    /// The header of a connection of this gateway's own, such as a health check.
    pub(super) fn local_header(self) -> io::Result<Vec<u8>> {
        let ProxyProtocol::V2 = self;
        Builder::with_addresses(Version::Two | Command::Local, Protocol::Unspecified, Addresses::Unspecified)
            .build()
    }
}

impl FromStr for ProxyProtocol {
    type Err = TextError;

    fn from_str(text: &str) -> Result<ProxyProtocol, TextError> {
        match text {
            "v2" => Ok(ProxyProtocol::V2),
            _ => Err(TextError::new(EXPECTED, text)),
        }
    }
}

impl<'de> Deserialize<'de> for ProxyProtocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ProxyProtocol, D::Error> {
        deserialize_text(deserializer, EXPECTED, str::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

    fn header(client: &str, server: &str, name: Option<&str>) -> Vec<u8> {
        let [client, server] = [client, server].map(|text| text.parse().expect("an address"));
        ProxyProtocol::V2.header(client, server, name).expect("a header")
    }

    #[test]
    fn headers_are_those_of_the_specification() {
        let ipv4 = header("[::ffff:192.0.2.7]:40000", "10.0.0.1:443", None);
        let fields = [0x21, 0x11, 0, 12, 192, 0, 2, 7, 10, 0, 0, 1, 0x9c, 0x40, 1, 0xbb];
        assert_eq!(ipv4, [SIGNATURE, &fields].concat());
        let ipv6 = header("[2001:db8::7]:40000", "[2001:db8::1]:443", Some("a.example"));
        assert_eq!(ipv6[12..16], [0x21, 0x21, 0, 36 + 3 + 9]);
        assert_eq!(ipv6[16..20], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(ipv6[52..], [&[2, 0, 9], &b"a.example"[..]].concat());
        let local = ProxyProtocol::V2.local_header().expect("a header");
        assert_eq!(local, [SIGNATURE, &[0x20, 0, 0, 0]].concat());
    }
}
