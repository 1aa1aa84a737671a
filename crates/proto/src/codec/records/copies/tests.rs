use std::collections::VecDeque;

use proptest::prelude::*;

use crate::codec::records::key::Keys;
use crate::codec::records::{AeadCipher, Control, KEY_LEN, MAX_CONTENT, OVERHEAD, Padding};

use super::*;

const KEY: [u8; KEY_LEN] = *b"thirty-two bytes that are random";
const NEXT_KEY: [u8; KEY_LEN] = *b"the key after the first of these";

/// A record of a direction, and its copy.
struct Sealed {
    record: Vec<u8>,
    copy: Option<Vec<u8>>,
}

fn seal(sealer: &mut Sealer, data: &[u8]) -> Sealed {
    let position = sealer.position();
    let mut record = [&[0; LENGTH], data, &[0; OVERHEAD]].concat();
    let length = sealer.seal(&mut record, data.len());
    record.truncate(length);
    let mut copies = Copies::new(position, &record);
    let copy = copies.next();
    assert!(copies.next().is_none() && copy.is_some());
    Sealed { record, copy }
}

/// What a relay does with what arrives, beside a model of it: what was delivered.
struct Receiver {
    opener: Opener,
    delivered: Vec<u8>,
    ended: bool,
    by_copies: usize,
    invalid: usize,
}

impl Receiver {
    fn new(cipher: AeadCipher) -> Receiver {
        let opener = Opener::new(cipher, &KEY);
        Receiver { opener, delivered: Vec::new(), ended: false, by_copies: 0, invalid: 0 }
    }

    fn drain(&mut self) {
        while let Some(content) = self.opener.next_waiting() {
            self.delivered.extend_from_slice(&content);
            self.by_copies += 1;
        }
    }

    fn main(&mut self, record: &[u8]) -> Result<(), Error> {
        let mut record = record.to_vec();
        match self.opener.open(&mut record)? {
            Opened::Data { content, .. } => self.delivered.extend_from_slice(&record[content]),
            Opened::Delivered { consumed } => assert_eq!(consumed, record.len()),
            Opened::Control { .. } => self.opener.set_key(&NEXT_KEY),
            Opened::End { .. } => self.ended = true,
            Opened::Incomplete { .. } => panic!("the record is complete"),
        }
        self.drain();
        Ok(())
    }

    fn copy(&mut self, copy: &[u8]) {
        let mut copy = copy.to_vec();
        match self.opener.open_copy(&mut copy) {
            Ok(CopyOutcome::Next { content }) => {
                self.delivered.extend_from_slice(&copy[content]);
                self.by_copies += 1;
                self.drain();
            }
            Ok(_) => {}
            Err(_) => self.invalid += 1,
        }
    }
}

/// What happens next on the way.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The next record of the direction arrives.
    Main,
    /// The next copy of a side connection arrives.
    Side(usize),
    /// It is dropped.
    Drop(usize),
    /// It arrives, and remains the next.
    Repeat(usize),
    /// It arrives with a changed byte.
    Modify(usize, usize),
    /// It is delayed behind the copy after it.
    Swap(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let side = 0..2_usize;
    prop_oneof![
        4 => Just(Event::Main),
        6 => side.clone().prop_map(Event::Side),
        1 => side.clone().prop_map(Event::Drop),
        1 => side.clone().prop_map(Event::Repeat),
        1 => (side.clone(), any::<usize>()).prop_map(|(side, at)| Event::Modify(side, at)),
        1 => side.prop_map(Event::Swap),
    ]
}

fn cipher() -> impl Strategy<Value = AeadCipher> {
    prop::sample::select(AeadCipher::ALL.to_vec())
}

