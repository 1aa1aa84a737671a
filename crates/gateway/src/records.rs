//! The way of an application's bytes in mode `sealed`: as [records](plait_proto::codec::records), which the other end opens.
//!
//! As in [`crate::relay`], nothing is read that cannot be written. A record is written on only when all of it has come and
//! was found genuine; the end of a direction is a record too, so that no end of a TCP stream can pass for it.

use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};

use plait_proto::codec::records::{LENGTH, MAX_RECORD, OVERHEAD, Opened, Opener, Sealer};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::relay::{Buffer, PumpFailure, end_of_direction, write_all};

/// From the application to the network.
pub(crate) async fn seal(
    from: &TcpStream,
    to: &TcpStream,
    sealer: &mut Sealer,
    count: &AtomicU64,
    first: &Notify,
) -> Result<(), PumpFailure> {
    loop {
        from.readable().await.map_err(PumpFailure::Reading)?;
        let mut buffer = Buffer::take();
        let sealed = fill(from, &mut buffer.bytes, sealer).map_err(PumpFailure::Reading)?;
        write_all(to, &buffer.bytes[..sealed.length]).await.map_err(PumpFailure::Writing)?;
        if sealed.plaintext > 0 && count.fetch_add(sealed.plaintext as u64, Ordering::Relaxed) == 0 {
            first.notify_one();
        }
        if sealed.ended {
            write_all(to, &sealer.end()).await.map_err(PumpFailure::Writing)?;
            return end_of_direction(to).map_err(PumpFailure::Writing);
        }
    }
}

/// Records at the front of a buffer.
struct Filled {
    length: usize,
    plaintext: usize,
    ended: bool,
}

/// Reads what there is, at once, to where the plaintexts of as many records stand as fit; then seals these.
fn fill(from: &TcpStream, bytes: &mut [u8], sealer: &mut Sealer) -> io::Result<Filled> {
    let mut rooms: Vec<_> = bytes
        .chunks_mut(MAX_RECORD)
        .filter(|record| record.len() > OVERHEAD)
        .map(|record| IoSliceMut::new(plaintext_of(record)))
        .collect();
    let plaintext = match from.try_read_vectored(&mut rooms) {
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

/// Where the plaintext stands in a record that takes all of these bytes.
fn plaintext_of(record: &mut [u8]) -> &mut [u8] {
    let length = record.len() - OVERHEAD;
    &mut record[LENGTH..LENGTH + length]
}

/// From the network to the application.
pub(crate) async fn open(
    from: &TcpStream,
    to: &TcpStream,
    opener: &mut Opener,
    count: &AtomicU64,
    first: &Notify,
) -> Result<(), PumpFailure> {
    // The beginning of a record of which the rest has not come yet.
    let mut begun: Option<(Buffer, usize)> = None;
    loop {
        from.readable().await.map_err(PumpFailure::Reading)?;
        let (mut buffer, mut filled) = begun.take().unwrap_or_else(|| (Buffer::take(), 0));
        match from.try_read(&mut buffer.bytes[filled..]) {
            Ok(0) => {
                opener.finish().map_err(PumpFailure::Record)?;
                return end_of_direction(to).map_err(PumpFailure::Writing);
            }
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(PumpFailure::Reading(error)),
        }
        let (mut at, mut plaintext) = (0, 0);
        while at < filled {
            match opener.open(&mut buffer.bytes[at..filled]).map_err(PumpFailure::Record)? {
                Opened::Incomplete { .. } => break,
                Opened::Data { plaintext: found, consumed } => {
                    let length = found.len();
                    // What is opened is written in one piece.
                    buffer.bytes.copy_within(at + found.start..at + found.end, plaintext);
                    plaintext += length;
                    at += consumed;
                }
                Opened::End { consumed } => at += consumed,
            }
        }
        write_all(to, &buffer.bytes[..plaintext]).await.map_err(PumpFailure::Writing)?;
        if plaintext > 0 && count.fetch_add(plaintext as u64, Ordering::Relaxed) == 0 {
            first.notify_one();
        }
        if at < filled {
            buffer.bytes.copy_within(at..filled, 0);
            begun = Some((buffer, filled - at));
        }
    }
}
