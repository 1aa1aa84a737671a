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
    Sealer { keys: Keys::in_the_middle(cipher, key, records), padding: Padding::NONE, ended: false }
}

fn opener_after(records: u64, cipher: AeadCipher, key: &[u8; KEY_LEN]) -> Opener {
    Opener { keys: Keys::in_the_middle(cipher, key, records), state: State::Open, ahead: Ahead::default() }
}

fn seal(sealer: &mut Sealer, plain: &[u8]) -> Vec<u8> {
    // More room than any padding needs.
    let mut record = [&[0xa5; LENGTH], plain, &[0xa5; MAX_RECORD]].concat();
    let length = sealer.seal(&mut record, plain.len());
    record.truncate(length);
    record
}

/// A record for each of `plains`, and the last record.
fn records(sealer: &mut Sealer, plains: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut records: Vec<Vec<u8>> = plains.iter().map(|plain| seal(sealer, plain)).collect();
    records.push(sealer.end());
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
                    Opened::Data { content, consumed } => (content, consumed),
                    Opened::Control { .. } | Opened::Delivered { .. } => panic!("there are none"),
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

fn padding() -> impl Strategy<Value = Padding> {
    let unit = prop_oneof![1..=1_u16, 2..=300_u16, 1..=16_384_u16];
    unit.prop_map(|unit| Padding::new(unit).expect("in range"))
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
    fn padded_records_have_lengths_that_are_multiples(
        cipher in cipher(),
        padding in padding(),
        plains in plains(),
        message in prop::collection::vec(any::<u8>(), 0..1300),
    ) {
        let mut sealer = sealer(cipher).with_padding(padding);
        let mut opener = opener(cipher);
        let unit = padding.unit();
        let rounded = |record: &[u8]| unit == 1
            || (record.len() > OVERHEAD && (record.len() - OVERHEAD).is_multiple_of(unit));
        for plain in plains {
            let mut record = seal(&mut sealer, &plain);
            prop_assert!(rounded(&record) && record.len() < plain.len() + unit + OVERHEAD);
            let content = LENGTH..LENGTH + plain.len();
            let opened = opener.open(&mut record);
            prop_assert_eq!(opened, Ok(Opened::Data { content: content.clone(), consumed: record.len() }));
            prop_assert_eq!(&record[content], &plain);
        }
        let mut record = sealer.control(Control::UpdateResponse, &message);
        prop_assert!(rounded(&record));
        let content = LENGTH..LENGTH + message.len();
        let control = Control::UpdateResponse;
        let opened = opener.open(&mut record);
        prop_assert_eq!(opened, Ok(Opened::Control { control, content: content.clone(), consumed: record.len() }));
        prop_assert_eq!(&record[content], &message);
        let mut record = sealer.end();
        prop_assert!(rounded(&record));
        prop_assert_eq!(opener.open(&mut record), Ok(Opened::End { consumed: record.len() }));
    }

    #[test]
    fn capacity_is_what_fits_with_its_padding(padding in padding(), room in 0..40_000_usize) {
        let sealer = sealer(AeadCipher::Aes256Gcm).with_padding(padding);
        let capacity = sealer.capacity(room);
        prop_assert!(capacity == 0 || padding.padded(capacity) + OVERHEAD <= room.min(MAX_RECORD));
        prop_assert!(padding.padded(capacity + 1) + OVERHEAD > room.min(MAX_RECORD));
        prop_assert!(sealer.capacity(MAX_RECORD) > MAX_CONTENT / 2);
    }

    #[test]
    fn the_type_is_the_last_byte_that_is_not_zero(
        content in prop::collection::vec(any::<u8>(), 0..40),
        kind in 1..=255_u8,
        zeros in 0..100_usize,
    ) {
        let plaintext = [&content[..], &[kind], &vec![0; zeros]].concat();
        prop_assert_eq!(last_nonzero(&plaintext), Some((kind, content.len())));
        prop_assert_eq!(last_nonzero(&vec![0; zeros]), None);
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
    assert_eq!(vectors.lines().count(), 16);
    for line in vectors.lines() {
        let [cipher, key, used, unit, plains, wire] =
            line.split(' ').collect::<Vec<_>>().try_into().expect("six fields");
        let padding = Padding::new(unit.parse().expect("a number")).expect("in range");
        let cipher = cipher.parse().expect("a cipher");
        let key: [u8; KEY_LEN] = hex::decode(key).expect("hexadecimal").try_into().expect("32 bytes");
        let used = used.parse().expect("a number");
        let plains: Vec<Vec<u8>> = match plains {
            "-" => Vec::new(),
            plains => plains.split(',').map(|plain| hex::decode(plain).expect("hexadecimal")).collect(),
        };
        let wire = hex::decode(wire).expect("hexadecimal");
        assert_eq!(
            records(&mut sealer_after(used, cipher, &key).with_padding(padding), &plains).concat(),
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
        let plain = vec![0x5a; MAX_CONTENT];
        let mut record = seal(&mut sealer(cipher), &plain);
        assert_eq!(record.len(), MAX_RECORD);
        assert_eq!(record[..LENGTH], [0x40, 0x11]);
        let mut opener = opener(cipher);
        assert_eq!(
            opener.open(&mut record[..MAX_RECORD - 1]).expect("no error"),
            Opened::Incomplete { needed: 1 }
        );
        let opened = opener.open(&mut record).expect("sealed with the same key");
        let content = LENGTH..LENGTH + MAX_CONTENT;
        assert_eq!(opened, Opened::Data { content: content.clone(), consumed: MAX_RECORD });
        assert!(record[content] == plain);
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
    for got in [0, 1, 16, 16_402, u16::MAX] {
        let mut length = got.to_be_bytes();
        let mut opener = opener(AeadCipher::Aes256Gcm);
        assert_eq!(opener.open(&mut length[..1]), Ok(Opened::Incomplete { needed: 1 }));
        let error = Error::Length { record: 0, got: usize::from(got) };
        assert_eq!(opener.open(&mut length), Err(error));
    }
}

/// A record of an arbitrary plaintext, which no sealer makes.
fn seal_plaintext(cipher: AeadCipher, plaintext: &[u8]) -> Vec<u8> {
    let mut sealed = plaintext.to_vec();
    let length = u16::try_from(plaintext.len() + TAG).expect("short").to_be_bytes();
    let mut keys = Keys::new(cipher, &KEY);
    let (key, nonce) = keys.for_next_record();
    let tag = key.seal(nonce, &length, &mut sealed);
    [&length[..], &sealed, &tag].concat()
}

#[test]
fn rejects_authentic_records_that_violate_the_protocol_and_leaves_no_plaintext() {
    for cipher in AeadCipher::ALL {
        for (plaintext, reason) in [
            (&[0][..], "expected a type, got padding alone"),
            (&[0; 100], "expected a type, got padding alone"),
            (&[1], "expected data, got none"),
            (&[1, 0, 0], "expected data, got none"),
            (b"text\x02", "expected no content in the record that ends the direction, got some"),
            (b"text\x07", "expected a type from 1 to 6, got another"),
            (
                b"text\x06",
                "expected one byte in the record that tells why the connection ends, got another number",
            ),
            (
                b"\x06",
                "expected one byte in the record that tells why the connection ends, got another number",
            ),
            (b"text\xff\0\0", "expected a type from 1 to 6, got another"),
        ] {
            let mut record = seal_plaintext(cipher, plaintext);
            let error = Err(Error::Malformed { record: 0, reason });
            let mut opener = opener(cipher);
            assert_eq!(opener.open(&mut record), error);
            assert!(record[LENGTH..].iter().all(|byte| *byte == 0));
            assert_eq!(opener.open(&mut []), error);
        }
        let mut padded_end = seal_plaintext(cipher, &[2, 0, 0, 0]);
        assert_eq!(opener(cipher).open(&mut padded_end), Ok(Opened::End { consumed: LENGTH + 4 + TAG }));
    }
}

#[test]
fn a_new_key_applies_to_the_records_after_it_and_numbers_go_on() {
    for cipher in AeadCipher::ALL {
        let (mut sealer, mut opener) = (sealer(cipher), opener(cipher));
        let other = [9; KEY_LEN];
        opener.open(&mut seal(&mut sealer, b"one")).expect("sealed with the same key");
        sealer.set_key(&other);
        let mut two = seal(&mut sealer, b"two");
        // The number in its nonce is 1, not 0.
        assert!(Opener::new(cipher, &other).open(&mut two.clone()).is_err());
        opener.set_key(&other);
        assert!(opener.open(&mut two).is_ok());
        assert_eq!((sealer.records_of_key(), opener.records_of_key()), (1, 1));
    }
}

#[test]
fn a_new_key_is_replaced_2_20_records_after_it() {
    let cipher = AeadCipher::Aes256Gcm;
    let (mut sealer, mut opener) =
        (sealer_after(BEFORE_REKEY, cipher, &KEY), opener_after(BEFORE_REKEY, cipher, &KEY));
    for number in 0..2 {
        opener.open(&mut seal(&mut sealer, b"text")).unwrap_or_else(|error| panic!("{number}: {error}"));
    }
    // The next record would be the first under REKEY of the old key: the new key is used as it is.
    let other = [9; KEY_LEN];
    sealer.set_key(&other);
    let record = seal(&mut sealer, b"text");
    let nonce = [&[0; 4], &(BEFORE_REKEY + 2).to_be_bytes()[..]].concat().try_into().expect("12 bytes");
    let (length, sealed) = record.split_at(LENGTH);
    assert!(AeadKey::new(cipher, &other).open(nonce, length, &mut sealed.to_vec()).is_some());
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
        (Error::Length { record: 3, got: 9 }, "record 3: expected a length from 17 to 16401, got 9"),
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
fn a_destination_has_the_same_length_for_every_content() {
    for cipher in [AeadCipher::ChaCha20Poly1305, AeadCipher::Aes256Gcm] {
        for (unit, padded) in [(1, 256), (100, 300), (1000, 1000), (MAX_CONTENT as u16, MAX_CONTENT)] {
            let mut sealer = sealer(cipher).with_padding(Padding::new(unit).expect("in range"));
            let mut opener = opener(cipher);
            for length in [0, 1, 256] {
                let content = vec![7; length];
                let mut record = sealer.exit(ExitRecord::Destination, &content);
                assert_eq!(record.len(), padded + OVERHEAD);
                let cut = opener.open_exit(&mut record[..5], ExitRecord::Destination);
                assert_eq!(cut, Ok(OpenedExit::Incomplete { needed: padded + OVERHEAD - 5 }));
                let opened = opener.open_exit(&mut record, ExitRecord::Destination);
                assert_eq!(opened, Ok(OpenedExit::Content(LENGTH..LENGTH + length)));
                assert_eq!(record[LENGTH..LENGTH + length], content);
            }
        }
    }
}

#[test]
fn records_of_an_exit_are_rejected_elsewhere_and_others_in_their_place() {
    let cipher = AeadCipher::ChaCha20Poly1305;
    for kind in [ExitRecord::Destination, ExitRecord::Outcome] {
        let mut record = sealer(cipher).exit(kind, b"text");
        let mut opener = opener(cipher);
        assert!(matches!(opener.open(&mut record), Err(Error::Malformed { record: 0, .. })));
        assert!(!record.windows(4).any(|window| window == b"text"), "it leaves no plaintext");
    }
    let others: [fn(&mut Sealer) -> Vec<u8>; 4] = [
        |sealer| seal(sealer, b"text"),
        Sealer::end,
        |sealer| sealer.control(Control::NewKey, &[]),
        |sealer| sealer.exit(ExitRecord::Destination, b"text"),
    ];
    for other in others {
        let mut record = other(&mut sealer(cipher));
        let mut opener = opener(cipher);
        let opened = opener.open_exit(&mut record, ExitRecord::Outcome);
        assert!(matches!(opened, Err(Error::Malformed { record: 0, .. })), "{opened:?}");
        assert_eq!(opener.open_exit(&mut record, ExitRecord::Outcome), opened, "it stays failed");
    }
    let mut failure = sealer(cipher).failure(CloseReason::Identity);
    let opened = opener(cipher).open_exit(&mut failure, ExitRecord::Outcome);
    assert_eq!(opened, Err(Error::Failure(CloseReason::Identity)));
}

#[test]
fn padding_is_from_1_to_the_largest_content() {
    assert_eq!(Padding::new(0), None);
    assert_eq!(Padding::new(1), Some(Padding::NONE));
    assert!(Padding::new(16_384).is_some());
    assert_eq!(Padding::new(16_385), None);
    assert_eq!(Padding::try_from(100), Ok(Padding::new(100).expect("in range")));
    for number in [-1, 0, 16_385, 70_000] {
        let error = Padding::try_from(number).expect_err("out of range").to_string();
        assert_eq!(
            error,
            format!("expected a number of bytes from 1, which is no padding, to 16384, got {number}")
        );
    }
}

#[test]
#[should_panic(expected = "1 to 16384 bytes of data, got 0")]
fn sealing_nothing_panics() {
    sealer(AeadCipher::Aes256Gcm).seal(&mut [0; MAX_RECORD], 0);
}

#[test]
#[should_panic(expected = "1 to 16384 bytes of data, got 16385")]
fn sealing_too_much_panics() {
    sealer(AeadCipher::Aes256Gcm).seal(&mut [0; MAX_RECORD + 1], MAX_CONTENT + 1);
}

#[test]
#[should_panic(expected = "nothing follows the end")]
fn sealing_after_the_end_panics() {
    let mut sealer = sealer(AeadCipher::Aes256Gcm);
    sealer.end();
    sealer.seal(&mut [0; OVERHEAD + 1], 1);
}
