//! The directions of a relay in mode `sealed`: [records](plait_proto::codec::records) on the network's side.
//!
//! A record's data is passed on only when all of it has arrived and was authenticated. The end of a direction is a record
//! too, so that a truncated TCP stream cannot pass for it, and one whose DATA_FIN does not arrive has ended nevertheless: Linux (6.18) ignores
//! a DATA_FIN with data that arrived before, and all later ones, as when ADD_ADDR takes the place of an acknowledgment.
//!
//! The directions share their [key updates](Updates). Each changes the key of its own records only, between two of them; if
//! the receiving direction makes something to send, it wakes the sending one. Neither waits for the other.

use std::future::ready;
use std::io::{self, IoSliceMut};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_proto::Secret;
use plait_proto::codec::records::{
    Control, Copies, CopyPosition, LENGTH, MAX_RECORD, OVERHEAD, Opened, Opener, Padding, Sealer,
};
use plait_proto::sealed::{
    ControlRecord, KeyUpdate, KeyUpdateError, LateShares, UpdateLimits, UpdateSecrets,
};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tracing::debug;

use super::buffer::Buffer;
use super::copies::{SideRecords, next_copy, open_copy, waiting};
use super::progress::Progress;
use super::pump_error::PumpError;
use crate::side_connections::{Redundancy, SideConnections};
use crate::socket::{shutdown_write, write_all};

/// What a gateway chooses for the records of its connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordOptions {
    /// The padding of the records that it sends.
    pub(crate) padding: Padding,
    /// The time after which it renews the keys of connections that it opened.
    pub(crate) rekey_after: Duration,
    /// What it sends copies of on side connections, which it takes from peers, too.
    pub(crate) redundancy: Option<Redundancy>,
}

/// The records of a connection's two directions.
pub(crate) struct Records {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    pub(crate) updates: Arc<Updates>,
    pub(crate) side: Option<SideRecords>,
    /// Whether the first record of the other end is to be the outcome of an exit.
    pub(crate) expects_outcome: bool,
}

/// The key updates of a connection, shared by its directions.
pub(crate) struct Updates {
    /// Locked for a computation, never across a wait.
    state: Mutex<KeyUpdate>,
    to_send: Notify,
}