proptest! {
    #[test]
    fn what_is_delivered_is_what_was_sent(
        cipher in cipher(),
        writes in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 1..40),
        new_keys in prop::collection::vec(0..40_usize, 0..3),
        events in prop::collection::vec(event(), 0..160),
    ) {
        let mut sealer = Sealer::new(cipher, &KEY);
        let (mut main, mut copies, mut ends) = (VecDeque::new(), VecDeque::new(), vec![0]);
        let mut data = Vec::new();
        for (number, write) in writes.iter().enumerate() {
            if new_keys.contains(&number) {
                main.push_back(sealer.control(Control::NewKey, &[]));
                sealer.set_key(&NEXT_KEY);
            }
            let sealed = seal(&mut sealer, write);
            main.push_back(sealed.record);
            copies.extend(sealed.copy);
            data.extend_from_slice(write);
            ends.push(data.len());
        }
        main.push_back(sealer.end());
        let mut sides = [copies.clone(), copies];
        let mut receiver = Receiver::new(cipher);
        for event in events {
            match event {
                Event::Main => {
                    if let Some(record) = main.pop_front() {
                        receiver.main(&record).expect("as it was sent");
                    }
                }
                Event::Side(side) => {
                    if let Some(copy) = sides[side].pop_front() {
                        receiver.copy(&copy);
                    }
                }
                Event::Drop(side) => drop(sides[side].pop_front()),
                Event::Repeat(side) => {
                    if let Some(copy) = sides[side].front() {
                        receiver.copy(copy);
                    }
                }
                Event::Modify(side, at) => {
                    if let Some(mut copy) = sides[side].pop_front() {
                        let at = at % copy.len();
                        copy[at] ^= 1;
                        receiver.copy(&copy);
                    }
                }
                Event::Swap(side) => {
                    if sides[side].len() >= 2 {
                        sides[side].swap(0, 1);
                    }
                }
            }
            // Whole writes, in their order.
            prop_assert!(data.starts_with(&receiver.delivered));
            prop_assert!(ends.contains(&receiver.delivered.len()));
            prop_assert_eq!(receiver.ended, main.is_empty());
        }
        for record in main {
            receiver.main(&record).expect("as it was sent");
        }
        prop_assert_eq!(receiver.delivered, data);
        prop_assert!(receiver.ended && receiver.opener.finish().is_ok());
    }

    #[test]
    fn no_bytes_of_a_side_connection_harm_the_direction(
        cipher in cipher(),
        junk in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..20),
        number in 0..4_u8,
    ) {
        let mut sealer = Sealer::new(cipher, &KEY);
        let mut receiver = Receiver::new(cipher);
        for mut bytes in junk {
            // Often a plausible place.
            if bytes.len() > COPY_HEADER + LENGTH {
                bytes[..COPY_HEADER - 1].fill(0);
                bytes[COPY_HEADER - 1] = number;
                let length = (bytes.len() - COPY_HEADER - LENGTH) as u16;
                bytes[COPY_HEADER..COPY_HEADER + LENGTH].copy_from_slice(&length.to_be_bytes());
            }
            prop_assert!(copy_len(&bytes).is_err() || receiver.opener.open_copy(&mut bytes) != Ok(CopyOutcome::Waiting));
        }
        for data in [b"a", b"b"] {
            let Sealed { record, .. } = seal(&mut sealer, data);
            receiver.main(&record).expect("as it was sent");
        }
        prop_assert_eq!(receiver.delivered, b"ab");
    }
}

#[test]
fn copies_deliver_while_the_direction_is_silent() {
    let mut sealer = Sealer::new(AeadCipher::Aes256Gcm, &KEY);
    let sealed: Vec<Sealed> = (0..200_u8).map(|number| seal(&mut sealer, &[number])).collect();
    let mut receiver = Receiver::new(AeadCipher::Aes256Gcm);
    sealed.iter().for_each(|sealed| receiver.copy(sealed.copy.as_ref().expect("a copy")));
    assert_eq!((receiver.delivered.len(), receiver.by_copies), (200, 200));
    for sealed in &sealed {
        receiver.main(&sealed.record).expect("as it was sent");
    }
    receiver.main(&sealer.end()).expect("the end");
    assert_eq!(receiver.delivered, (0..200).collect::<Vec<u8>>());
}

