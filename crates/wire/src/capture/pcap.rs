//! Reader of classic pcap files.

use std::io::Read;

use super::format::{Format, recognise};
use super::peeked::Peeked;
use super::window::Window;
use super::{ByteOrder, CaptureError, MAX_RECORD_LEN, PcapHeader, Record, Resolution, Timestamp};
use crate::link::LinkType;

const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;

/// Reads the records of a pcap file from any input, which need not be buffered.
///
/// After an error the reader is at its end: the next call returns `Ok(None)`.
#[derive(Debug)]
pub struct PcapReader<R> {
    window: Window<R>,
    header: PcapHeader,
    /// The record at the start of the window, which then contains all of it.
    peeked: Peeked<RecordHeader>,
}

#[derive(Clone, Copy, Debug)]
struct RecordHeader {
    time: Timestamp,
    captured_len: usize,
    wire_len: u32,
}

impl<R: Read> PcapReader<R> {
    /// Reads the file header.
    ///
    /// # Errors
    /// The input is empty, fails, or is not a pcap file of a known link type.
    pub fn new(input: R) -> Result<Self, CaptureError> {
        let mut window = Window::new(input);
        let available = window.fill(FILE_HEADER_LEN)?;
        let Some((magic, _)) = window.unread().split_first_chunk() else {
            return Err(match available {
                0 => CaptureError::Empty,
                _ => window.truncated(FILE_HEADER_LEN),
            });
        };
        let (byte_order, resolution) =
            byte_order_and_resolution(*magic).ok_or_else(|| other_format(window.unread()))?;
        let Some((fields, _)) = window.unread().split_first_chunk::<FILE_HEADER_LEN>() else {
            return Err(window.truncated(FILE_HEADER_LEN));
        };
        let [_, _, _, _, v0, v1, _, _, _, _, _, _, _, _, _, _, snap @ .., l0, l1, l2, l3] = *fields;
        let version = byte_order.u16([v0, v1]);
        if version != 2 {
            return Err(CaptureError::Version { format: Format::Pcap, expected: 2, got: version });
        }
        // The upper half holds the length of a frame check sequence, which the IP length makes irrelevant.
        let number = (byte_order.u32([l0, l1, l2, l3]) & 0xffff) as u16;
        let link_type = LinkType::from_number(number).ok_or(CaptureError::LinkType(number))?;
        let header = PcapHeader { byte_order, resolution, snap_len: byte_order.u32(snap), link_type };
        window.take(FILE_HEADER_LEN);
        Ok(Self { window, header, peeked: Peeked::Unknown })
    }

    /// The file header.
    pub fn header(&self) -> PcapHeader {
        self.header
    }

    /// The time stamp of the record that [`next_record`](Self::next_record) will return.
    ///
    /// # Errors
    /// As for [`next_record`](Self::next_record).
    #[inline]
    pub fn peek_time(&mut self) -> Result<Option<Timestamp>, CaptureError> {
        let record = self.peeked.peek(|| load(&mut self.window, self.header))?;
        Ok(record.map(|record| record.time))
    }

    /// The next record, or `None` at the end of the file.
    ///
    /// # Errors
    /// The input fails, ends within a record, or a record has an impossible length.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        let Some(record) = self.peeked.next(|| load(&mut self.window, self.header))? else {
            return Ok(None);
        };
        let RecordHeader { time, captured_len, wire_len } = record;
        let data = &self.window.take(RECORD_HEADER_LEN + captured_len)[RECORD_HEADER_LEN..];
        Ok(Some(Record { time, interface: 0, link_type: self.header.link_type, wire_len, data }))
    }
}

/// Loads the whole next record into the window.
#[inline]
fn load<R: Read>(window: &mut Window<R>, header: PcapHeader) -> Result<Option<RecordHeader>, CaptureError> {
    if window.fill(RECORD_HEADER_LEN)? == 0 {
        return Ok(None);
    }
    let Some((fields, _)) = window.unread().split_first_chunk::<RECORD_HEADER_LEN>() else {
        return Err(window.truncated(RECORD_HEADER_LEN));
    };
    let (words, _) = fields.as_chunks::<4>();
    let word = |index: usize| header.byte_order.u32(words[index]);
    let captured_len = word(2);
    if captured_len > MAX_RECORD_LEN {
        return Err(CaptureError::RecordTooLong { offset: window.offset(), got: captured_len });
    }
    let fraction = u64::from(word(1)) * header.resolution.nanoseconds();
    let record = RecordHeader {
        time: Timestamp(u64::from(word(0)) * 1_000_000_000 + fraction),
        captured_len: captured_len as usize,
        // Some writers set the original length to 0.
        wire_len: word(3).max(captured_len),
    };
    let expected = RECORD_HEADER_LEN + record.captured_len;
    if window.fill(expected)? < expected {
        return Err(window.truncated(expected));
    }
    Ok(Some(record))
}

fn byte_order_and_resolution(magic: [u8; 4]) -> Option<(ByteOrder, Resolution)> {
    for byte_order in [ByteOrder::Little, ByteOrder::Big] {
        for resolution in [Resolution::Microseconds, Resolution::Nanoseconds] {
            if byte_order.u32(magic) == resolution.magic() {
                return Some((byte_order, resolution));
            }
        }
    }
    None
}

/// The error for a file that starts with `head`, which is not a pcap header.
fn other_format(head: &[u8]) -> CaptureError {
    match recognise(head) {
        Ok(kind) => CaptureError::Unsupported {
            expected: "a pcap file that is not compressed",
            found: kind.name(),
            hint: "`editcap -F pcap IN OUT` converts it",
        },
        Err(error) => error,
    }
}
