//! The options of a TCP header.

use super::Seq;
use crate::error::ParseError;
use crate::fields::Fields;
use crate::mptcp::{self, MptcpOption};

/// One option of a TCP header. The end-of-list option (kind 0) has no variant: it ends the iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption<'a> {
    /// No operation (kind 1, RFC 9293 3.1).
    NoOperation,
    /// Maximum segment size (kind 2, RFC 9293 3.2).
    MaxSegmentSize(u16),
    /// Window scale: the shift count (kind 3, RFC 7323 2).
    WindowScale(u8),
    /// Selective acknowledgement permitted (kind 4, RFC 2018 2).
    SackPermitted,
    /// Selective acknowledgement (kind 5, RFC 2018 3).
    Sack(SackBlocks),
    /// Timestamps (kind 8, RFC 7323 3).
    Timestamps {
        /// TSval: the sender's clock.
        value: u32,
        /// TSecr: the peer's clock, echoed.
        echo: u32,
    },
    /// Multipath TCP (kind 30, RFC 8684).
    Mptcp(MptcpOption<'a>),
    /// An experiment (kinds 253 and 254, RFC 6994).
    Experimental(Experimental<'a>),
    /// Any other kind, unparsed.
    Unknown(UnknownOption<'a>),
}

/// An option of an unknown kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownOption<'a> {
    kind: u8,
    data: &'a [u8],
}

impl<'a> UnknownOption<'a> {
    /// An option of this kind; `None` if [`TcpOption`] has a variant for the kind.
    pub fn new(kind: u8, data: &'a [u8]) -> Option<Self> {
        if matches!(kind, 0..=5 | 8 | mptcp::KIND | 253 | 254) { None } else { Some(Self { kind, data }) }
    }

    /// The option's kind.
    pub fn kind(self) -> u8 {
        self.kind
    }

    /// Its bytes after the length octet.
    pub fn data(self) -> &'a [u8] {
        self.data
    }
}

/// The blocks of a SACK option: one to four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SackBlock; 4],
    count: u8,
}

/// A contiguous range received out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// Its first sequence number.
    pub left: Seq,
    /// The sequence number after its last.
    pub right: Seq,
}

impl SackBlocks {
    /// An option of these blocks; `None` unless there are one to four.
    pub fn new(blocks: &[SackBlock]) -> Option<Self> {
        let count = u8::try_from(blocks.len()).ok().filter(|count| *count >= 1)?;
        let mut array = [SackBlock::default(); 4];
        array.get_mut(..blocks.len())?.copy_from_slice(blocks);
        Some(Self { blocks: array, count })
    }

    /// The blocks in the option's order.
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.count)]
    }

    fn parse(body: &[u8]) -> Result<Self, ParseError> {
        let (words, rest) = body.as_chunks::<8>();
        let mut blocks = [SackBlock::default(); 4];
        if !rest.is_empty() || words.is_empty() || words.len() > blocks.len() {
            return Err(wrong_length("SACK option", "10, 18, 26 or 34", body));
        }
        for (block, [a, b, c, d, e, f, g, h]) in blocks.iter_mut().zip(words) {
            block.left = Seq(u32::from_be_bytes([*a, *b, *c, *d]));
            block.right = Seq(u32::from_be_bytes([*e, *f, *g, *h]));
        }
        // At most four, as checked.
        Ok(Self { blocks, count: words.len() as u8 })
    }
}

/// An experimental option: its body starts with an experiment identifier (ExID) of 16 or 32 bits, which of the two
/// depends on the experiment (RFC 6994 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experimental<'a> {
    /// Which of the two kinds.
    pub kind: ExperimentalKind,
    /// The bytes after the length octet, ExID included.
    pub body: &'a [u8],
}

/// The two kinds reserved for experiments (RFC 4727 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExperimentalKind {
    /// RFC 3692-style experiment 1.
    Kind253 = 253,
    /// RFC 3692-style experiment 2.
    Kind254 = 254,
}

impl<'a> Experimental<'a> {
    /// The body read as a 32-bit ExID and what follows it.
    pub fn ex_id32(self) -> Option<(u32, &'a [u8])> {
        self.body.split_first_chunk().map(|(id, rest)| (u32::from_be_bytes(*id), rest))
    }
}

