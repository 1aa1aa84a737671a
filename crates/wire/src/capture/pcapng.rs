//! Reader of pcapng files.

use std::io::Read;

use super::clock::Clock;
use super::format::{Format, Kind, recognise};
use super::peeked::Peeked;
use super::window::Window;
use super::{ByteOrder, CaptureError, MAX_RECORD_LEN, Record, Timestamp};
use crate::error::ParseError;
use crate::link::LinkType;

/// Block types (section 11.1 of the draft).
mod block {
    pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
    /// Obsolete: a 16-bit interface number and a drop count in place of the enhanced block's 32-bit interface number.
    pub(super) const PACKET: u32 = 2;
    pub(super) const SIMPLE_PACKET: u32 = 3;
    pub(super) const ENHANCED_PACKET: u32 = 6;
}

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Type and length at the start of a block, and the length again at its end.
const MIN_BLOCK_LEN: usize = 12;
const TRAILER_LEN: usize = 4;
const PACKET_HEADER_LEN: usize = 28;
const SIMPLE_PACKET_HEADER_LEN: usize = 12;

/// Maximum length of a block held in memory: the longest record, and the same length for its options.
const MAX_BLOCK_LEN: usize = 2 * MAX_RECORD_LEN as usize;

/// Maximum number of interfaces in a section, to bound memory: more than any tool writes.
const MAX_INTERFACES: usize = 1 << 16;

/// Reads the packets of a pcapng file (<https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html>) from any
/// input, which need not be buffered.
///
/// Sections may differ in byte order. Enhanced, simple and obsolete packet blocks yield records with the link type and
/// the clock of their interface; all other blocks are skipped, whatever their length. A time before 1970 or after 2554
/// becomes the nearest that a [`Timestamp`] can represent. A simple packet has no time; it gets that of the previous
/// record, or 0 if there is none.
///
/// After an error the reader is at its end: the next call returns `Ok(None)`.
#[derive(Debug)]
pub struct PcapngReader<R> {
    blocks: Blocks<R>,
    /// The packet whose block is at the start of the window, which then contains all of it.
    peeked: Peeked<PacketBlock>,
}

#[derive(Debug)]
struct Blocks<R> {
    window: Window<R>,
    byte_order: ByteOrder,
    /// The interfaces of the section, by number.
    interfaces: Vec<Interface>,
    /// When the last record was captured.
    time: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct PacketBlock {
    block_len: usize,
    data_start: usize,
    captured_len: usize,
    wire_len: u32,
    time: Timestamp,
    interface: u32,
    link_type: LinkType,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: LinkType,
    /// `u32::MAX` if the file sets no limit.
    snap_len: u32,
    clock: Clock,
}

impl<R: Read> PcapngReader<R> {
    /// Reads the first section's header.
    ///
    /// # Errors
    /// The input is empty, fails, or is not a pcapng file.
    pub fn new(input: R) -> Result<Self, CaptureError> {
        let mut window = Window::new(input);
        window.fill(MIN_BLOCK_LEN)?;
        match recognise(window.unread()) {
            Ok(Kind::Capture(Format::Pcapng)) => {}
            Ok(kind) => {
                return Err(CaptureError::Unsupported {
                    expected: "a pcapng file that is not compressed",
                    found: kind.name(),
                    hint: "`editcap -F pcapng IN OUT` converts it",
                });
            }
            Err(error) => return Err(error),
        }
        let (byte_order, interfaces, time) = (ByteOrder::Little, Vec::new(), Timestamp(0));
        let mut blocks = Blocks { window, byte_order, interfaces, time };
        blocks.section_header()?;
        Ok(Self { blocks, peeked: Peeked::Unknown })
    }

    /// The time stamp of the record that [`next_record`](Self::next_record) will return.
    ///
    /// # Errors
    /// As for [`next_record`](Self::next_record).
    #[inline]
    pub fn peek_time(&mut self) -> Result<Option<Timestamp>, CaptureError> {
        let packet = self.peeked.peek(|| self.blocks.load_packet())?;
        Ok(packet.map(|packet| packet.time))
    }

    /// The next record, or `None` at the end of the file.
    ///
    /// # Errors
    /// The input fails, ends within a block, or a block is corrupt.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        let Some(packet) = self.peeked.next(|| self.blocks.load_packet())? else {
            return Ok(None);
        };
        let PacketBlock { block_len, data_start, captured_len, wire_len, time, interface, link_type } =
            packet;
        let data = &self.blocks.window.take(block_len)[data_start..data_start + captured_len];
        Ok(Some(Record { time, interface, link_type, wire_len, data }))
    }
}

