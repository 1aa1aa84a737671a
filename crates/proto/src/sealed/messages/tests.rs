use proptest::prelude::*;

use super::super::loopback::parse_pieces as parse;
use super::super::paths::PathsError;
use super::*;

fn hello(configured: u8, witnesses: &[u8]) -> Hello {
    let witnesses = PathIds::ascending(witnesses).expect("path numbers");
    let paths = Paths::new(configured, witnesses).expect("counts within bounds");
    let service = RequestedService { port: 443, name: [8; 32] };
    let preface = Preface {
        identified: false,
        session: SessionId::new([7; 32]),
        paths,
        service,
        encapsulation_key: None,
    };
    Hello { preface, noise: [9; NOISE_LEN] }
}

fn hybrid(hello: Hello) -> Hello {
    let preface = Preface { encapsulation_key: Some(Box::new([10; kem::KEY_LEN])), ..hello.preface };
    Hello { preface, ..hello }
}

fn secret(byte: u8) -> Secret {
    Secret::copy_of(&[byte; 32])
}

fn all() -> [Bytes; 11] {
    let identified = Preface { identified: true, ..hello(2, &[1]).preface };
    let path = PathId::new(3).expect("a path number");
    [
        hello(1, &[]).to_bytes(),
        hello(16, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]).to_bytes(),
        Reply { ciphertext: None, noise: vec![9; NOISE_LEN] }.to_bytes(),
        Witness { session: SessionId::new([7; 32]), path, share: secret(5) }.to_bytes(),
        Share { path, share: secret(5), confirmation: Confirmation::new([6; 32]) }.to_bytes(),
        Confirm { path, confirmation: Confirmation::new([6; 32]) }.to_bytes(),
        Hello { preface: identified, noise: [9; NOISE_LEN] }.to_bytes(),
        Reply { ciphertext: None, noise: vec![9; NOISE_STATIC_LEN] }.to_bytes(),
        Identity { noise: [9; NOISE_IDENTITY_LEN] }.to_bytes(),
        hybrid(hello(16, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])).to_bytes(),
        Reply { ciphertext: Some(Box::new([11; kem::CIPHERTEXT_LEN])), noise: vec![9; NOISE_LEN] }.to_bytes(),
    ]
}

/// Parses the bytes as any of the messages and encodes it again.
fn rewritten(bytes: &[u8], piece: usize) -> Option<(Bytes, usize)> {
    if let Ok((first, taken)) = parse::<FirstMessage>(bytes, piece) {
        return Some(match first {
            FirstMessage::Hello(hello) => (hello.to_bytes(), taken),
            FirstMessage::Witness(witness) => (witness.to_bytes(), taken),
            FirstMessage::Side(side) => (side.to_bytes(), taken),
        });
    }
    let reply = parse::<Reply>(bytes, piece).map(|(reply, taken)| (reply.to_bytes(), taken));
    let share = parse::<Share>(bytes, piece).map(|(share, taken)| (share.to_bytes(), taken));
    let confirm = parse::<Confirm>(bytes, piece).map(|(confirm, taken)| (confirm.to_bytes(), taken));
    let identity = parse::<Identity>(bytes, piece).map(|(identity, taken)| (identity.to_bytes(), taken));
    reply.or(share).or(confirm).or(identity).ok()
}

#[test]
fn messages_are_encoded_as_documented() {
    let hello = hello(4, &[1, 3, 15]).to_bytes();
    let service = [&[1, 187][..], &[8; 32]].concat();
    let expected = [&[1, 0, 121, 3, 0][..], &[7; 32], &[4, 3, 1, 3, 15], &service, &[9; 48]].concat();
    assert_eq!(*hello, expected);
    let [_, _, reply, witness, share, confirm, identified, longer, identity, _, with_ciphertext] = all();
    assert_eq!(*reply, [&[2, 0, 48][..], &[9; 48]].concat());
    assert_eq!(*witness, [&[3, 0, 66, 3][..], &[7; 32], &[3], &[5; 32]].concat());
    assert_eq!(*share, [&[4, 0, 65, 3][..], &[5; 32], &[6; 32]].concat());
    assert_eq!(*confirm, [&[5, 0, 33, 3][..], &[6; 32]].concat());
    assert_eq!(*identified, [&[1, 0, 119, 3, 1][..], &[7; 32], &[2, 1, 1], &service, &[9; 48]].concat());
    let hybrid = hybrid(super::tests::hello(2, &[1])).to_bytes();
    let expected = [&[1, 5, 23, 3, 2][..], &[7; 32], &[2, 1, 1], &service, &[10; 1184], &[9; 48]].concat();
    assert_eq!(*hybrid, expected);
    assert_eq!(*with_ciphertext, [&[2, 4, 112][..], &[11; 1088], &[9; 48]].concat());
    assert_eq!(*longer, [&[2, 0, 96][..], &[9; 96]].concat());
    assert_eq!(*identity, [&[6, 0, 64][..], &[9; 64]].concat());
}

