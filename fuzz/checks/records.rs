//! The input is a direction of records and what is done to it on the way: cipher, how it is cut into pieces, how many
//! records and the length of each, then 4 bytes for every change: where (2), what and with what.

use plait_proto::codec::records::{
    AeadCipher, Error, LENGTH, MAX_PLAINTEXT, MAX_RECORD, OVERHEAD, Opened, Opener, Sealer,
};

const KEY: [u8; 32] = [7; 32];

/// What comes out is a beginning of what went in, and all of it just if nothing was changed.
pub(crate) fn check(input: &[u8]) {
    let [setting, piece, count, rest @ ..] = input else { return };
    let cipher = AeadCipher::ALL[usize::from(setting % 2)];
    let (lengths, changes) = rest.split_at(rest.len().min((*count).into()));
    let (plain, sent) = sealed(cipher, lengths);

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

/// The plaintext of as many records, and all of the direction.
fn sealed(cipher: AeadCipher, lengths: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut sealer = Sealer::new(cipher, &KEY);
    let (mut plain, mut wire) = (Vec::new(), Vec::new());
    for (number, length) in lengths.iter().enumerate() {
        let length = if *length == u8::MAX { MAX_PLAINTEXT } else { usize::from(*length) + 1 };
        let text = vec![number as u8; length];
        let mut record = vec![0; length + OVERHEAD];
        record[LENGTH..LENGTH + length].copy_from_slice(&text);
        sealer.seal(&mut record);
        plain.extend(text);
        wire.extend(record);
    }
    wire.extend(sealer.end());
    (plain, wire)
}

/// What comes out of a direction that arrives in pieces, and how it ends.
fn opened(cipher: AeadCipher, wire: &[u8], piece: usize) -> (Vec<u8>, Result<(), Error>) {
    let mut opener = Opener::new(cipher, &KEY);
    let (mut plain, mut waiting) = (Vec::new(), Vec::new());
    for bytes in wire.chunks(piece) {
        waiting.extend_from_slice(bytes);
        loop {
            match opener.open(&mut waiting) {
                Ok(Opened::Incomplete { needed }) => {
                    assert!(needed > 0 && waiting.len() + needed <= MAX_RECORD, "a record is bounded");
                    break;
                }
                Ok(Opened::Data { plaintext, consumed }) => {
                    plain.extend_from_slice(&waiting[plaintext]);
                    waiting.drain(..consumed);
                }
                Ok(Opened::End { consumed }) => {
                    waiting.drain(..consumed);
                    if waiting.is_empty() {
                        break;
                    }
                }
                Err(error) => return (plain, Err(error)),
            }
        }
    }
    (plain, opener.finish())
}
