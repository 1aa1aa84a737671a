//! Generates the seeds of the fuzz targets `messages`, `handshake`, `key_updates`, `records`, `exit` and `datagrams`, and runs the targets' checks on their
//! whole corpora.

#[path = "../../../../fuzz/checks/datagrams.rs"]
mod datagrams;
#[path = "../../../../fuzz/checks/exit.rs"]
mod exit;
#[path = "../../../../fuzz/checks/records.rs"]
mod records;
#[path = "../../../../fuzz/seeds.rs"]
mod seeds;

use super::fuzz;
use super::test_vectors::{FILE, Vectors, bytes};
use crate::datagrams::{Message, PathChoice, Preference};
use crate::exit::{ConnectFailure, Destination, Host, encode_outcome};

/// The messages of the vector with the most witnesses.
#[test]
fn messages_seeds() {
    let Vectors { handshakes, side_connections, .. } = serde_json::from_str(FILE).expect("the vectors");
    seeds::seed("messages", "side", &bytes(&side_connections[0].side));
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

/// Events of `fuzz::key_updates`: `end | kind << 1`.
#[test]
fn key_updates_seeds() {
    const PASS: u8 = 0;
    const END: u8 = 1 << 1;
    const LATE: u8 = 2 << 1;
    const SEND: u8 = 3 << 1;
    const ARRIVE: u8 = 5 << 1;
    const RESPONDER: u8 = 1;
    let none = 3;
    let pass = [PASS, 0, none, 61];
    let [send, answer] = [SEND, SEND | RESPONDER].map(|event| [event, 0, none, 1]);
    let [arrive, arrive_at_responder] = [ARRIVE, ARRIVE | RESPONDER].map(|event| [event, 0, none, 1]);
    let late = [LATE, 0, none, 2];
    let update = [send, arrive_at_responder, answer, arrive, send, arrive_at_responder];
    let update_with = |changed: usize, at, kind, value| {
        let mut events = update;
        events[changed] = [events[changed][0], at, kind, value];
        [&[pass][..], &events].concat()
    };
    for (name, hybrid, events) in [
        ("none", 0, vec![]),
        ("by-time", 0, [&[pass][..], &update, &[pass], &update].concat()),
        ("by-records", 1, [&[[SEND, 0, none, 200], send][..], &update].concat()),
        ("late-witness", 1, [&[late][..], &update, &[[LATE, 0, none, 3]], &update].concat()),
        ("late-witness-flipped", 0, vec![[LATE, 40, 1 << 2, 2], late, [LATE, 40, 2 << 2 | 1, 3]]),
        ("request-flipped", 0, update_with(1, 5, 0, 1)),
        ("ignored-bit-of-public-key-flipped", 0, update_with(1, 31, 0, 0x80)),
        ("encapsulation-key-flipped", 1, update_with(1, 200, 0, 1)),
        ("request-longer", 0, update_with(1, 0, 2, 1)),
        ("response-cut", 0, update_with(3, 5, 1, 0)),
        ("ciphertext-flipped", 1, update_with(3, 100, 0, 1)),
        ("new-key-longer", 0, update_with(5, 0, 2, 1)),
        (
            "ended-while-requested",
            0,
            vec![pass, send, [END | RESPONDER, 0, none, 0], arrive_at_responder, arrive],
        ),
        ("overdue", 0, [&[pass, send][..], &[[PASS, 0, none, 255]; 15], &[send]].concat()),
    ] {
        let input = [&[hybrid][..], events.as_flattened()].concat();
        seeds::seed("key_updates", name, &input);
    }
    seeds::replay("key_updates", fuzz::key_updates);
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

#[test]
fn exit_seeds() {
    let host = |host, port: u16| Destination::Host(host, port.try_into().expect("not 0"));
    let address = |text: &str| Host::Address(text.parse().expect("an address"));
    for (name, destination) in [
        ("ipv4", host(address("192.0.2.7"), 443)),
        ("ipv6", host(address("2001:db8::1"), 443)),
        ("name", host(Host::Name("server.example".parse().expect("a name")), 443)),
        ("resolver", Destination::Resolver),
    ] {
        seeds::seed("exit", name, &destination.encode());
    }
    seeds::seed("exit", "outcome", &encode_outcome(Err(ConnectFailure::Limit)));
    seeds::replay("exit", exit::check);
}

#[test]
fn datagrams_seeds() {
    let destination = Destination::Host(Host::Address([192, 0, 2, 7].into()), 53.try_into().expect("not 0"));
    let preference = Preference { number: 1, paths: PathChoice::All };
    let data = |copy, destination| Message::Data { association: 7, copy, destination, payload: b"payload" };
    for (name, message) in [
        ("probe", Message::Probe { number: 1, preference }),
        ("probe-reply", Message::ProbeReply { number: 1 }),
        ("data", data(None, destination.clone())),
        ("copy", data(Some(1), Destination::Resolver)),
        ("refused", Message::Refused { association: 7, reason: ConnectFailure::Limit, destination }),
        ("close", Message::Close { association: 7 }),
    ] {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        seeds::seed("datagrams", name, &bytes);
    }
    seeds::replay("datagrams", datagrams::check);
}