#[test]
fn max_len_is_the_longest_message() {
    assert_eq!(all().iter().map(|message| message.len()).max(), Some(MAX_LEN));
}

#[test]
fn messages_round_trip_and_leave_following_bytes_in_the_stream() {
    for bytes in all() {
        let stream = [&bytes[..], b"records"].concat();
        for piece in [1, 2, 3, 50, usize::MAX] {
            let (written, taken) = rewritten(&stream, piece).expect("a message");
            assert_eq!((written, taken), (bytes.clone(), bytes.len()));
        }
    }
}

#[test]
fn rejects_truncated_messages() {
    for bytes in all() {
        for length in 0..bytes.len() {
            assert!(rewritten(&bytes[..length], 7).is_none());
        }
    }
    let error = parse::<Reply>(&all()[2][..20], 7).expect_err("truncated");
    assert_eq!(error, MessageError::Ended { expected: "REPLY", needed: 51, got: 20 });
}

#[test]
fn every_broken_rule_has_its_own_error() {
    let changed = |message: usize, at: usize, value: u8| {
        let mut bytes = all()[message].to_vec();
        bytes[at] = value;
        bytes
    };
    let first = |bytes: Vec<u8>| parse::<FirstMessage>(&bytes, 99).expect_err("a broken rule");
    let expected = "HELLO, WITNESS or SIDE";
    assert_eq!(first(changed(0, 0, 2)), MessageError::Type { expected, got: 2 });
    assert_eq!(first(changed(0, 0, 0)), MessageError::Type { expected, got: 0 });
    let length = |got| MessageError::Length { expected, min: 118, max: 1317, got };
    assert_eq!(first(changed(0, 2, 117)), length(117));
    assert_eq!(first(changed(0, 1, 255)), length(0xff76));
    assert_eq!(first(changed(0, 3, 1)), MessageError::Version { got: 1 });
    assert_eq!(first(changed(0, 3, 0)), MessageError::Version { got: 0 });
    assert_eq!(first(changed(0, 4, 4)), MessageError::Flags(4));
    assert_eq!(first(changed(3, 3, 2)), MessageError::Version { got: 2 });
    assert_eq!(first(changed(3, 3, 0)), MessageError::Version { got: 0 });
    let hello_length = |witnesses, expected, got| MessageError::HelloLength { witnesses, expected, got };
    assert_eq!(first(changed(1, 38, 16)), hello_length(16, 134, 133));
    assert_eq!(first(changed(1, 38, 14)), hello_length(14, 132, 133));
    assert_eq!(first(changed(0, 38, 255)), hello_length(255, 373, 118));
    assert_eq!(first(changed(0, 4, 2)), hello_length(0, 1302, 118));
    let paths = |bytes: Vec<u8>| match first(bytes) {
        MessageError::Paths(error) => error,
        other => panic!("expected an error of paths, got {other}"),
    };
    assert_eq!(paths(changed(0, 37, 0)), PathsError::Configured(0));
    assert_eq!(paths(changed(1, 37, 15)), PathsError::Witnesses { configured: 15, got: 15 });
    assert_eq!(paths(changed(1, 39, 0)), PathsError::Number(0));
    assert_eq!(paths(changed(1, 40, 1)), PathsError::Order { before: 1, got: 1 });
    assert_eq!(paths(changed(3, 36, 0)), PathsError::Number(0));
    let reply = parse::<Reply>(&changed(7, 2, 95), 99).expect_err("a broken rule");
    assert_eq!(reply, MessageError::ReplyLength { got: 95 });
    let share = parse::<Share>(&changed(4, 3, 16), 99).expect_err("a broken rule");
    assert_eq!(share, PathsError::Number(16).into());
    let confirm = parse::<Confirm>(&changed(5, 2, 34), 99).expect_err("a broken rule");
    assert_eq!(confirm, MessageError::Length { expected: "CONFIRM", min: 33, max: 33, got: 34 });
}

#[test]
fn debug_hides_shares() {
    let witness = Witness {
        session: SessionId::new([7; 32]),
        path: PathId::new(3).expect("a path number"),
        share: secret(0xab),
    };
    let shown = format!("{witness:?}");
    assert!(shown.contains("07070707") && !shown.contains("171") && !shown.contains("ab"), "{shown}");
}

proptest! {
    #[test]
    fn parsing_arbitrary_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1usize..9) {
        if let Some((written, taken)) = rewritten(&bytes, piece) {
            prop_assert_eq!(&written[..], &bytes[..taken]);
        }
    }

    #[test]
    fn mutated_messages_that_parse_have_one_encoding(
        message in 0usize..11,
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = all()[message].to_vec();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some((written, taken)) = rewritten(&bytes, 5) {
            prop_assert_eq!(&written[..], &bytes[..taken]);
        }
    }
}
