//! Generates the seeds of the fuzz targets `messages`, `handshake` and `records`, and runs the targets' checks on their
//! whole corpora.

#[path = "../../../../fuzz/checks/records.rs"]
mod records;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

use super::fuzz;
use super::test_vectors::{FILE, Vectors, bytes};

/// The messages of the vector with the most witnesses.
#[test]
fn messages_seeds() {
    let Vectors { handshakes, .. } = serde_json::from_str(FILE).expect("the vectors");
    let anonymous = handshakes.iter().filter(|handshake| handshake.identity.is_none());
    let largest = anonymous.max_by_key(|handshake| handshake.witnesses.len()).expect("a handshake");
    seeds::seed("messages", "hello", &bytes(&largest.hello));
    seeds::seed("messages", "reply", &bytes(&largest.reply));
    for (name, messages) in
        [("witness", &largest.witnesses), ("share", &largest.share_messages), ("confirm", &largest.confirms)]
    {
        let message = messages.values().next().expect("a handshake with a witness");
        seeds::seed("messages", name, &bytes(message));
    }
    let identified =
        handshakes.iter().find(|handshake| handshake.identity.is_some()).expect("one with identities");
    seeds::seed("messages", "hello-identified", &bytes(&identified.hello));
    seeds::seed("messages", "reply-identified", &bytes(&identified.reply));
    let identity = identified.identity.as_deref().expect("filtered for above");
    seeds::seed("messages", "identity", &bytes(identity));
    seeds::replay("messages", fuzz::messages);
}

#[test]
fn handshake_seeds() {
    for (name, input) in [
        ("alone", &[0][..]),
        ("aes-four-paths", &[7]),
        ("flip-hello", &[2, 0, 40, 0, 1]),
        ("cut-witness", &[2, 1, 40, 1, 0]),
        ("longer-reply", &[3, 2, 50, 2, 0]),
        ("share-of-another-session", &[4, 4, 0, 3, 4]),
        ("confirm-for-share", &[4, 5, 0, 3, 6]),
        ("flip-confirm", &[4, 7, 20, 0, 128]),
        ("identified", &[14]),
        ("flip-identity", &[12, 6, 20, 0, 1]),
        ("longer-reply-of-identified", &[10, 2, 98, 2, 0]),
        ("hybrid", &[18]),
        ("flip-encapsulation-key", &[18, 0, 200, 0, 1]),
        ("flip-ciphertext", &[18, 2, 50, 0, 1]),
    ] {
        seeds::seed("handshake", name, input);
    }
    seeds::replay("handshake", fuzz::handshake);
}

#[test]
fn records_seeds() {
    for (name, input) in [
        ("empty", &[0, 0, 0][..]),
        ("pieces", &[1, 4, 3, 0, 99, 255]),
        ("flipped", &[0, 50, 2, 10, 20, 0, 12, 0, 1]),
        ("cut", &[0, 50, 2, 10, 20, 0, 40, 1, 0]),
        ("inserted", &[1, 0, 1, 5, 0, 1, 2, 7]),
        ("padded", &[7, 9, 3, 0, 99, 255]),
        ("new-key", &[4, 50, 4, 10, 254, 20, 254]),
        ("flipped-after-new-key", &[0, 50, 2, 254, 20, 0, 50, 0, 1]),
    ] {
        seeds::seed("records", name, input);
    }
    seeds::replay("records", records::check);
}
