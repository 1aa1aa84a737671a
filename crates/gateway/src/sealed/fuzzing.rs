//! What the fuzz targets `messages` and `handshake` check: of this crate's private parts, nothing else is
//! to be seen outside.

use std::cell::LazyCell;

use plait_proto::sealed::Cipher;

use super::Responder;
use super::both_ends::{agreed, own, paths, recorded, run_version, terms, whole};
use super::messages::{Bytes, Confirm, First, Hello, Identity, Message, Reply, Share, Version, Witness};

/// The input is what a peer sends: it parses as some message or none, and what parses is written as the same bytes.
pub fn messages(input: &[u8]) {
    rewrites(input, Hello::to_bytes);
    rewrites(input, Reply::to_bytes);
    rewrites(input, Witness::to_bytes);
    rewrites(input, Share::to_bytes);
    rewrites(input, Confirm::to_bytes);
    rewrites(input, Identity::to_bytes);
    rewrites(input, |first: &First| match first {
        First::Hello(hello) => hello.to_bytes(),
        First::Witness(witness) => witness.to_bytes(),
    });
    if let Ok(hello) = whole(input) {
        // Whether it opens is another matter; nobody forges the tag by chance.
        let [_, own] = own();
        let _ = Responder::hear(&agreed(Cipher::ChaCha20Poly1305), &hello, terms(Some(&own)));
    }
}

/// Messages of a handshake with three witnesses: three on the main path, three on every other.
const MAX_MESSAGES: u8 = 3 + 3 * 3;

fn rewrites<M: Message>(input: &[u8], write: impl Fn(&M) -> Bytes) {
    if let Ok(message) = whole(input) {
        let written = write(&message);
        assert_eq!(written[..], input[..written.len()], "a message has one form");
    }
}

/// The input is what is done to the messages of a handshake: 4 bytes each time, which message, where, what and with what.
/// Unless every message arrives as it was sent, the ends do not both come to keys; if all do, they come to the same.
pub fn handshake(input: &[u8]) {
    let Some((&setting, edits)) = input.split_first() else { return };
    let cipher = if setting & 1 == 0 { Cipher::ChaCha20Poly1305 } else { Cipher::Aes256Gcm };
    let paths = paths(1 + (setting >> 1) % 4);
    let version = if setting & 8 == 0 { Version::Anonymous } else { Version::Identified };
    let (edits, _) = edits.as_chunks::<4>();
    let of_another_session = LazyCell::new(|| recorded(version, cipher, paths));
    let agreed = agreed(cipher);

    let mut changed = false;
    let mut number = 0;
    let outcome = run_version(version, [&agreed, &agreed], paths, |_, bytes| {
        let sent = bytes.clone();
        for [_, at, what, with] in edits.iter().filter(|edit| edit[0] % MAX_MESSAGES == number) {
            let at = usize::from(*at) % bytes.len().max(1);
            match what % 4 {
                0 if !bytes.is_empty() => bytes[at] ^= with,
                1 => bytes.truncate(at),
                2 => bytes.insert(at, *with),
                _ => *bytes = of_another_session[usize::from(*with) % of_another_session.len()].1.clone(),
            }
        }
        // What follows a message is left to whatever reads next.
        changed |= !bytes.starts_with(&sent);
        number += 1;
    });
    assert_eq!(outcome.both(), !changed, "established only if nothing was changed");
    if let (Ok(initiator), Ok(responder)) = (outcome.initiator, outcome.responder) {
        assert_eq!(initiator.sending.as_bytes(), responder.receiving.as_bytes());
        assert_eq!(initiator.receiving.as_bytes(), responder.sending.as_bytes());
        assert_eq!(initiator.level, responder.level);
    }
}
