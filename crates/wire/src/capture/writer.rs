//! Writer of classic pcap files.

use std::io::{self, Write};

use super::{PcapHeader, Timestamp};

/// Writes a pcap file. The output should be buffered; the caller flushes it.
#[derive(Debug)]
pub struct PcapWriter<W> {
    output: W,
    header: PcapHeader,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    ///
    /// # Errors
    /// The output fails.
    pub fn new(mut output: W, header: PcapHeader) -> io::Result<Self> {
        let word = |value| header.byte_order.bytes(value);
        output.write_all(&word(header.resolution.magic()))?;
        // Version 2.4, as two 16-bit fields in the file's order.
        output.write_all(&match header.byte_order {
            super::ByteOrder::Little => [2, 0, 4, 0],
            super::ByteOrder::Big => [0, 2, 0, 4],
        })?;
        // Time zone and accuracy, which no tool uses.
        output.write_all(&[0; 8])?;
        output.write_all(&word(header.snap_len))?;
        output.write_all(&word(header.link_type.number().into()))?;
        Ok(Self { output, header })
    }

    /// Writes a frame, truncated to the snap length.
    ///
    /// # Errors
    /// The output fails, or the frame or time does not fit into its 32-bit field ([`io::ErrorKind::InvalidInput`]).
    pub fn write(&mut self, time: Timestamp, frame: &[u8]) -> io::Result<()> {
        let invalid =
            |_| io::Error::new(io::ErrorKind::InvalidInput, "pcap has 32 bits for lengths and seconds");
        let wire_len = u32::try_from(frame.len()).map_err(invalid)?;
        let seconds = u32::try_from(time.0 / 1_000_000_000).map_err(invalid)?;
        // Below 10^9.
        let fraction = (time.0 % 1_000_000_000 / self.header.resolution.nanoseconds()) as u32;
        let captured_len = wire_len.min(self.header.snap_len);
        for field in [seconds, fraction, captured_len, wire_len] {
            self.output.write_all(&self.header.byte_order.bytes(field))?;
        }
        self.output.write_all(&frame[..captured_len as usize])
    }

    /// The output.
    pub fn into_inner(self) -> W {
        self.output
    }
}
