//! The directions of a relay in mode `sealed`: [records](plait_proto::codec::records) on the network's side.
//!
//! A record's plaintext is passed on only when all of it has arrived and was authenticated. The end of a direction is a
//! record too, so that a truncated TCP stream cannot pass for it.

use std::io::{self, IoSliceMut};

use plait_proto::codec::records::{LENGTH, MAX_RECORD, OVERHEAD, Opened, Opener, Sealer};
use tokio::net::TcpStream;

use super::buffer::Buffer;
use super::progress::ByteCounter;
use super::pump::PumpError;
use crate::socket::{shutdown_write, write_all};

/// From the application to the network.
pub(super) async fn seal(
    from: &TcpStream,
    to: &TcpStream,
    sealer: &mut Sealer,
    counter: &ByteCounter,
) -> Result<(), PumpError> {
    loop {
        from.readable().await.map_err(PumpError::Read)?;
        let mut buffer = Buffer::take();
        let sealed = fill(from, &mut buffer.bytes, sealer).map_err(PumpError::Read)?;
        write_all(to, &buffer.bytes[..sealed.length]).await.map_err(PumpError::Write)?;
        counter.add(sealed.plaintext);
        if sealed.ended {
            write_all(to, &sealer.end()).await.map_err(PumpError::Write)?;
            return shutdown_write(to).map_err(PumpError::Write);
        }
    }
}

/// Records at the front of a buffer.
struct Filled {
    length: usize,
    plaintext: usize,
    ended: bool,
}

/// Reads what is available into the plaintexts of as many records as fit, with one system call, and seals these.
fn fill(from: &TcpStream, bytes: &mut [u8], sealer: &mut Sealer) -> io::Result<Filled> {
    let mut plaintexts: Vec<_> = bytes
        .chunks_mut(MAX_RECORD)
        .filter(|record| record.len() > OVERHEAD)
        .map(|record| IoSliceMut::new(plaintext_of(record)))
        .collect();
    let plaintext = match from.try_read_vectored(&mut plaintexts) {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Ok(Filled { length: 0, plaintext: 0, ended: false });
        }
        Err(error) => return Err(error),
    };
    let (mut length, mut left) = (0, plaintext);
    for record in bytes.chunks_mut(MAX_RECORD) {
        if left == 0 {
            break;
        }
        let taken = left.min(record.len() - OVERHEAD);
        sealer.seal(&mut record[..taken + OVERHEAD]);
        (length, left) = (length + taken + OVERHEAD, left - taken);
    }
    Ok(Filled { length, plaintext, ended: plaintext == 0 })
}

/// The plaintext's place in a record of this length.
fn plaintext_of(record: &mut [u8]) -> &mut [u8] {
    let length = record.len() - OVERHEAD;
    &mut record[LENGTH..LENGTH + length]
}

/// From the network to the application.
pub(super) async fn open(
    from: &TcpStream,
    to: &TcpStream,
    opener: &mut Opener,
    counter: &ByteCounter,
) -> Result<(), PumpError> {
    // The start of a record whose rest has not arrived yet.
    let mut partial: Option<(Buffer, usize)> = None;
    loop {
        from.readable().await.map_err(PumpError::Read)?;
        let (mut buffer, mut filled) = partial.take().unwrap_or_else(|| (Buffer::take(), 0));
        match from.try_read(&mut buffer.bytes[filled..]) {
            Ok(0) => {
                opener.finish().map_err(PumpError::Record)?;
                return shutdown_write(to).map_err(PumpError::Write);
            }
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(PumpError::Read(error)),
        }
        let (mut at, mut plaintext) = (0, 0);
        while at < filled {
            match opener.open(&mut buffer.bytes[at..filled]).map_err(PumpError::Record)? {
                Opened::Incomplete { .. } => break,
                Opened::Data { plaintext: found, consumed } => {
                    let length = found.len();
                    // All plaintexts are written in one piece.
                    buffer.bytes.copy_within(at + found.start..at + found.end, plaintext);
                    plaintext += length;
                    at += consumed;
                }
                Opened::End { consumed } => at += consumed,
            }
        }
        write_all(to, &buffer.bytes[..plaintext]).await.map_err(PumpError::Write)?;
        counter.add(plaintext);
        if at < filled {
            buffer.bytes.copy_within(at..filled, 0);
            partial = Some((buffer, filled - at));
        }
    }
}
