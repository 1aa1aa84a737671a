use proptest::prelude::*;
use proptest::sample::Index;

use super::key::AeadKey;
use super::*;

const KEY: [u8; KEY_LEN] = *b"thirty-two bytes that are random";

/// A number of records shortly before the key changes.
const BEFORE_REKEY: u64 = (1 << 20) - 2;

fn sealer(cipher: AeadCipher) -> Sealer {
    Sealer::new(cipher, &KEY)
}

fn opener(cipher: AeadCipher) -> Opener {
    Opener::new(cipher, &KEY)
}

/// A sealer in the middle of its direction, because reaching the next key takes too long.
fn sealer_after(records: u64, cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Sealer {
    Sealer { keys: Keys::in_the_middle(cipher, key, records), ended: false }
}

fn opener_after(records: u64, cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Opener {
    Opener { keys: Keys::in_the_middle(cipher, key, records), state: State::Open }
}

fn seal(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
    let mut record = [&[0xa5; LENGTH], plain, &[0xa5; TAG]].concat();
    sealer.seal(&mut record);
    record
}

/// A record for each of `plains`, and the last record.
fn records(sealer: &mut Sealer, plains: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut records: Vec<Vec<u8>> = plains.iter().map(|plain| seal(sealer, plain)).collect();
    records.push(sealer.end().to_vec());
    records
}

/// Acts as a relay whose bytes arrive in `pieces`, followed by the rest and the end of the stream; returns what it
/// would have forwarded, and how the stream ended.
fn receive(opener: &mut Opener, wire: &[u8], pieces: &[usize]) -> (Vec<u8>, Result<(), Error>) {
    let mut plain = Vec::new();
    let mut outcome = || -> Result<(), Error> {
        let mut buf = Vec::new();
        let (mut rest, mut pieces) = (wire, pieces.iter());
        while !rest.is_empty() {
            let piece = pieces.next().map_or(rest.len(), |piece| rest.len().min(*piece));
            buf.extend_from_slice(&rest[..piece]);
            rest = &rest[piece..];
            loop {
                let (now, consumed) = match opener.open(&mut buf)? {
                    Opened::Incomplete { needed } => {
                        assert!(needed > 0 && buf.len() + needed <= MAX_RECORD);
                        break;
                    }
                    Opened::Data { plaintext, consumed } => (plaintext, consumed),
                    Opened::End { consumed: 0 } => break,
                    Opened::End { consumed } => (0..0, consumed),
                };
                plain.extend_from_slice(&buf[now]);
                buf.drain(..consumed);
            }
        }
        opener.finish()
    };
    let outcome = outcome();
    (plain, outcome)
}

fn plains() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let plain = |most| prop::collection::vec(any::<u8>(), 1..most);
    prop::collection::vec(prop_oneof![plain(4), plain(100), plain(3000)], 1..8)
}

fn cipher() -> impl Strategy<Value = AeadCipher> {
    prop::sample::select(AeadCipher::ALL.to_vec())
}

proptest! {
    #[test]
    fn result_does_not_depend_on_splitting(
        cipher in cipher(),
        plains in plains(),
        pieces in prop::collection::vec(prop_oneof![0..4_usize, 0..140_usize, 0..2500_usize], 0..60),
    ) {
        let wire = records(&mut sealer(cipher), &plains).concat();
        prop_assert_eq!(wire.len(), plains.concat().len() + (plains.len() + 1) * OVERHEAD);
        let mut opener = opener(cipher);
        prop_assert_eq!(receive(&mut opener, &wire, &pieces), (plains.concat(), Ok(())));
    }

    #[test]
    fn rejects_a_modified_byte_and_returns_nothing_after_it(
        cipher in cipher(),
        plains in plains(),
        place in any::<Index>(),
        change in 1..=255_u8,
        pieces in prop::collection::vec(0..500_usize, 0..10),
    ) {
        let records = records(&mut sealer(cipher), &plains);
        let mut wire = records.concat();
        let at = place.index(wire.len());
        wire[at] ^= change;
        let ends = records.iter().scan(0, |end, record| { *end += record.len(); Some(*end) });
        let hit = ends.take_while(|end| *end <= at).count();
        let (given, outcome) = receive(&mut opener(cipher), &wire, &pieces);
        prop_assert!(given == plains[..hit].concat());
        prop_assert!(matches!(
            outcome,
            Err(Error::Tag { record } | Error::Length { record, .. } | Error::Truncated { records: record })
                if record == hit as u64
        ), "{outcome:?}");
    }

    #[test]
    fn rejects_reordered_records(
        cipher in cipher(),
        plains in plains(),
        places in any::<(Index, Index)>(),
    ) {
        let mut records = records(&mut sealer(cipher), &plains);
        let (one, other) = (places.0.index(records.len()), places.1.index(records.len()));
        prop_assume!(one != other);
        records.swap(one, other);
        let first = one.min(other);
        let (given, outcome) = receive(&mut opener(cipher), &records.concat(), &[]);
        prop_assert!(given == plains[..first].concat());
        prop_assert_eq!(outcome, Err(Error::Tag { record: first as u64 }));
    }

    #[test]
    fn rejects_a_repeated_record(cipher in cipher(), plains in plains(), place in any::<Index>()) {
        let mut records = records(&mut sealer(cipher), &plains);
        let at = place.index(records.len());
        records.insert(at, records[at].clone());
        let (given, outcome) = receive(&mut opener(cipher), &records.concat(), &[]);
        prop_assert!(given == plains[..plains.len().min(at + 1)].concat());
        let repeats_the_end = at == plains.len();
        let next = at as u64 + 1;
        prop_assert_eq!(outcome, Err(match repeats_the_end {
            true => Error::AfterEnd { records: next },
            false => Error::Tag { record: next },
        }));
    }

    #[test]
    fn detects_a_missing_record(cipher in cipher(), plains in plains(), place in any::<Index>()) {
        let mut records = records(&mut sealer(cipher), &plains);
        let at = place.index(plains.len());
        records.remove(at);
        let (given, outcome) = receive(&mut opener(cipher), &records.concat(), &[]);
        prop_assert!(given == plains[..at].concat());
        prop_assert_eq!(outcome, Err(Error::Tag { record: at as u64 }));
    }

    #[test]
    fn detects_truncation_anywhere(cipher in cipher(), plains in plains(), place in any::<Index>()) {
        let records = records(&mut sealer(cipher), &plains);
        let wire = records.concat();
        let length = place.index(wire.len());
        let (given, outcome) = receive(&mut opener(cipher), &wire[..length], &[]);
        let ends = records.iter().scan(0, |end, record| { *end += record.len(); Some(*end) });
        let whole = ends.take_while(|end| *end <= length).count();
        prop_assert!(given == plains[..whole].concat());
        prop_assert_eq!(outcome, Err(Error::Truncated { records: whole as u64 }));
    }

    #[test]
    fn rejects_bytes_after_the_end(
        cipher in cipher(),
        plains in plains(),
        more in prop::collection::vec(any::<u8>(), 1..100),
        pieces in prop::collection::vec(0..500_usize, 0..10),
    ) {
        let wire = [records(&mut sealer(cipher), &plains).concat(), more].concat();
        let (given, outcome) = receive(&mut opener(cipher), &wire, &pieces);
        prop_assert!(given == plains.concat());
        prop_assert_eq!(outcome, Err(Error::AfterEnd { records: plains.len() as u64 + 1 }));
    }

    #[test]
    fn rejects_arbitrary_bytes(
        cipher in cipher(),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        short in 0..60_u8,
    ) {
        let mut wire = bytes;
        if wire.len() > 1 {
            wire[..2].copy_from_slice(&[0, short]);
        }
        let (given, outcome) = receive(&mut opener(cipher), &wire, &[]);
        prop_assert!(given.is_empty());
        prop_assert!(outcome.is_err());
    }
}

#[test]
fn agrees_with_the_test_vectors() {
    let vectors = include_str!("../../../tests/vectors/records.txt");
    assert_eq!(vectors.lines().count(), 12);
    for line in vectors.lines() {
        let [cipher, key, used, plains, wire] =
            line.split(' ').collect::<Vec<_>>().try_into().expect("five fields");
        let cipher = cipher.parse().expect("a cipher");
        let key: [u8; KEY_LEN] = hex::decode(key).expect("hexadecimal").try_into().expect("32 bytes");
        let used = used.parse().expect("a number");
        let plains: Vec<Vec<u8>> = match plains {
            "-" => Vec::new(),
            plains => plains.split(',').map(|plain| hex::decode(plain).expect("hexadecimal")).collect(),
        };
        let wire = hex::decode(wire).expect("hexadecimal");
        assert_eq!(
            records(&mut sealer_after(used, cipher, &key), &plains).concat(),
            wire,
            "{cipher} after {used}"
        );
        let (given, outcome) = receive(&mut opener_after(used, cipher, &key), &wire, &[1, 16, 2, 40]);
        assert_eq!((given, outcome), (plains.concat(), Ok(())), "{cipher} after {used}");
    }
}

#[test]
fn rekeys_after_every_2_20_records() {
    for cipher in AeadCipher::ALL {
        let mut sealer = sealer_after(BEFORE_REKEY, cipher, &KEY);
        let records: Vec<Vec<u8>> = (0..4).map(|_| seal(&mut sealer, b"text")).collect();

        let opens_without_rekeying = |index: usize| {
            let numbers_go_on = BEFORE_REKEY + index as u64;
            let nonce = match cipher {
                AeadCipher::ChaCha20Poly1305 => numbers_go_on.to_le_bytes(),
                AeadCipher::Aes256Gcm => numbers_go_on.to_be_bytes(),
            };
            let nonce = [&[0; 4], &nonce[..]].concat().try_into().expect("12 bytes");
            let (length, sealed) = records[index].split_at(LENGTH);
            AeadKey::new(cipher, &KEY).open(nonce, length, &mut sealed.to_vec()).is_some()
        };
        assert_eq!([0, 1, 2, 3].map(opens_without_rekeying), [true, true, false, false], "{cipher}");

        let (given, _) = receive(&mut opener_after(BEFORE_REKEY, cipher, &KEY), &records.concat(), &[]);
        assert_eq!(given, b"texttexttexttext", "{cipher}");
    }
}

#[test]
fn largest_record_round_trips_and_fits_the_buffer() {
    for cipher in AeadCipher::ALL {
        let plain = vec![0x5a; MAX_PLAINTEXT];
        let mut record = seal(&mut sealer(cipher), &plain);
        assert_eq!(record.len(), MAX_RECORD);
        assert_eq!(record[..LENGTH], [0x40, 0x10]);
        let mut opener = opener(cipher);
        assert_eq!(
            opener.open(&mut record[..MAX_RECORD - 1]).expect("no error"),
            Opened::Incomplete { needed: 1 }
        );
        let opened = opener.open(&mut record).expect("sealed with the same key");
        let plaintext = LENGTH..LENGTH + MAX_PLAINTEXT;
        assert_eq!(opened, Opened::Data { plaintext: plaintext.clone(), consumed: MAX_RECORD });
        assert!(record[plaintext] == plain);
    }
}

#[test]
fn rejects_other_keys_and_ciphers() {
    for cipher in AeadCipher::ALL {
        let wire = seal(&mut sealer(cipher), b"text");
        let mut other_key = KEY;
        other_key[31] ^= 1;
        let other_cipher = AeadCipher::ALL.into_iter().find(|other| *other != cipher).expect("there are two");
        for mut opener in [Opener::new(cipher, &other_key), opener(other_cipher)] {
            assert_eq!(opener.open(&mut wire.clone()), Err(Error::Tag { record: 0 }));
        }
    }
}

#[test]
fn failed_opener_stays_failed_and_leaves_no_plaintext() {
    let mut sealer = sealer(AeadCipher::ChaCha20Poly1305);
    let mut bad = seal(&mut sealer, b"some text that is not to be seen");
    let last = bad.len() - 1;
    bad[last] ^= 1;
    let good = seal(&mut self::sealer(AeadCipher::ChaCha20Poly1305), b"text");

    let mut opener = opener(AeadCipher::ChaCha20Poly1305);
    let error = Err(Error::Tag { record: 0 });
    assert_eq!(opener.open(&mut bad), error);
    assert!(bad[LENGTH..].iter().all(|byte| *byte == 0));
    assert_eq!(opener.open(&mut good.clone()), error);
    assert_eq!(opener.open(&mut []), error);
    assert_eq!(opener.finish(), Err(Error::Tag { record: 0 }));
}

#[test]
fn rejects_an_impossible_length_immediately() {
    for got in [0, 1, 15, 16_401, u16::MAX] {
        let mut length = got.to_be_bytes();
        let mut opener = opener(AeadCipher::Aes256Gcm);
        assert_eq!(opener.open(&mut length[..1]), Ok(Opened::Incomplete { needed: 1 }));
        let error = Error::Length { record: 0, got: usize::from(got) };
        assert_eq!(opener.open(&mut length), Err(error));
    }
}

#[test]
fn ciphers_pass_wycheproof() {
    let vectors = include_str!("../../../tests/vectors/wycheproof.txt");
    assert_eq!(vectors.lines().count(), 382);
    for line in vectors.lines() {
        let [cipher, number, result, fields @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("three fields and more: {line}")
        };
        let bytes = |field: &&str| hex::decode(field.replace('-', "")).expect("hexadecimal");
        let [key, nonce, additional, plain, ciphertext, tag] =
            fields.iter().map(bytes).collect::<Vec<_>>().try_into().expect("six fields");
        let (key, nonce) = (key.try_into().expect("32 bytes"), nonce.try_into().expect("12 bytes"));
        let key = AeadKey::new(cipher.parse().expect("a cipher"), &key);

        let mut text = [&ciphertext[..], &tag].concat();
        let opened = key.open(nonce, &additional, &mut text).map(|length| text[..length].to_vec());
        if *result == "invalid" {
            assert_eq!(opened, None, "{cipher} {number}");
        } else {
            assert_eq!(opened.as_ref(), Some(&plain), "{cipher} {number}");
            let mut text = plain;
            assert_eq!(key.seal(nonce, &additional, &mut text)[..], tag, "{cipher} {number}");
            assert_eq!(text, ciphertext, "{cipher} {number}");
        }
    }
}

#[test]
fn errors_state_expected_and_actual_values() {
    for (error, text) in [
        (Error::Length { record: 3, got: 9 }, "record 3: expected a length from 16 to 16400, got 9"),
        (
            Error::Tag { record: 0 },
            "record 0 failed authentication: it was modified on the way, or the keys differ",
        ),
        (Error::AfterEnd { records: 2 }, "expected nothing after the last of 2 records, got more bytes"),
        (
            Error::Truncated { records: 5 },
            "truncated after 5 records: the record that ends the stream is missing",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
#[should_panic(expected = "1 to 16384 bytes")]
fn sealing_nothing_panics() {
    sealer(AeadCipher::Aes256Gcm).seal(&mut [0; OVERHEAD]);
}

#[test]
#[should_panic(expected = "1 to 16384 bytes")]
fn sealing_too_much_panics() {
    sealer(AeadCipher::Aes256Gcm).seal(&mut [0; MAX_RECORD + 1]);
}

#[test]
#[should_panic(expected = "nothing follows the end")]
fn sealing_after_the_end_panics() {
    let mut sealer = sealer(AeadCipher::Aes256Gcm);
    sealer.end();
    sealer.seal(&mut [0; OVERHEAD + 1]);
}