impl<R: Read> Blocks<R> {
    /// Loads the whole block of the next packet into the window.
    #[inline]
    fn load_packet(&mut self) -> Result<Option<PacketBlock>, CaptureError> {
        loop {
            if self.window.fill(MIN_BLOCK_LEN)? == 0 {
                return Ok(None);
            }
            match self.word(0)? {
                block::ENHANCED_PACKET => return self.packet(|word, _| word).map(Some),
                block::PACKET => return self.packet(|_, half| half.into()).map(Some),
                block::SIMPLE_PACKET => return self.simple_packet().map(Some),
                block::SECTION_HEADER => self.section_header()?,
                block::INTERFACE_DESCRIPTION => self.interface_description()?,
                _ => self.skip_block()?,
            }
        }
    }

    /// Parses an enhanced or obsolete packet block. They differ in the width of the interface number: `interface`
    /// chooses between a word and its first half.
    #[inline]
    fn packet(&mut self, interface: impl Fn(u32, u16) -> u32) -> Result<PacketBlock, CaptureError> {
        let block_len = self.load_block("packet block", PACKET_HEADER_LEN + TRAILER_LEN)?;
        let (words, _) = self.window.unread()[..PACKET_HEADER_LEN].as_chunks::<4>();
        let word = |index: usize| self.byte_order.u32(words[index]);
        let half = self.byte_order.u16([words[2][0], words[2][1]]);
        let interface = interface(word(2), half);
        let Interface { link_type, clock, .. } = self.interface(interface)?;
        let time = clock.timestamp(u64::from(word(3)) << 32 | u64::from(word(4)));
        let captured_len = word(5);
        // Some writers set the original length to 0.
        let wire_len = word(6).max(captured_len);
        let captured_len = self.captured_len(captured_len, block_len - PACKET_HEADER_LEN - TRAILER_LEN)?;
        self.time = time;
        let data_start = PACKET_HEADER_LEN;
        Ok(PacketBlock { block_len, data_start, captured_len, wire_len, time, interface, link_type })
    }

    fn simple_packet(&mut self) -> Result<PacketBlock, CaptureError> {
        let block_len = self.load_block("simple packet block", SIMPLE_PACKET_HEADER_LEN + TRAILER_LEN)?;
        let wire_len = self.word(8)?;
        let Interface { link_type, snap_len, .. } = self.interface(0)?;
        let room = block_len - SIMPLE_PACKET_HEADER_LEN - TRAILER_LEN;
        let captured_len = self.captured_len(wire_len.min(snap_len), room)?;
        let (data_start, time, interface) = (SIMPLE_PACKET_HEADER_LEN, self.time, 0);
        Ok(PacketBlock { block_len, data_start, captured_len, wire_len, time, interface, link_type })
    }

    fn section_header(&mut self) -> Result<(), CaptureError> {
        // The byte order of the length in front of it is known only now.
        self.byte_order = match self.at(8)? {
            magic if u32::from_le_bytes(magic) == BYTE_ORDER_MAGIC => ByteOrder::Little,
            magic if u32::from_be_bytes(magic) == BYTE_ORDER_MAGIC => ByteOrder::Big,
            magic => {
                return Err(self.corrupt(ParseError::Value {
                    what: "byte-order magic of a section",
                    expected: "0x1a2b3c4d in either order",
                    got: u32::from_be_bytes(magic).into(),
                }));
            }
        };
        // Byte-order magic, version, and section length, which is not needed.
        let len = self.load_block("section header", MIN_BLOCK_LEN + 16)?;
        let [v0, v1, ..] = self.at(12)?;
        let version = self.byte_order.u16([v0, v1]);
        if version != 1 {
            return Err(CaptureError::Version { format: Format::Pcapng, expected: 1, got: version });
        }
        self.interfaces.clear();
        self.window.take(len);
        Ok(())
    }

