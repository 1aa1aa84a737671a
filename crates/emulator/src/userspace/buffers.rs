//! A pool of packet buffers.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::{Rc, Weak};

use super::pipe::Train;
use super::super_packet::{Headers, SuperPacket, VNET_HEADER, fill_checksum};

/// Buffers to read packets into. Small packets are copied to small buffers to save memory; for large packets, copying
/// would cost more than allocating another buffer.
pub(super) struct Buffers {
    reading: Rc<Buffer>,
    small: Rc<Pool>,
    large: Rc<Pool>,
}

/// A packet preceded by its `virtio_net_hdr`. Its buffer returns to the pool when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Packet {
    buffer: Rc<Buffer>,
    length: usize,
    whole: Option<SuperPacket>,
}

struct Buffer {
    bytes: Vec<u8>,
    pool: Weak<Pool>,
}

struct Pool {
    size: usize,
    max: usize,
    buffers: RefCell<Vec<Rc<Buffer>>>,
}

/// The largest super-packet, 64 KiB, with its `virtio_net_hdr` and an Ethernet header with VLAN tags.
const LARGE_SIZE: usize = 68 << 10;
const MAX_LARGE: usize = 256;
const MAX_SMALL: usize = 16_384;

impl Buffers {
    /// Creates a pool that copies packets of up to `small` bytes.
    pub(super) fn new(small: usize) -> Self {
        let large = Pool::new(LARGE_SIZE, MAX_LARGE);
        Self { reading: large.take(), small: Pool::new(small, MAX_SMALL), large }
    }

    /// The buffer to read the next packet into.
    pub(super) fn reading(&mut self) -> &mut [u8] {
        bytes_of(&mut self.reading)
    }

    /// The packet of this length that was just read.
    pub(super) fn packet(&mut self, length: usize) -> Packet {
        let read = &mut bytes_of(&mut self.reading)[..length];
        let whole = SuperPacket::parse(read);
        if whole.is_none() {
            fill_checksum(read);
        }
        let buffer = if length <= self.small.size {
            let mut small = self.small.take();
            bytes_of(&mut small)[..length].copy_from_slice(&self.reading.bytes[..length]);
            small
        } else {
            std::mem::replace(&mut self.reading, self.large.take())
        };
        Packet { buffer, length, whole }
    }
}

impl Packet {
    /// The frames that the packet represents.
    pub(super) fn train(&self) -> Train {
        match self.whole {
            Some(whole) => whole.train(),
            None => Train::single(self.length.saturating_sub(VNET_HEADER) as u32),
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.buffer.bytes[..self.length]
    }

    /// The headers and payload of a range of its frames; `None` if the range contains all frames.
    pub(super) fn part(&self, frames: &Range<u32>) -> Option<(Headers, &[u8])> {
        let whole = self.whole.filter(|whole| frames.len() < whole.train().frames as usize)?;
        let (headers, payload) = whole.part(self.as_bytes(), frames);
        Some((headers, &self.buffer.bytes[payload]))
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        if Rc::strong_count(&self.buffer) == 1
            && let Some(pool) = self.buffer.pool.upgrade()
        {
            pool.put_back(Rc::clone(&self.buffer));
        }
    }
}

impl Pool {
    fn new(size: usize, max: usize) -> Rc<Self> {
        Rc::new(Self { size, max, buffers: RefCell::default() })
    }

    fn take(self: &Rc<Self>) -> Rc<Buffer> {
        let spare = self.buffers.borrow_mut().pop();
        spare.unwrap_or_else(|| Rc::new(Buffer { bytes: vec![0; self.size], pool: Rc::downgrade(self) }))
    }

    fn put_back(&self, buffer: Rc<Buffer>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < self.max {
            buffers.push(buffer);
        }
    }
}

fn bytes_of(buffer: &mut Rc<Buffer>) -> &mut [u8] {
    let buffer =
        Rc::get_mut(buffer).expect("a spare is kept after its last packet is dropped, and used once");
    &mut buffer.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(buffers: &mut Buffers, first: u8, length: usize) -> Packet {
        buffers.reading()[..length].fill(first);
        buffers.packet(length)
    }

    #[test]
    fn packets_keep_their_bytes() {
        let mut buffers = Buffers::new(100);
        let packets = [100, 101, 60_000].map(|length| packet(&mut buffers, length as u8, length));
        packet(&mut buffers, 0xff, 60_000);
        for packet in packets {
            assert!(packet.as_bytes().iter().all(|byte| *byte == packet.length as u8));
        }
    }

    #[test]
    fn reuses_a_buffer_after_the_last_clone() {
        let mut buffers = Buffers::new(100);
        let first = packet(&mut buffers, 1, 50);
        let place = first.as_bytes().as_ptr();
        let clone = first.clone();
        drop(first);
        let second = packet(&mut buffers, 2, 50);
        assert_eq!(clone.as_bytes()[0], 1);
        assert_ne!(second.as_bytes().as_ptr(), place);
        drop(clone);
        assert_eq!(packet(&mut buffers, 3, 50).as_bytes().as_ptr(), place);
    }

    #[test]
    fn packets_may_outlive_the_pool() {
        let mut buffers = Buffers::new(100);
        let packet = packet(&mut buffers, 1, 50);
        drop(buffers);
        assert_eq!(packet.as_bytes()[0], 1);
    }
}
