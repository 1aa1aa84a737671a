//! The input is a capture file of any format, plain or compressed.

use std::io::{self, Read};

use plait_wire::capture::{CaptureReader, MAX_RECORD_LEN, Timestamp};

/// How much of a file is looked at; a small one can unpack to very many records.
const MAX_RECORDS: usize = 10_000;

/// The file is read to its end or its damage, records are within their bounds, and all is the same when the input
/// comes in small pieces.
pub(crate) fn check(input: &[u8]) {
    let (whole, pieces) = (read(input), read(Pieces(input)));
    let (short, long) =
        if whole.records.len() < pieces.records.len() { (whole, pieces) } else { (pieces, whole) };
    // How much is unpacked before the place where a compressed form is damaged depends on how it comes.
    let both_cut = short.end.is_err() && (long.end.is_err() || long.records.len() == MAX_RECORDS);
    let agree = !short.plain && !long.plain && both_cut && long.records.starts_with(&short.records);
    assert!(agree || short == long, "what is read depends on how it comes");
}

/// Times, interfaces, lengths and sums of the records, and how the reading ended.
#[derive(PartialEq)]
struct Account {
    /// The file starts as a capture that is not compressed.
    plain: bool,
    records: Vec<(Timestamp, u32, u32, usize, u64)>,
    end: Result<(), String>,
}

fn read(input: impl Read) -> Account {
    let mut account = Account { plain: false, records: Vec::new(), end: Ok(()) };
    let mut reader = match CaptureReader::new(input) {
        Ok(reader) => reader,
        Err(error) => return Account { end: Err(error.to_string()), ..account },
    };
    account.plain = reader.compression().is_none();
    while account.records.len() < MAX_RECORDS {
        let expected = match reader.peek_time() {
            Ok(time) => time,
            Err(error) => {
                account.end = Err(error.to_string());
                assert!(matches!(reader.next_record(), Ok(None)), "an error is the end");
                break;
            }
        };
        let record = reader.next_record().expect("a record that was peeked at is whole");
        assert_eq!(record.map(|record| record.time), expected);
        let Some(record) = record else { break };
        assert!(record.data.len() <= record.wire_len.min(MAX_RECORD_LEN) as usize);
        let _ = record.segment();
        let sum =
            record.data.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
        account.records.push((record.time, record.interface, record.wire_len, record.data.len(), sum));
    }
    account
}

/// Gives at most 7 bytes at a time.
struct Pieces<'a>(&'a [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(7);
        self.0.read(&mut buffer[..len])
    }
}
