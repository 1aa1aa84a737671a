//! What an initiator and an *exit*, a responder that connects to destinations which the initiator names, tell each other in
//! the first record of each direction (mode `sealed`): the destination, and what came of connecting to it.
//!
//! | content of DESTINATION | |
//! |---|---|
//! | `01`, port 2, address 4 | IPv4 |
//! | `02`, port 2, address 16 | IPv6 |
//! | `03`, port 2, name 1 to 253 | a host name, which the exit resolves |
//! | `04` | the exit's resolver, by DNS over TCP |
//! | `05` | a session of [datagrams](crate::datagrams) |
//! | `06`, key 32 | the admission of the client with this public key, by an initiator that authenticates by an invitation |
//!
//! The content of OUTCOME is one byte: 0 if the exit is connected, else the [`ConnectFailure`]. The records are those of
//! [`codec::records`](crate::codec::records).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

use crate::identity::PublicKey;

const IPV4: u8 = 1;
const IPV6: u8 = 2;
const NAME: u8 = 3;
const RESOLVER: u8 = 4;
const DATAGRAMS: u8 = 5;
const ADMISSION: u8 = 6;

/// Where an exit is to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// A port of a host.
    Host(Host, NonZeroU16),
    /// The exit's own resolver, by DNS over TCP (RFC 7766).
    Resolver,
    /// The exit itself: a session of [datagrams](crate::datagrams), whose id it sends.
    Datagrams,
    /// The exit itself: it is to admit the client with this key. The initiator authenticates by an invitation.
    Admission(PublicKey),
}

/// A host, by its address or its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address. One that is IPv4-mapped is sent as IPv4.
    Address(IpAddr),
    /// A name.
    Name(HostName),
}

/// A host name: 1 to 253 letters, digits, hyphens, underscores and dots, without a final dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(String);

/// A text is not a host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a host name of 1 to 253 letters, digits, '-', '_' and '.', got {0:?}")]
pub struct HostNameError(String);

/// A message between initiator and exit is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Neither of the types of a destination, or one with another length.
    #[error(
        "expected a destination (type 1 to 6, a port from 1, an address or a name, or a key), got something else"
    )]
    Destination,
    /// The outcome is not one byte.
    #[error("expected an outcome of one byte, got {0} bytes")]
    Outcome(usize),
}

/// Why an exit did not connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectFailure {
    /// As `ECONNREFUSED`.
    #[error("connection refused")]
    Refused,
    /// As `ENETUNREACH`.
    #[error("network unreachable")]
    NetworkUnreachable,
    /// As `EHOSTUNREACH`.
    #[error("host unreachable")]
    HostUnreachable,
    /// As `ETIMEDOUT`.
    #[error("timed out")]
    TimedOut,
    /// The name has no address, or the exit's resolver does not answer.
    #[error("no address for the name")]
    NameNotFound,
    /// A private, local or otherwise special destination that the exit does not list.
    #[error("not permitted: the exit lists it neither as public nor in `allow` of [exit]")]
    NotPermitted,
    /// The initiator has reached its limit of connections or bytes.
    #[error("the limit of connections or bytes that the exit sets for this client is reached")]
    Limit,
    /// A fault of the exit, or a code that this version does not know.
    #[error("the exit has a fault, which its log tells")]
    Failed,
    /// The invitation has admitted another client, or has expired.
    #[error("the invitation was used by another client, or has expired")]
    Invitation,
}

impl ConnectFailure {
    /// Their codes count from 1.
    const ALL: [ConnectFailure; 9] = [
        ConnectFailure::Refused,
        ConnectFailure::NetworkUnreachable,
        ConnectFailure::HostUnreachable,
        ConnectFailure::TimedOut,
        ConnectFailure::NameNotFound,
        ConnectFailure::NotPermitted,
        ConnectFailure::Limit,
        ConnectFailure::Failed,
        ConnectFailure::Invitation,
    ];
}

/// The content of OUTCOME.
#[must_use]
pub fn encode_outcome(outcome: Result<(), ConnectFailure>) -> [u8; 1] {
    let failure = outcome.err();
    let position = failure.and_then(|failure| ConnectFailure::ALL.iter().position(|other| *other == failure));
    [position.map_or(0, |position| position as u8 + 1)]
}

/// Reads the content of OUTCOME.
///
/// # Errors
/// It is not one byte.
pub fn decode_outcome(content: &[u8]) -> Result<Result<(), ConnectFailure>, MessageError> {
    match content {
        [0] => Ok(Ok(())),
        [code] => {
            let failure = ConnectFailure::ALL.get(usize::from(*code) - 1);
            Ok(Err(failure.copied().unwrap_or(ConnectFailure::Failed)))
        }
        other => Err(MessageError::Outcome(other.len())),
    }
}