#[test]
fn record_that_was_delivered_by_its_copy_is_still_authenticated() {
    let mut sealer = Sealer::new(AeadCipher::ChaCha20Poly1305, &KEY);
    let Sealed { mut record, copy } = seal(&mut sealer, b"once");
    let mut receiver = Receiver::new(AeadCipher::ChaCha20Poly1305);
    receiver.copy(&copy.expect("a copy"));
    record[LENGTH] ^= 1;
    assert_eq!(receiver.main(&record), Err(Error::Tag { record: 0 }));
    assert_eq!(receiver.delivered, b"once");
}

#[test]
fn waiting_copies_are_bounded() {
    for (size, expected) in [(1, MAX_AHEAD.0), (MAX_CONTENT, MAX_AHEAD.1 / MAX_CONTENT - 1)] {
        let mut sealer = Sealer::new(AeadCipher::Aes256Gcm, &KEY);
        let first = seal(&mut sealer, b"first");
        let mut receiver = Receiver::new(AeadCipher::Aes256Gcm);
        for _ in 0..100 {
            receiver.copy(&seal(&mut sealer, &vec![7; size]).copy.expect("a copy"));
        }
        assert!(receiver.delivered.is_empty());
        receiver.main(&first.record).expect("as it was sent");
        assert_eq!(receiver.by_copies, expected);
    }
}

#[test]
fn copies_under_another_key_are_left_to_the_direction() {
    // The last record before REKEY, and the two after it.
    let after = (1 << 20) - 1;
    let keys = || Keys::in_the_middle(AeadCipher::Aes256Gcm, &KEY, after);
    let mut sealer = Sealer { keys: keys(), padding: Padding::NONE, ended: false };
    let mut receiver = Receiver::new(AeadCipher::Aes256Gcm);
    receiver.opener.keys = keys();
    let [before, first, second] = [b"a", b"b", b"c"].map(|data| seal(&mut sealer, data));
    let mut open = |copy: &Option<Vec<u8>>| receiver.opener.open_copy(&mut copy.clone().expect("a copy"));
    assert!(matches!(open(&before.copy), Ok(CopyOutcome::Next { .. })));
    assert_eq!(open(&first.copy), Ok(CopyOutcome::Dropped));
    receiver.main(&before.record).expect("as it was sent");
    assert_eq!(
        receiver.opener.open_copy(&mut second.copy.clone().expect("a copy")),
        Ok(CopyOutcome::Dropped)
    );
    receiver.main(&first.record).expect("as it was sent");
    receiver.copy(&second.copy.expect("a copy"));
    assert_eq!((receiver.delivered.as_slice(), receiver.by_copies), (&b"bc"[..], 1));
}

#[test]
fn records_without_data_have_no_valid_copies() {
    let mut sealer = Sealer::new(AeadCipher::Aes256Gcm, &KEY);
    let position = sealer.position();
    let end = sealer.end();
    let mut copy = Copies::new(position, &end).next().expect("a copy");
    let mut opener = Opener::new(AeadCipher::Aes256Gcm, &KEY);
    assert_eq!(opener.open_copy(&mut copy), Err(InvalidCopy::NotData(0)));
    assert_eq!(opener.finish(), Err(Error::Truncated { records: 0 }));
}

#[test]
fn lengths_delimit_copies() {
    let mut sealer = Sealer::new(AeadCipher::Aes256Gcm, &KEY);
    let copy = seal(&mut sealer, b"data").copy.expect("a copy");
    for short in 0..COPY_HEADER + LENGTH {
        assert_eq!(copy_len(&copy[..short]), Ok(None));
    }
    assert_eq!(copy_len(&copy), Ok(Some(copy.len())));
    for wrong in [0_u16, 16, 16402, u16::MAX] {
        let start = [&[0; COPY_HEADER][..], &wrong.to_be_bytes()].concat();
        assert_eq!(copy_len(&start), Err(InvalidCopy::Length(wrong.into())));
    }
}
