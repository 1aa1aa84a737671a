//! A reader that detects format and compression.

use std::fmt;
use std::io::{self, BufReader, Chain, Cursor, ErrorKind, Read};

use super::format::{Compression, EXPECTED, Format, HEAD_LEN, Kind, recognise};
use super::{CaptureError, PcapReader, PcapngReader, Record, Timestamp};

/// The largest window of a zstd frame, as a power of two: 32 MiB, enough for all levels up to 20.
const ZSTD_WINDOW_LOG: u32 = 25;

/// The memory for decoding an xz block, in KiB: enough for the dictionary of 64 MiB of `xz -9`.
const XZ_MEMORY_KIB: u32 = 65 << 10;

/// Reads a capture of any supported format, plain or compressed, from any input: a file, a pipe, memory.
///
/// Format and compression are detected by the first bytes, never by a file name. Compressed input is decompressed as it
/// is read, in bounded memory; several gzip members, zstd frames or xz streams are read as one file. Truncated compressed input
/// yields everything before its end; if it is damaged, some of the data before the damage is lost too. After an error
/// the reader is at its end: the next call returns `Ok(None)`.
#[derive(Debug)]
pub struct CaptureReader<R: Read> {
    compression: Option<Compression>,
    records: Records<Unpacked<Whole<R>>>,
}

/// An input, preceded by the bytes that detection has consumed.
type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

#[derive(Debug)]
enum Records<R: Read> {
    Pcap(PcapReader<Whole<R>>),
    Pcapng(PcapngReader<Whole<R>>),
}

impl<R: Read> CaptureReader<R> {
    /// Detects the format and reads the header.
    ///
    /// # Errors
    /// The input is empty, fails, or is not a capture of a supported format; the error names what was found.
    pub fn new(input: R) -> Result<Self, CaptureError> {
        let (kind, input) = look(input)?;
        let (compression, unpacked) = match kind {
            Kind::Capture(_) => (None, Unpacked::Plain(input)),
            Kind::Compressed(Compression::Gzip) => {
                (Some(Compression::Gzip), Unpacked::Gzip(Box::new(flate2::read::MultiGzDecoder::new(input))))
            }
            Kind::Compressed(Compression::Zstd) => {
                let mut decoder = zstd::Decoder::new(input)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                (Some(Compression::Zstd), Unpacked::Zstd(Box::new(decoder)))
            }
            Kind::Compressed(Compression::Xz) => {
                let decoder = lzma_rust2::XzReader::new_mem_limit(BufReader::new(input), true, XZ_MEMORY_KIB);
                (Some(Compression::Xz), Unpacked::Xz(Box::new(decoder)))
            }
        };
        let (kind, unpacked) = look(unpacked)?;
        let records = match kind {
            Kind::Capture(Format::Pcap) => Records::Pcap(PcapReader::new(unpacked)?),
            Kind::Capture(Format::Pcapng) => Records::Pcapng(PcapngReader::new(unpacked)?),
            Kind::Compressed(_) => {
                return Err(CaptureError::Unsupported {
                    expected: EXPECTED,
                    found: "a file that is compressed twice",
                    hint: "unpack it once",
                });
            }
        };
        Ok(Self { compression, records })
    }

    /// The format of the capture.
    pub fn format(&self) -> Format {
        match self.records {
            Records::Pcap(_) => Format::Pcap,
            Records::Pcapng(_) => Format::Pcapng,
        }
    }

    /// How the input is compressed, if it is.
    pub fn compression(&self) -> Option<Compression> {
        self.compression
    }

    /// The time stamp of the record that [`next_record`](Self::next_record) will return.
    ///
    /// # Errors
    /// As for [`next_record`](Self::next_record).
    #[inline]
    pub fn peek_time(&mut self) -> Result<Option<Timestamp>, CaptureError> {
        match &mut self.records {
            Records::Pcap(reader) => reader.peek_time(),
            Records::Pcapng(reader) => reader.peek_time(),
        }
    }

    /// The next record, or `None` at the end of the capture.
    ///
    /// # Errors
    /// The input fails, is damaged or is truncated.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, CaptureError> {
        match &mut self.records {
            Records::Pcap(reader) => reader.next_record(),
            Records::Pcapng(reader) => reader.next_record(),
        }
    }
}

/// Detects the kind of an input, and returns the input from its start.
fn look<R: Read>(mut input: R) -> Result<(Kind, Whole<R>), CaptureError> {
    let mut head = Vec::with_capacity(HEAD_LEN);
    match input.by_ref().take(HEAD_LEN as u64).read_to_end(&mut head) {
        Ok(_) => {}
        Err(error) => {
            return Err(match error.kind() {
                ErrorKind::UnexpectedEof => {
                    CaptureError::Truncated { offset: 0, expected: HEAD_LEN, got: head.len() }
                }
                ErrorKind::InvalidData => CaptureError::Damaged { offset: head.len() as u64, reason: error },
                _ => error.into(),
            });
        }
    }
    Ok((recognise(&head)?, Cursor::new(head).chain(input)))
}

/// A decompressed input. Damaged compressed data is [`ErrorKind::InvalidData`], truncated data
/// [`ErrorKind::UnexpectedEof`]; other errors are those of the input.
enum Unpacked<R: Read> {
    Plain(R),
    Gzip(Box<flate2::read::MultiGzDecoder<R>>),
    Zstd(Box<zstd::Decoder<'static, BufReader<R>>>),
    Xz(Box<lzma_rust2::XzReader<BufReader<R>>>),
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Self::Plain(input) => return input.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer),
            Self::Xz(decoder) => decoder.read(buffer),
        };
        read.map_err(|error| match error.kind() {
            // The decoders' errors for invalid data; failed reads of the system have other kinds.
            ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::OutOfMemory | ErrorKind::Other => {
                io::Error::new(ErrorKind::InvalidData, error)
            }
            _ => error,
        })
    }
}

impl<R: Read> fmt::Debug for Unpacked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Gzip(_) => "Gzip",
            Self::Zstd(_) => "Zstd",
            Self::Xz(_) => "Xz",
        })
    }
}