/// Iterates over the options of a header.
///
/// A malformed option is an error item. The iteration continues after it if its length octet is usable; a length octet
/// that is missing, below 2 or beyond the end of the options ends the iteration.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Options<'a> {
    /// The options in `bytes`, which extend from the end of the fixed header to the data offset.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<TcpOption<'a>, ParseError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, after_kind) = self.rest.split_first()?;
        match kind {
            0 => {
                self.rest = &[];
                return None;
            }
            1 => {
                self.rest = after_kind;
                return Some(Ok(TcpOption::NoOperation));
            }
            _ => {}
        }
        let option = self.rest;
        self.rest = &[];
        let Some(&length) = after_kind.first() else {
            return Some(Err(ParseError::Truncated { what: "TCP option", expected: 2, got: 1 }));
        };
        let length = usize::from(length);
        if length < 2 {
            return Some(Err(ParseError::Length { what: "TCP option", expected: "2 or more", got: length }));
        }
        let Some((option, rest)) = option.split_at_checked(length) else {
            let got = option.len();
            return Some(Err(ParseError::Truncated { what: "TCP option", expected: length, got }));
        };
        self.rest = rest;
        Some(TcpOption::parse(kind, &option[2..]))
    }
}

impl<'a> TcpOption<'a> {
    #[inline]
    fn parse(kind: u8, body: &'a [u8]) -> Result<Self, ParseError> {
        Ok(match kind {
            2 => {
                let bytes = body.try_into().map_err(|_| wrong_length("MSS option", "4", body))?;
                Self::MaxSegmentSize(u16::from_be_bytes(bytes))
            }
            3 => match body {
                [shift] => Self::WindowScale(*shift),
                _ => return Err(wrong_length("window scale option", "3", body)),
            },
            4 => match body {
                [] => Self::SackPermitted,
                _ => return Err(wrong_length("SACK permitted option", "2", body)),
            },
            5 => Self::Sack(SackBlocks::parse(body)?),
            8 => {
                if body.len() != 8 {
                    return Err(wrong_length("timestamps option", "10", body));
                }
                let mut fields = Fields::new("timestamps option", body);
                Self::Timestamps { value: fields.u32()?, echo: fields.u32()? }
            }
            mptcp::KIND => Self::Mptcp(MptcpOption::parse(body)?),
            253 => Self::Experimental(Experimental { kind: ExperimentalKind::Kind253, body }),
            254 => Self::Experimental(Experimental { kind: ExperimentalKind::Kind254, body }),
            _ => Self::Unknown(UnknownOption { kind, data: body }),
        })
    }

    /// Appends the option. The length octet of an option longer than 255 bytes is wrong; such an option exceeds the
    /// maximum header length, which is an error there.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let kind = match self {
            Self::NoOperation => {
                out.push(1);
                return;
            }
            Self::MaxSegmentSize(_) => 2,
            Self::WindowScale(_) => 3,
            Self::SackPermitted => 4,
            Self::Sack(_) => 5,
            Self::Timestamps { .. } => 8,
            Self::Mptcp(_) => mptcp::KIND,
            Self::Experimental(experimental) => experimental.kind as u8,
            Self::Unknown(unknown) => unknown.kind,
        };
        let start = out.len();
        out.extend_from_slice(&[kind, 0]);
        match self {
            Self::NoOperation | Self::SackPermitted => {}
            Self::MaxSegmentSize(size) => out.extend_from_slice(&size.to_be_bytes()),
            Self::WindowScale(shift) => out.push(*shift),
            Self::Sack(blocks) => {
                for block in blocks.as_slice() {
                    out.extend_from_slice(&block.left.0.to_be_bytes());
                    out.extend_from_slice(&block.right.0.to_be_bytes());
                }
            }
            Self::Timestamps { value, echo } => {
                out.extend_from_slice(&value.to_be_bytes());
                out.extend_from_slice(&echo.to_be_bytes());
            }
            Self::Mptcp(option) => option.emit(out),
            Self::Experimental(experimental) => out.extend_from_slice(experimental.body),
            Self::Unknown(unknown) => out.extend_from_slice(unknown.data),
        }
        out[start + 1] = (out.len() - start) as u8;
    }
}

fn wrong_length(what: &'static str, expected: &'static str, body: &[u8]) -> ParseError {
    ParseError::Length { what, expected, got: body.len() + 2 }
}
