//! The checks of the fuzz targets `messages` and `handshake`, which need private parts of this module.

use std::cell::LazyCell;

use super::framing::{Bytes, Message};
use super::handshake::Responder;
use super::loopback::{config, params, parse, paths, recorded, run_kind, static_keys};
use super::messages::{Confirm, FirstMessage, Flags, Hello, Identity, Reply, Share, Witness};
use crate::codec::records::AeadCipher;

/// The input is what a peer sends: if it parses as a message, that is encoded as the same bytes.
pub fn messages(input: &[u8]) {
    check_one_encoding(input, Hello::to_bytes);
    check_one_encoding(input, Reply::to_bytes);
    check_one_encoding(input, Witness::to_bytes);
    check_one_encoding(input, Share::to_bytes);
    check_one_encoding(input, Confirm::to_bytes);
    check_one_encoding(input, Identity::to_bytes);
    check_one_encoding(input, |first: &FirstMessage| match first {
        FirstMessage::Hello(hello) => hello.to_bytes(),
        FirstMessage::Witness(witness) => witness.to_bytes(),
    });
    if let Ok(hello) = parse(input) {
        // The result does not matter: no input forges the tag by chance.
        let [_, key] = static_keys();
        let _ = Responder::accept(&params(AeadCipher::ChaCha20Poly1305), &hello, config(Some(&key)));
    }
}

/// Messages of a handshake with three witnesses: three on the main path, three on every other.
const MAX_MESSAGES: u8 = 3 + 3 * 3;

fn check_one_encoding<M: Message>(input: &[u8], write: impl Fn(&M) -> Bytes) {
    if let Ok(message) = parse(input) {
        let written = write(&message);
        assert_eq!(written[..], input[..written.len()], "a message has one encoding");
    }
}

/// The input is a list of modifications of a handshake's messages, 4 bytes each: message, position, kind and value. The
/// ends both complete the handshake if and only if every message arrives unmodified; their keys then agree.
pub fn handshake(input: &[u8]) {
    let Some((&setting, edits)) = input.split_first() else { return };
    let cipher = if setting & 1 == 0 { AeadCipher::ChaCha20Poly1305 } else { AeadCipher::Aes256Gcm };
    let paths = paths(1 + (setting >> 1) % 4);
    let kind = Flags { identified: setting & 8 != 0, hybrid: setting & 16 != 0 };
    let (edits, _) = edits.as_chunks::<4>();
    let other_session = LazyCell::new(|| recorded(kind, cipher, paths));
    let params = params(cipher);

    let mut changed = false;
    let mut number = 0;
    let outcome = run_kind(kind, [&params, &params], paths, |_, bytes| {
        let sent = bytes.clone();
        for [_, at, what, with] in edits.iter().filter(|edit| edit[0] % MAX_MESSAGES == number) {
            let at = usize::from(*at) % bytes.len().max(1);
            match what % 4 {
                0 if !bytes.is_empty() => bytes[at] ^= with,
                1 => bytes.truncate(at),
                2 => bytes.insert(at, *with),
                _ => *bytes = other_session[usize::from(*with) % other_session.len()].1.clone(),
            }
        }
        // Bytes after a message are left in the stream.
        changed |= !bytes.starts_with(&sent);
        number += 1;
    });
    assert_eq!(outcome.both(), !changed, "completed if and only if nothing was modified");
    if let (Ok(initiator), Ok(responder)) = (outcome.initiator, outcome.responder) {
        assert_eq!(initiator.send_key.as_bytes(), responder.recv_key.as_bytes());
        assert_eq!(initiator.recv_key.as_bytes(), responder.send_key.as_bytes());
        assert_eq!(initiator.witnesses.level(), responder.witnesses.level());
    }
}
