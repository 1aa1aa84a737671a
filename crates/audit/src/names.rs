//! Names and numbers that stand in clear at the beginning of a stream, whoever wrote it: of TLS, HTTP and SSH, and of
//! plait's own handshake messages. Nothing here panics, whatever the bytes.

use serde::Serialize;

/// Something that a listener reads at the beginning of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Name {
    /// What it is, in words.
    pub what: &'static str,
    /// Its value, with anything but printable ASCII escaped.
    pub value: String,
}

/// How much of a stream is looked at.
pub(crate) const LOOKED_AT: u64 = 4096;

/// How many characters of a value are kept.
const VALUE: usize = 120;

/// What a stream's content is known to be by its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// TLS, or SSH: what follows the handshake is encrypted by the application.
    Encrypted,
    /// plait's sealed mode.
    Sealed,
    /// Anything else.
    Other,
}

/// What a stream that begins with these bytes is, and the names in them.
pub(crate) fn read(start: &[u8]) -> (Protocol, Vec<Name>) {
    if let Some(names) = sealed(start) {
        return (Protocol::Sealed, names);
    }
    if let Some(hello) = tls_handshake(start) {
        return (Protocol::Encrypted, server_name(hello).into_iter().collect());
    }
    if start.starts_with(b"SSH-") {
        return (Protocol::Encrypted, vec![name("SSH version", line(start))]);
    }
    (Protocol::Other, http(start))
}

fn name(what: &'static str, value: &[u8]) -> Name {
    let value = value.iter().take(VALUE).flat_map(|byte| byte.escape_ascii()).map(char::from).collect();
    Name { what, value }
}

/// Up to the end of the line.
fn line(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'));
    &bytes[..end.unwrap_or(bytes.len())]
}

/// The first line of an HTTP/1 message, and the host of a request (RFC 9112 3, 3.2).
fn http(start: &[u8]) -> Vec<Name> {
    let first = line(start);
    if first.starts_with(b"HTTP/1.") {
        return vec![name("HTTP status", first)];
    }
    if !first.windows(8).any(|window| window == b" HTTP/1.") {
        return Vec::new();
    }
    let mut names = vec![name("HTTP request", first)];
    let fields = start.split(|byte| *byte == b'\n').skip(1);
    let host =
        fields.map(line).find(|field| field.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"host:")));
    names.extend(host.map(|field| name("HTTP host", field[5..].trim_ascii())));
    names
}

/// The handshake message in the first record of TLS (RFC 8446 5.1, 4), with as much of it as is there.
fn tls_handshake(start: &[u8]) -> Option<&[u8]> {
    match start {
        // Handshake, versions 3.0 to 3.4; client hello or server hello.
        [22, 3, 0..=4, _, _, 1 | 2, ..] => start.get(5..),
        _ => None,
    }
}

/// The name in a client hello (RFC 8446 4.1.2; RFC 6066 3).
fn server_name(hello: &[u8]) -> Option<Name> {
    let mut hello = Fields(hello);
    if hello.take(1)? != [1] {
        return None;
    }
    // Length, version, random.
    hello.take(3 + 2 + 32)?;
    // Session id, cipher suites, compression methods.
    hello.counted(1)?;
    hello.counted(2)?;
    hello.counted(1)?;
    hello.take(2)?;
    loop {
        let kind = hello.number(2)?;
        let mut extension = Fields(hello.counted(2)?);
        if kind == 0 {
            extension.take(2)?;
            return (extension.take(1)? == [0])
                .then(|| extension.counted(2))
                .flatten()
                .map(|host| name("TLS server name", host));
        }
    }
}