    fn interface_description(&mut self) -> Result<(), CaptureError> {
        const HEADER_LEN: usize = 16;
        let len = self.load_block("interface description", HEADER_LEN + TRAILER_LEN)?;
        if self.interfaces.len() == MAX_INTERFACES {
            return Err(self.corrupt(ParseError::Value {
                what: "interfaces of a section",
                expected: "at most 65536",
                got: MAX_INTERFACES as u64 + 1,
            }));
        }
        let [n0, n1, ..] = self.at(8)?;
        let number = self.byte_order.u16([n0, n1]);
        let options = &self.window.unread()[HEADER_LEN..len - TRAILER_LEN];
        let interface = Interface {
            link_type: LinkType::from_number(number).unwrap_or(LinkType::Other(number)),
            snap_len: match self.word(12)? {
                0 => u32::MAX,
                limit => limit,
            },
            clock: Clock::parse(options, self.byte_order).map_err(|reason| self.corrupt(reason))?,
        };
        self.interfaces.push(interface);
        self.window.take(len);
        Ok(())
    }

    /// Skips a block without loading it.
    fn skip_block(&mut self) -> Result<(), CaptureError> {
        let len = self.block_len("block", MIN_BLOCK_LEN)?;
        let offset = self.window.offset();
        let mut body = len - TRAILER_LEN;
        while body > 0 {
            let available = self.window.fill(1)?.min(body);
            if available == 0 {
                break;
            }
            self.window.take(available);
            body -= available;
        }
        if self.window.fill(TRAILER_LEN)? < TRAILER_LEN {
            let got = len - TRAILER_LEN - body + self.window.unread().len();
            return Err(CaptureError::Truncated { offset, expected: len, got });
        }
        let trailer = self.word(0)?;
        check_trailer(trailer, len).map_err(|reason| CaptureError::Block { offset, reason })?;
        self.window.take(TRAILER_LEN);
        Ok(())
    }

    /// Loads the whole block at the start of the window, and returns its length: `min` or more.
    #[inline]
    fn load_block(&mut self, what: &'static str, min: usize) -> Result<usize, CaptureError> {
        let len = self.block_len(what, min)?;
        if len > MAX_BLOCK_LEN {
            return Err(self.corrupt(ParseError::Length { what, expected: "at most 2097152", got: len }));
        }
        if self.window.fill(len)? < len {
            return Err(self.window.truncated(len));
        }
        let trailer = self.word(len - TRAILER_LEN)?;
        check_trailer(trailer, len).map_err(|reason| self.corrupt(reason))?;
        Ok(len)
    }

    /// The length of the block at the start of the window: `min` or more, and a multiple of 4.
    #[inline]
    fn block_len(&self, what: &'static str, min: usize) -> Result<usize, CaptureError> {
        let len = self.word(4)? as usize;
        if len < min {
            return Err(self.corrupt(ParseError::Truncated { what, expected: min, got: len }));
        }
        if !len.is_multiple_of(4) {
            return Err(self.corrupt(ParseError::Length { what, expected: "a multiple of 4", got: len }));
        }
        Ok(len)
    }

    /// Checks that a captured length fits into a block with room for `room` bytes.
    #[inline]
    fn captured_len(&self, len: u32, room: usize) -> Result<usize, CaptureError> {
        if len > MAX_RECORD_LEN {
            return Err(CaptureError::RecordTooLong { offset: self.window.offset(), got: len });
        }
        let len = len as usize;
        if len > room {
            let (what, expected) = ("captured packet", "at most what its block holds");
            return Err(self.corrupt(ParseError::Length { what, expected, got: len }));
        }
        Ok(len)
    }

    #[inline]
    fn interface(&self, number: u32) -> Result<Interface, CaptureError> {
        self.interfaces.get(number as usize).copied().ok_or_else(|| {
            self.corrupt(ParseError::Value {
                what: "interface number",
                expected: "one that the section described before",
                got: number.into(),
            })
        })
    }

    /// The 32-bit field at this offset in the window.
    #[inline]
    fn word(&self, index: usize) -> Result<u32, CaptureError> {
        self.at(index).map(|bytes| self.byte_order.u32(bytes))
    }

    #[inline]
    fn at(&self, index: usize) -> Result<[u8; 4], CaptureError> {
        let bytes = self.window.unread().get(index..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or_else(|| self.window.truncated(MIN_BLOCK_LEN.max(index + 4)))
    }

    #[cold]
    fn corrupt(&self, reason: ParseError) -> CaptureError {
        CaptureError::Block { offset: self.window.offset(), reason }
    }
}

#[inline]
fn check_trailer(trailer: u32, len: usize) -> Result<(), ParseError> {
    if trailer as usize != len {
        let (what, expected) = ("length at the block's end", "that at its start");
        return Err(ParseError::Length { what, expected, got: trailer as usize });
    }
    Ok(())
}
