//! Events that a BPF program writes to a ring buffer.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use tokio::io::unix::AsyncFd;

use crate::socket::watch_readable;

/// The events of a ring buffer.
pub(crate) struct RingEvents<E> {
    ring: RingBuffer<'static>,
    received: Arc<Mutex<Vec<E>>>,
    readable: AsyncFd<OwnedFd>,
}

impl<E: Pod + Send> RingEvents<E> {
    pub(crate) fn open(map: &MapHandle) -> io::Result<RingEvents<E>> {
        let received = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&received);
        let mut builder = RingBufferBuilder::new();
        let receive = move |bytes: &[u8]| {
            if let Ok(event) = bytemuck::try_pod_read_unaligned(bytes) {
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(event);
            }
            0
        };
        builder.add(map, receive).map_err(io::Error::other)?;
        let ring = builder.build().map_err(io::Error::other)?;
        // SAFETY: the ring has it open for as long as it lives, and it lives until the function ends.
        let descriptor = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
        let readable = watch_readable(descriptor)?;
        Ok(RingEvents { ring, received, readable })
    }

    /// Waits until there may be events.
    pub(crate) async fn ready(&mut self) -> io::Result<()> {
        self.readable.readable().await?.clear_ready();
        Ok(())
    }

    /// The events since the last call.
    pub(crate) fn take(&self) -> io::Result<Vec<E>> {
        self.ring.consume().map_err(io::Error::other)?;
        Ok(std::mem::take(&mut *self.received.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