/// plait's messages of mode `sealed` (docs/internals/protocol.md): those that begin a stream.
fn sealed(start: &[u8]) -> Option<Vec<Name>> {
    let mut fields = Fields(start);
    let kind = fields.number(1)?;
    let length = fields.number(2)?;
    let text = |value: String| value.into_bytes();
    match kind {
        // HELLO: version, session id, configured, count, path ids, noise message.
        1 if fields.take(1)? == [1] => {
            let session = hexadecimal(fields.take(32)?);
            let configured = fields.number(1)?;
            let count = fields.number(1)?;
            (length == 83 + count && count <= 15).then(|| {
                vec![
                    name("sealed session", session.as_bytes()),
                    name("paths", &text(format!("{configured} configured, {count} with a witness"))),
                ]
            })
        }
        // REPLY
        2 if length == 48 => Some(Vec::new()),
        // WITNESS: version, session id, path id, share.
        3 if length == 66 && fields.take(1)? == [1] => {
            let session = hexadecimal(fields.take(32)?);
            let path = fields.number(1)?;
            Some(vec![
                name("sealed session", session.as_bytes()),
                name("witness of path", &text(path.to_string())),
            ])
        }
        // SHARE
        4 if length == 65 => Some(Vec::new()),
        _ => None,
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that are taken from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of one or two bytes, most significant first.
    fn number(&mut self, length: usize) -> Option<usize> {
        Some(self.take(length)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    /// A field behind its length.
    fn counted(&mut self, length: usize) -> Option<&'a [u8]> {
        let length = self.number(length)?;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn client_hello(host: &[u8]) -> Vec<u8> {
        let counted = |bytes: &[u8]| [(bytes.len() as u16).to_be_bytes().as_slice(), bytes].concat();
        let names = counted(&[[0].as_slice(), &counted(host)].concat());
        let extensions = [[0, 23, 0, 0, 0, 0].as_slice(), &counted(&names)].concat();
        let body =
            [[3, 3].as_slice(), &[7; 32], &[1, 9], &counted(&[0x13, 1]), &[1, 0], &counted(&extensions)]
                .concat();
        let message = [[1, 0].as_slice(), &counted(&body)].concat();
        [[22, 3, 1].as_slice(), &counted(&message)].concat()
    }

    #[test]
    fn names_are_found() {
        let found = |start: &[u8]| read(start).1.into_iter().map(|name| name.value).collect::<Vec<_>>();
        assert_eq!(found(&client_hello(b"example.org")), ["example.org"]);
        assert_eq!(read(&client_hello(b"example.org")).0, Protocol::Encrypted);
        assert_eq!(found(b"SSH-2.0-OpenSSH_9.2\r\n\x00\x01"), ["SSH-2.0-OpenSSH_9.2"]);
        assert_eq!(found(b"GET /a HTTP/1.1\r\nhost: b.example\r\n\r\n"), ["GET /a HTTP/1.1", "b.example"]);
        assert_eq!(found(b"HTTP/1.1 404 Not Found\r\n"), ["HTTP/1.1 404 Not Found"]);
        assert!(found(b"\x00\x01\x02").is_empty());
    }

    #[test]
    fn messages_of_sealed_tell_their_session() {
        let hello = [[1, 0, 85, 1].as_slice(), &[0xab; 32], &[3, 2, 1, 2], &[9; 48]].concat();
        let (protocol, names) = read(&hello);
        assert_eq!(protocol, Protocol::Sealed);
        assert_eq!(names[0].value, "ab".repeat(32));
        assert_eq!(names[1].value, "3 configured, 2 with a witness");
        let witness = [[3, 0, 66, 1].as_slice(), &[0xab; 32], &[2], &[9; 32]].concat();
        assert_eq!(read(&witness).1[1].value, "2");
        assert_eq!(read(&hello[..20]).0, Protocol::Other, "cut short, it is nothing");
    }

    proptest! {
        #[test]
        fn no_beginning_is_too_strange(bytes in vec(any::<u8>(), 0..200), cut in 0..200usize, at in 0..120usize, byte: u8) {
            read(&bytes);
            let mut hello = client_hello(b"example.org");
            let last = hello.len() - 1;
            hello[at.min(last)] = byte;
            read(&hello[..cut.min(hello.len())]);
        }
    }
}
