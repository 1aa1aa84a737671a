//! Identifiers in clear at the start of a stream: of TLS, HTTP and SSH, and of plait's own handshake messages.
//!
//! Parsers here never panic, whatever the bytes.

use plait_proto::sealed::{OpeningMessage, SessionId};
use schemars::JsonSchema;
use serde::Serialize;

/// Something an eavesdropper reads at the start of a stream.
#[derive(Clone, Debug, JsonSchema, PartialEq, Eq, Serialize)]
pub struct Identifier {
    /// What it is, such as `HTTP host`.
    pub kind: &'static str,
    /// Its value; bytes other than printable ASCII are escaped.
    pub value: String,
}

/// How many bytes of a stream are parsed.
pub(crate) const MAX_PREFIX: u64 = 4096;

/// How many bytes of a value are kept.
const MAX_VALUE: usize = 120;

/// The protocol of a stream, recognised by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// TLS or SSH: what follows the handshake is encrypted by the application.
    Encrypted,
    /// plait's mode `sealed`.
    Sealed,
    /// Anything else.
    Other,
}

/// The protocol of a stream that starts with these bytes, and the identifiers in them.
pub(crate) fn parse(start: &[u8]) -> (Protocol, Vec<Identifier>) {
    if let Some(names) = sealed(start) {
        return (Protocol::Sealed, names);
    }
    if let Some(hello) = tls_handshake(start) {
        return (Protocol::Encrypted, server_name(hello).into_iter().collect());
    }
    if start.starts_with(b"SSH-") {
        return (Protocol::Encrypted, vec![identifier("SSH version", line(start))]);
    }
    (Protocol::Other, http(start))
}

fn identifier(kind: &'static str, value: &[u8]) -> Identifier {
    let value = value.iter().take(MAX_VALUE).flat_map(|byte| byte.escape_ascii()).map(char::from).collect();
    Identifier { kind, value }
}

/// The first line.
fn line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    &bytes[..end.unwrap_or(bytes.len())]
}

/// The start line of an HTTP/1 message and the Host field of a request (RFC 9112, sections 2.1 and 3.2).
fn http(start: &[u8]) -> Vec<Identifier> {
    let first = line(start);
    if first.starts_with(b"HTTP/1.") {
        return vec![identifier("HTTP status", first)];
    }
    if !first.windows(8).any(|window| window == b" HTTP/1.") {
        return Vec::new();
    }
    let mut found = vec![identifier("HTTP request", first)];
    let fields = start.split(|byte| *byte == b'\n').skip(1);
    let host =
        fields.map(line).find(|field| field.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"host:")));
    found.extend(host.map(|field| identifier("HTTP host", field[5..].trim_ascii())));
    found
}

/// The handshake message in the first TLS record (RFC 8446, sections 5.1 and 4), as far as it was captured.
fn tls_handshake(start: &[u8]) -> Option<&[u8]> {
    match start {
        // Handshake record, versions 3.0 to 3.4; ClientHello or ServerHello.
        [22, 3, 0..=4, _, _, 1 | 2, ..] => start.get(5..),
        _ => None,
    }
}

/// The server name in a ClientHello (RFC 8446, section 4.1.2; RFC 6066, section 3).
fn server_name(hello: &[u8]) -> Option<Identifier> {
    let mut hello = Reader(hello);
    if hello.take(1)? != [1] {
        return None;
    }
    // Length, version, random.
    hello.take(3 + 2 + 32)?;
    // Session id, cipher suites, compression methods.
    hello.length_prefixed(1)?;
    hello.length_prefixed(2)?;
    hello.length_prefixed(1)?;
    hello.take(2)?;
    loop {
        let kind = hello.uint(2)?;
        let mut extension = Reader(hello.length_prefixed(2)?);
        if kind == 0 {
            extension.take(2)?;
            return (extension.take(1)? == [0])
                .then(|| extension.length_prefixed(2))
                .flatten()
                .map(|host| identifier("TLS server name", host));
        }
    }
}