impl Destination {
    /// The content of DESTINATION.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (kind, port, host): (u8, NonZeroU16, &[u8]) = match self {
            Destination::Resolver => return vec![RESOLVER],
            Destination::Datagrams => return vec![DATAGRAMS],
            Destination::Admission(client) => return [&[ADMISSION], &client.as_bytes()[..]].concat(),
            Destination::Host(Host::Name(name), port) => (NAME, *port, name.0.as_bytes()),
            Destination::Host(Host::Address(address), port) => match address.to_canonical() {
                IpAddr::V4(address) => (IPV4, *port, &address.octets()),
                IpAddr::V6(address) => (IPV6, *port, &address.octets()),
            },
        };
        let [high, low] = port.get().to_be_bytes();
        [&[kind, high, low], host].concat()
    }

    /// Reads the content of DESTINATION.
    ///
    /// # Errors
    /// It is malformed.
    pub fn decode(content: &[u8]) -> Result<Destination, MessageError> {
        let (kind, port, host) = match content {
            [RESOLVER] => return Ok(Destination::Resolver),
            [DATAGRAMS] => return Ok(Destination::Datagrams),
            [ADMISSION, key @ ..] => {
                let key = key.try_into().map_err(|_| MessageError::Destination)?;
                return Ok(Destination::Admission(PublicKey::new(key)));
            }
            [kind, high, low, host @ ..] => (*kind, u16::from_be_bytes([*high, *low]), host),
            _ => return Err(MessageError::Destination),
        };
        let port = NonZeroU16::new(port).ok_or(MessageError::Destination)?;
        let host = match kind {
            IPV4 => address::<4, Ipv4Addr>(host),
            IPV6 => address::<16, Ipv6Addr>(host),
            NAME => str::from_utf8(host).ok().and_then(|name| name.parse().ok()).map(Host::Name),
            _ => None,
        };
        host.map(|host| Destination::Host(host, port)).ok_or(MessageError::Destination)
    }
}

fn address<const LEN: usize, A: From<[u8; LEN]> + Into<IpAddr>>(bytes: &[u8]) -> Option<Host> {
    let bytes: [u8; LEN] = bytes.try_into().ok()?;
    let address: IpAddr = A::from(bytes).into();
    Some(Host::Address(address.to_canonical()))
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Host(Host::Address(address), port) => SocketAddr::new(*address, port.get()).fmt(f),
            Destination::Host(Host::Name(name), port) => write!(f, "{name}:{port}"),
            Destination::Resolver => f.write_str("its resolver"),
            Destination::Datagrams => f.write_str("datagrams"),
            Destination::Admission(client) => write!(f, "the admission of {client}"),
        }
    }
}

impl HostName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = HostNameError;

    fn from_str(text: &str) -> Result<HostName, HostNameError> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        match is_name && (1..=253).contains(&name.len()) && !name.ends_with('.') {
            true => Ok(HostName(name.to_owned())),
            false => Err(HostNameError(text.to_owned())),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn port(port: u16) -> NonZeroU16 {
        NonZeroU16::new(port).expect("not 0")
    }

    #[test]
    fn destinations_have_the_documented_bytes() {
        let address = |text: &str| Host::Address(text.parse().expect("an address"));
        let name = Host::Name("server.example".parse().expect("a name"));
        let mut six = vec![2, 0, 80, 0x20, 0x01, 0x0d, 0xb8];
        six.extend([0; 11]);
        six.push(1);
        for (destination, bytes) in [
            (Destination::Host(address("192.0.2.7"), port(443)), vec![1, 1, 187, 192, 0, 2, 7]),
            (Destination::Host(address("2001:db8::1"), port(80)), six),
            (Destination::Host(name, port(443)), [&[3, 1, 187], &b"server.example"[..]].concat()),
            (Destination::Resolver, vec![4]),
            (Destination::Datagrams, vec![5]),
            (Destination::Admission(PublicKey::new([7; 32])), [&[6], &[7; 32][..]].concat()),
        ] {
            assert_eq!(destination.encode(), bytes);
            assert_eq!(Destination::decode(&bytes), Ok(destination));
        }
        let mapped = Destination::Host(address("::ffff:192.0.2.7"), port(443));
        assert_eq!(mapped.encode(), [1, 1, 187, 192, 0, 2, 7]);
    }

    #[test]
    fn other_bytes_are_rejected() {
        let long = [&[3, 0, 80][..], &[b'a'; 254]].concat();
        for wrong in [
            &b""[..],
            &[0],
            &[1],
            &[4, 0],
            &[1, 0, 80, 1, 2, 3],
            &[1, 0, 80, 1, 2, 3, 4, 5],
            &[1, 0, 0, 1, 2, 3, 4],
            &[2, 0, 80, 1, 2, 3, 4],
            &[3, 0, 80],
            b"\x03\x00\x50a b",
            b"\x03\x00\x50a\0",
            b"\x03\x00\x50\xff",
            b"\x03\x00\x50.",
            &[5, 0, 80, 1, 2, 3, 4],
            &[6],
            &[6; 32],
            &[6; 34],
            &[7],
            &long,
        ] {
            assert_eq!(Destination::decode(wrong), Err(MessageError::Destination), "{wrong:?}");
        }
    }

    #[test]
    fn every_outcome_has_its_code() {
        assert_eq!(encode_outcome(Ok(())), [0]);
        for (code, failure) in (1..).zip(ConnectFailure::ALL) {
            assert_eq!(encode_outcome(Err(failure)), [code]);
            assert_eq!(decode_outcome(&[code]), Ok(Err(failure)));
        }
        assert_eq!(decode_outcome(&[0]), Ok(Ok(())));
        assert_eq!(decode_outcome(&[10]), Ok(Err(ConnectFailure::Failed)));
        assert_eq!(decode_outcome(&[]), Err(MessageError::Outcome(0)));
        assert_eq!(decode_outcome(&[0, 0]), Err(MessageError::Outcome(2)));
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_alike(content: Vec<u8>) {
            if let Ok(destination) = Destination::decode(&content) {
                prop_assert_eq!(Destination::decode(&destination.encode()), Ok(destination));
            }
            let _ = decode_outcome(&content);
        }

        #[test]
        fn names_round_trip(name in "[a-z0-9_.-]{1,253}", number in 1..=u16::MAX) {
            if let Ok(host) = name.parse::<HostName>() {
                let destination = Destination::Host(Host::Name(host), port(number));
                prop_assert!(destination.encode().len() <= 256);
                prop_assert_eq!(Destination::decode(&destination.encode()), Ok(destination));
            }
        }
    }
}