impl Updates {
    pub(crate) fn new(secrets: UpdateSecrets, interval: Duration) -> Updates {
        let limits = UpdateLimits { interval, ..UpdateLimits::default() };
        Updates { state: Mutex::new(KeyUpdate::new(secrets, limits, Instant::now())), to_send: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, KeyUpdate> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mixes the shares of a late witness into the next keys.
    pub(crate) fn mix(&self, shares: LateShares) {
        if self.state().mix(shares) {
            self.to_send.notify_one();
        }
    }

    /// Takes a control record; returns the key of the records after it, if it is the last under its key.
    fn receive(
        &self,
        control: Control,
        content: &[u8],
        progress: &Progress,
    ) -> Result<Option<Secret>, KeyUpdateError> {
        let mut state = self.state();
        let next_key = state.receive(Instant::now(), control, content)?;
        let completed = state.completed();
        if progress.key_updates.completed(completed) {
            debug!("key update {completed} of a connection");
        }
        Ok(next_key)
    }

    /// Wakes the sending direction if it has a record to send.
    fn received(&self, opener: &Opener) -> Result<(), KeyUpdateError> {
        if self.state().received(Instant::now(), opener.records_of_key())? {
            self.to_send.notify_one();
        }
        Ok(())
    }
}

/// From the application to the network.
pub(super) async fn seal(
    from: &TcpStream,
    to: &TcpStream,
    sealer: &mut Sealer,
    updates: &Updates,
    side: Option<&SideConnections>,
    progress: &Progress,
) -> Result<(), PumpError> {
    loop {
        tokio::select! {
            readable = from.readable() => readable.map_err(PumpError::Read)?,
            () = updates.to_send.notified() => {}
        }
        let mut buffer = Buffer::take();
        let position = sealer.position();
        let sealed = fill(from, &mut buffer.bytes, sealer).map_err(PumpError::Read)?;
        let records = &buffer.bytes[..sealed.length];
        match side.filter(|side| sealed.data > 0 && side.wants(sealed.data)) {
            Some(side) => write_with_copies(to, position, records, side).await,
            None => write_all(to, records).await,
        }
        .map_err(PumpError::Write)?;
        drop(buffer);
        progress.sent.add(sealed.data);
        progress.throttle(sealed.data).await;
        let control = if sealed.ended {
            updates.state().end()
        } else {
            let next = updates.state().next(Instant::now(), sealer.records_of_key());
            next.map_err(PumpError::KeyUpdate)?
        };
        if let Some(ControlRecord { control, content, next_key }) = control {
            write_all(to, &sealer.control(control, &content)).await.map_err(PumpError::Write)?;
            if let Some(key) = next_key {
                sealer.set_key(key.as_bytes());
            }
        }
        if sealed.ended {
            write_all(to, &sealer.end()).await.map_err(PumpError::Write)?;
            return shutdown_write(to).map_err(PumpError::Write);
        }
    }
}

/// Writes records, and sends copies of them, which wait for nothing.
async fn write_with_copies(
    to: &TcpStream,
    position: CopyPosition,
    records: &[u8],
    side: &SideConnections,
) -> io::Result<()> {
    let mut writing = pin!(write_all(to, records));
    let written = tokio::select! {
        biased;
        written = &mut writing => Some(written),
        () = ready(()) => None,
    };
    let spared = written.as_ref().and_then(|_| side.spared(to));
    Copies::new(position, records).for_each(|copy| side.send(&copy, spared));
    match written {
        Some(written) => written,
        None => writing.await,
    }
}

/// Records at the front of a buffer.
struct Filled {
    length: usize,
    data: usize,
    ended: bool,
}

/// Reads what is available into as many records as fit, with one system call, and seals these.
fn fill(from: &TcpStream, bytes: &mut [u8], sealer: &mut Sealer) -> io::Result<Filled> {
    let longest = sealer.capacity(MAX_RECORD) + OVERHEAD;
    let mut pieces: Vec<_> = bytes
        .chunks_mut(longest)
        .map(|record| (sealer.capacity(record.len()), record))
        .filter(|(capacity, _)| *capacity > 0)
        .map(|(capacity, record)| IoSliceMut::new(&mut record[LENGTH..LENGTH + capacity]))
        .collect();
    let data = match from.try_read_vectored(&mut pieces) {
        Ok(length) => length,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Ok(Filled { length: 0, data: 0, ended: false });
        }
        Err(error) => return Err(error),
    };
    let (mut length, mut left) = (0, data);
    for record in bytes.chunks_mut(longest) {
        if left == 0 {
            break;
        }
        let taken = left.min(sealer.capacity(record.len()));
        length += sealer.seal(record, taken);
        left -= taken;
    }
    Ok(Filled { length, data, ended: data == 0 })
}

/// From the network to the application.
pub(super) async fn open(
    from: &TcpStream,
    to: &TcpStream,
    opener: &mut Opener,
    updates: &Updates,
    mut side: Option<SideRecords>,
    progress: &Progress,
) -> Result<(), PumpError> {
    // The start of a record whose rest has not arrived yet.
    let mut partial: Option<(Buffer, usize)> = None;
    loop {
        progress.waits_for_rest.store(partial.is_some(), Ordering::Relaxed);
        tokio::select! {
            readable = from.readable() => readable.map_err(PumpError::Read)?,
            (copy, side) = next_copy(side.as_mut()) => {
                let data = open_copy(opener, copy, side);
                write_all(to, &data).await.map_err(PumpError::Write)?;
                progress.received.add(data.len());
                progress.throttle(data.len()).await;
                continue;
            }
        }
        progress.waits_for_rest.store(false, Ordering::Relaxed);
        let (mut buffer, mut filled) = partial.take().unwrap_or_else(|| (Buffer::take(), 0));
        match from.try_read(&mut buffer.bytes[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(PumpError::Read(error)),
        }
        let (mut at, mut data, mut ended) = (0, 0, false);
        while at < filled {
            let records = &mut buffer.bytes[at..filled];
            match opener.open(records).map_err(PumpError::Record)? {
                Opened::Incomplete { .. } => break,
                Opened::Data { content, consumed } => {
                    let length = content.len();
                    // All data is written in one piece.
                    buffer.bytes.copy_within(at + content.start..at + content.end, data);
                    data += length;
                    at += consumed;
                }
                Opened::Control { control, content, consumed } => {
                    let next_key = updates.receive(control, &records[content], progress);
                    if let Some(key) = next_key.map_err(PumpError::KeyUpdate)? {
                        opener.set_key(key.as_bytes());
                    }
                    at += consumed;
                }
                Opened::Delivered { consumed } => at += consumed,
                Opened::End { consumed } => {
                    updates.state().received_end();
                    ended = true;
                    at += consumed;
                }
            }
        }
        updates.received(opener).map_err(PumpError::KeyUpdate)?;
        write_all(to, &buffer.bytes[..data]).await.map_err(PumpError::Write)?;
        let waiting = waiting(opener, side.as_ref().map(|side| &*side.connections));
        write_all(to, &waiting).await.map_err(PumpError::Write)?;
        let data = data + waiting.len();
        progress.received.add(data);
        if ended {
            break;
        }
        if at < filled {
            buffer.bytes.copy_within(at..filled, 0);
            partial = Some((buffer, filled - at));
        } else {
            drop(buffer);
        }
        progress.throttle(data).await;
    }
    opener.finish().map_err(PumpError::Record)?;
    shutdown_write(to).map_err(PumpError::Write)
}
