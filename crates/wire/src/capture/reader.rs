use std::io::{ErrorKind, Read};

use super::{ByteOrder, CaptureError, MAX_RECORD_LEN, PcapHeader, Record, Resolution, Timestamp};
use crate::LinkType;

const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;

/// How much is asked of the input at once. The buffer grows beyond it only for a longer record.
const BUFFER_LEN: usize = 256 << 10;

/// Reads the records of a pcap file from any input, which needs no buffering of its own.
///
/// After an error the reader is at its end: the next call gives `Ok(None)`.
#[derive(Debug)]
pub struct PcapReader<R> {
    input: R,
    header: PcapHeader,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    start: usize,
    end: usize,
    /// Where `start` lies in the file.
    offset: u64,
    /// The record at `start`, where it is in the buffer as a whole.
    loaded: Option<RecordHeader>,
    finished: bool,
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
        // A guess until the magic number is read.
        let header = PcapHeader::new(LinkType::Ethernet);
        let buffer = vec![0; BUFFER_LEN];
        let mut reader =
            Self { input, header, buffer, start: 0, end: 0, offset: 0, loaded: None, finished: false };
        let available = reader.fill(FILE_HEADER_LEN)?;
        let unread = &reader.buffer[..reader.end];
        let Some((magic, _)) = unread.split_first_chunk() else {
            return Err(match available {
                0 => CaptureError::Empty,
                got => CaptureError::Truncated { offset: 0, expected: FILE_HEADER_LEN, got },
            });
        };
        let (byte_order, resolution) = byte_order_and_resolution(*magic)?;
        let Some((fields, _)) = unread.split_first_chunk::<FILE_HEADER_LEN>() else {
            return Err(CaptureError::Truncated { offset: 0, expected: FILE_HEADER_LEN, got: available });
        };
        let [_, _, _, _, v0, v1, _, _, _, _, _, _, _, _, _, _, snap @ .., l0, l1, l2, l3] = *fields;
        let version = match byte_order {
            ByteOrder::Little => u16::from_le_bytes([v0, v1]),
            ByteOrder::Big => u16::from_be_bytes([v0, v1]),
        };
        if version != 2 {
            return Err(CaptureError::Version { got: version });
        }
        // The upper half holds the length of a frame check sequence, which the IP length makes irrelevant.
        let number = (byte_order.u32([l0, l1, l2, l3]) & 0xffff) as u16;
        let link_type = LinkType::from_number(number).ok_or(CaptureError::LinkType(number))?;
        reader.header = PcapHeader { byte_order, resolution, snap_len: byte_order.u32(snap), link_type };
        reader.advance(FILE_HEADER_LEN);
        Ok(reader)
    }

    /// What the file header says.
    pub fn header(&self) -> PcapHeader {
        self.header
    }

    /// The time stamp of the record that [`next_record`](Self::next_record) will give.
    ///
    /// # Errors
    /// As for [`next_record`](Self::next_record).
    pub fn peek_time(&mut self) -> Result<Option<Timestamp>, CaptureError> {
        Ok(self.load()?.map(|record| record.time))
    }

    /// The next record, or `None` at the end of the file.
    ///
    /// # Errors
    /// The input fails, ends within a record, or a record has an impossible length.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        let Some(RecordHeader { time, captured_len, wire_len }) = self.load()? else {
            return Ok(None);
        };
        let data = self.start + RECORD_HEADER_LEN;
        self.loaded = None;
        self.advance(RECORD_HEADER_LEN + captured_len);
        let data = &self.buffer[data..data + captured_len];
        Ok(Some(Record { time, link_type: self.header.link_type, wire_len, data }))
    }

    /// Brings the next record into the buffer as a whole.
    #[inline]
    fn load(&mut self) -> Result<Option<RecordHeader>, CaptureError> {
        if self.loaded.is_none() && !self.finished {
            match self.try_load() {
                Ok(loaded) => {
                    self.loaded = loaded;
                    self.finished = loaded.is_none();
                }
                Err(error) => {
                    self.finished = true;
                    return Err(error);
                }
            }
        }
        Ok(self.loaded)
    }

    #[inline]
    fn try_load(&mut self) -> Result<Option<RecordHeader>, CaptureError> {
        if self.fill(RECORD_HEADER_LEN)? == 0 {
            return Ok(None);
        }
        let unread = &self.buffer[self.start..self.end];
        let Some((fields, _)) = unread.split_first_chunk::<RECORD_HEADER_LEN>() else {
            return Err(self.truncated(RECORD_HEADER_LEN));
        };
        let (words, _) = fields.as_chunks::<4>();
        let word = |index: usize| self.header.byte_order.u32(words[index]);
        let captured_len = word(2);
        if captured_len > MAX_RECORD_LEN {
            return Err(CaptureError::RecordTooLong { offset: self.offset, got: captured_len });
        }
        let fraction = u64::from(word(1)) * self.header.resolution.nanoseconds();
        let record = RecordHeader {
            time: Timestamp(u64::from(word(0)) * 1_000_000_000 + fraction),
            captured_len: captured_len as usize,
            // Some writers leave the original length 0.
            wire_len: word(3).max(captured_len),
        };
        let expected = RECORD_HEADER_LEN + record.captured_len;
        if self.fill(expected)? < expected {
            return Err(self.truncated(expected));
        }
        Ok(Some(record))
    }

    fn truncated(&self, expected: usize) -> CaptureError {
        CaptureError::Truncated { offset: self.offset, expected, got: self.end - self.start }
    }

    fn advance(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    /// Reads until `need` bytes are unread in the buffer, and says how many there are: fewer only at the end.
    #[inline]
    fn fill(&mut self, need: usize) -> Result<usize, CaptureError> {
        while self.end - self.start < need {
            if self.read_more(need)? == 0 {
                break;
            }
        }
        Ok(self.end - self.start)
    }

    #[cold]
    fn read_more(&mut self, need: usize) -> Result<usize, CaptureError> {
        if self.start + need > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if need > self.buffer.len() {
                self.buffer.resize(need, 0);
            }
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    // An input may claim more than it was asked for; believing that would panic later.
                    let read = read.min(self.buffer.len() - self.end);
                    self.end += read;
                    return Ok(read);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn byte_order_and_resolution(magic: [u8; 4]) -> Result<(ByteOrder, Resolution), CaptureError> {
    for byte_order in [ByteOrder::Little, ByteOrder::Big] {
        for resolution in [Resolution::Microseconds, Resolution::Nanoseconds] {
            if byte_order.u32(magic) == resolution.magic() {
                return Ok((byte_order, resolution));
            }
        }
    }
    let (format, hint) = match magic {
        [0x0a, 0x0d, 0x0d, 0x0a] => ("pcapng", "convert it with `editcap -F pcap IN OUT`"),
        [0x1f, 0x8b, ..] => ("a gzip file", "unpack it with `gunzip`"),
        [0x28, 0xb5, 0x2f, 0xfd] => ("a zstd file", "unpack it with `unzstd`"),
        [0x34, 0xcd, 0xb2, 0xa1] | [0xa1, 0xb2, 0xcd, 0x34] => {
            ("the modified pcap format of old Linux systems", "convert it with `editcap -F pcap IN OUT`")
        }
        got => return Err(CaptureError::NotACapture { got }),
    };
    Err(CaptureError::Unsupported { format, hint })
}
