//! The input is a direction of records and what is done to it on the way: cipher and padding, how it is cut into pieces, how
//! many records and the length of each, then 4 bytes for every change: where (2), what and with what.

use plait_proto::codec::records::{
    AeadCipher, Control, Error, LENGTH, MAX_CONTENT, MAX_RECORD, Opened, Opener, Padding, Sealer,
};

const KEYS: [[u8; 32]; 2] = [[7; 32], [8; 32]];

/// What comes out is a beginning of what went in, and all of it just if nothing was changed.
pub(crate) fn check(input: &[u8]) {
    let [setting, piece, count, rest @ ..] = input else { return };
    let cipher = AeadCipher::ALL[usize::from(setting % 2)];
    let padding = Padding::new(u16::from(setting / 2) * 50 + 1).expect("in range");
    let (lengths, changes) = rest.split_at(rest.len().min((*count).into()));
    let (plain, sent) = sealed(Sealer::new(cipher, &KEYS[0]).with_padding(padding), lengths);

    let mut wire = sent.clone();
    for [high, low, what, with] in changes.as_chunks::<4>().0 {
        let at = usize::from(u16::from_be_bytes([*high, *low])) % (wire.len() + 1);
        match what % 3 {
            0 if at < wire.len() => wire[at] ^= with,
            1 => wire.truncate(at),
            _ => wire.insert(at, *with),
        }
    }

    let (received, end) = opened(cipher, &wire, usize::from(*piece) + 1);
    assert!(plain.starts_with(&received), "only what was sent comes out");
    assert_eq!(end.is_ok(), wire == sent, "a change is found, and nothing else: {end:?}");
    assert!(end.is_err() || received == plain, "a good end is the end");
}

/// The data of as many records, and all of the direction. Length 254 is a key update, after which the key changes.
fn sealed(mut sealer: Sealer, lengths: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut plain, mut wire) = (Vec::new(), Vec::new());
    let mut record = vec![0; MAX_RECORD];
    for (number, length) in lengths.iter().enumerate() {
        let length = match *length {
            254 => {
                wire.extend(sealer.control(Control::NewKey, &[number as u8; 20]));
                sealer.set_key(&KEYS[1]);
                continue;
            }
            255 => sealer.capacity(MAX_RECORD),
            length => usize::from(length) + 1,
        };
        assert!(length <= MAX_CONTENT);
        record[LENGTH..LENGTH + length].fill(number as u8);
        plain.extend_from_slice(&record[LENGTH..LENGTH + length]);
        let sealed = sealer.seal(&mut record, length);
        wire.extend_from_slice(&record[..sealed]);
    }
    wire.extend(sealer.end());
    (plain, wire)
}

/// What comes out of a direction that arrives in pieces, and how it ends.
fn opened(cipher: AeadCipher, wire: &[u8], piece: usize) -> (Vec<u8>, Result<(), Error>) {
    let mut opener = Opener::new(cipher, &KEYS[0]);
    let (mut plain, mut waiting) = (Vec::new(), Vec::new());
    for bytes in wire.chunks(piece) {
        waiting.extend_from_slice(bytes);
        loop {
            match opener.open(&mut waiting) {
                Ok(Opened::Incomplete { needed }) => {
                    assert!(needed > 0 && waiting.len() + needed <= MAX_RECORD, "a record is bounded");
                    break;
                }
                Ok(Opened::Data { content, consumed }) => {
                    plain.extend_from_slice(&waiting[content]);
                    waiting.drain(..consumed);
                }
                Ok(Opened::Control { control, content, consumed }) => {
                    assert_eq!((control, content.len()), (Control::NewKey, 20), "what was sent");
                    opener.set_key(&KEYS[1]);
                    waiting.drain(..consumed);
                }
                Ok(Opened::End { consumed }) => {
                    waiting.drain(..consumed);
                    if waiting.is_empty() {
                        break;
                    }
                }
                Ok(Opened::Delivered { .. }) => panic!("there are no copies"),
                Err(error) => return (plain, Err(error)),
            }
        }
    }
    (plain, opener.finish())
}