/// Identifiers in the message of mode `sealed` at the start of a stream (docs/internals/protocol.md).
fn sealed(start: &[u8]) -> Option<Vec<Identifier>> {
    let session = |id: &SessionId| identifier("sealed session", hex(id.as_bytes()).as_bytes());
    let number = |kind, number: String| identifier(kind, number.as_bytes());
    Some(match OpeningMessage::parse_start(start)? {
        OpeningMessage::Hello(hello) => {
            let (configured, witnesses) = (hello.paths().configured(), hello.paths().witnesses().count());
            vec![
                session(hello.session()),
                number("paths", format!("{configured} configured, {witnesses} with a witness")),
                number("port of the service", hello.port().to_string()),
            ]
        }
        OpeningMessage::Witness(witness) => {
            vec![session(witness.session()), number("witness of path", witness.path().to_string())]
        }
        OpeningMessage::Side(side) => {
            vec![session(side.session()), number("side connection of path", side.path().to_string())]
        }
        OpeningMessage::Reply(_) | OpeningMessage::Share(_) => Vec::new(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Takes fields from the front of a byte slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A big-endian integer of one or two bytes.
    fn uint(&mut self, length: usize) -> Option<usize> {
        Some(self.take(length)?.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    }

    /// A field preceded by its length.
    fn length_prefixed(&mut self, length: usize) -> Option<&'a [u8]> {
        let length = self.uint(length)?;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn client_hello(host: &[u8]) -> Vec<u8> {
        let length_prefixed = |bytes: &[u8]| [(bytes.len() as u16).to_be_bytes().as_slice(), bytes].concat();
        let names = length_prefixed(&[[0].as_slice(), &length_prefixed(host)].concat());
        let extensions = [[0, 23, 0, 0, 0, 0].as_slice(), &length_prefixed(&names)].concat();
        let body = [
            [3, 3].as_slice(),
            &[7; 32],
            &[1, 9],
            &length_prefixed(&[0x13, 1]),
            &[1, 0],
            &length_prefixed(&extensions),
        ]
        .concat();
        let message = [[1, 0].as_slice(), &length_prefixed(&body)].concat();
        [[22, 3, 1].as_slice(), &length_prefixed(&message)].concat()
    }

    #[test]
    fn finds_identifiers_of_tls_ssh_and_http() {
        let found = |start: &[u8]| parse(start).1.into_iter().map(|found| found.value).collect::<Vec<_>>();
        assert_eq!(found(&client_hello(b"example.org")), ["example.org"]);
        assert_eq!(parse(&client_hello(b"example.org")).0, Protocol::Encrypted);
        assert_eq!(found(b"SSH-2.0-OpenSSH_9.2\r\n\x00\x01"), ["SSH-2.0-OpenSSH_9.2"]);
        assert_eq!(found(b"GET /a HTTP/1.1\r\nhost: b.example\r\n\r\n"), ["GET /a HTTP/1.1", "b.example"]);
        assert_eq!(found(b"HTTP/1.1 404 Not Found\r\n"), ["HTTP/1.1 404 Not Found"]);
        assert!(found(b"\x00\x01\x02").is_empty());
    }

    #[test]
    fn sealed_messages_reveal_session_paths_and_port() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/data/protocol/sealed.json"))
                .expect("valid JSON");
        let bytes = |hex: &serde_json::Value| -> Vec<u8> {
            let hex = hex.as_str().expect("a string");
            (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
                .collect()
        };
        for handshake in vectors["handshakes"].as_array().expect("a list") {
            let values = |message: &[u8]| {
                let (protocol, found) = parse(message);
                assert_eq!(protocol, Protocol::Sealed);
                found.into_iter().map(|identifier| identifier.value).collect::<Vec<_>>()
            };
            let session = handshake["session"].as_str().expect("a string");
            let hello = bytes(&handshake["hello"]);
            let witnesses = handshake["witnesses"].as_object().expect("an object");
            let paths = format!("{} configured, {} with a witness", handshake["configured"], witnesses.len());
            assert_eq!(values(&hello), [session, &paths, &handshake["port"].to_string()]);
            assert_eq!(
                parse(&hello[..hello.len() - 1]).0,
                Protocol::Other,
                "a truncated message is not recognised"
            );
            for (path, witness) in witnesses {
                assert_eq!(values(&bytes(witness)), [session, path]);
            }
            assert!(values(&bytes(&handshake["reply"])).is_empty());
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in vec(any::<u8>(), 0..200), cut in 0..200usize, at in 0..120usize, byte: u8) {
            parse(&bytes);
            let mut hello = client_hello(b"example.org");
            let last = hello.len() - 1;
            hello[at.min(last)] = byte;
            parse(&hello[..cut.min(hello.len())]);
        }
    }
}
