//! The negotiator's events: one for each connection of another process whose handshake is complete.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use tokio::io::unix::AsyncFd;

use crate::bindings::plait_outcome_event;
use crate::socket::watch_readable;

/// Reads the negotiator's ring buffer.
pub(super) struct OutcomeEvents {
    ring: RingBuffer<'static>,
    received: Arc<Mutex<Vec<plait_outcome_event>>>,
    readable: AsyncFd<OwnedFd>,
}

impl OutcomeEvents {
    pub(super) fn open(map: &MapHandle) -> io::Result<OutcomeEvents> {
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
        Ok(OutcomeEvents { ring, received, readable })
    }

    /// Waits until there may be events.
    pub(super) async fn ready(&self) -> io::Result<()> {
        self.readable.readable().await?.clear_ready();
        Ok(())
    }

    /// The events since the last call.
    pub(super) fn take(&self) -> io::Result<Vec<plait_outcome_event>> {
        self.ring.consume().map_err(io::Error::other)?;
        Ok(std::mem::take(&mut *self.received.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The local and the remote address of an event's connection.
pub(super) fn addresses(event: &plait_outcome_event) -> (SocketAddr, SocketAddr) {
    let address = |words: [u32; 4], port| {
        let ip = match i32::from(event.family) {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::from(words[0].to_ne_bytes())),
            _ => Ipv6Addr::from(bytemuck::cast::<_, [u8; 16]>(words)).to_canonical(),
        };
        SocketAddr::new(ip, port)
    };
    (address(event.local, event.local_port), address(event.remote, event.remote_port))
}
