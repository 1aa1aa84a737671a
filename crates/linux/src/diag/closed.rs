//! The final statistics of each subflow of a network namespace, from a BPF program that runs when one is closed.
//!
//! Requires root and a kernel of version 5.12 or later with type information (BTF). The program reads only sockets that
//! are being closed, and is detached when its [`ClosedSubflows`] is dropped.
//!
//! `unsafe` here only asserts that the program's record is plain numbers.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use crate::bindings::plait_closed_subflow;
use crate::bytes::{u64_at, unmapped};
use crate::mptcp::Token;
use crate::netns::NetNs;
use crate::skeleton::closed_subflows::ClosedSubflowsSkelBuilder;
use crate::tcp_info::{State, TcpInfo};

/// The attached program.
#[derive(Debug)]
pub(super) struct ClosedSubflows {
    closed: MapHandle,
    lost: MapHandle,
    _link: Link,
}

/// A closed subflow.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedSubflow(plait_closed_subflow);

impl ClosedSubflows {
    /// Attaches the program for the network namespace of the calling thread.
    pub(super) fn start() -> io::Result<ClosedSubflows> {
        let inode = NetNs::current()?.identity()?.inode;
        let inode = u32::try_from(inode).map_err(|_| io::Error::other("the inode exceeds 32 bits"))?;
        let start = || {
            let mut storage = MaybeUninit::uninit();
            let mut program = ClosedSubflowsSkelBuilder::default().open(&mut storage)?;
            if let Some(constants) = &mut program.maps.rodata_data {
                constants.namespace_inode = inode;
            }
            let program = program.load()?;
            Ok(ClosedSubflows {
                closed: MapHandle::try_from(&program.maps.closed)?,
                lost: MapHandle::try_from(&program.maps.lost)?,
                _link: program.progs.on_state_change.attach()?,
            })
        };
        // Users other than root cannot attach it, which libbpf would report on stderr.
        let printing = libbpf_rs::set_print(None);
        let started = start();
        libbpf_rs::set_print(printing);
        started.map_err(|error: libbpf_rs::Error| io::Error::other(error.to_string()))
    }

    /// Takes the next closed subflow from the queue.
    pub(super) fn next(&self) -> Option<ClosedSubflow> {
        let record = self.closed.lookup_and_delete(&[]).ok()??;
        bytemuck::try_pod_read_unaligned(&record).ok().map(ClosedSubflow)
    }

    /// The number of records lost because the queue was full.
    pub(super) fn lost(&self) -> u64 {
        let count = self.lost.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        count.and_then(|bytes| u64_at(&bytes, 0)).unwrap_or(0)
    }
}

impl ClosedSubflow {
    /// As [`super::Subflow::id`].
    pub(super) fn id(&self) -> u64 {
        self.0.cookie
    }

    /// The token of its connection.
    pub(super) fn token(&self) -> Token {
        Token(self.0.token)
    }

    /// Whether it was created by MP_JOIN.
    pub(super) fn joined(&self) -> bool {
        self.0.joined != 0
    }

    /// Its local and its remote address.
    pub(super) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let address = |bytes: [u8; 16], port| {
            let [a, b, c, d, ..] = bytes;
            let v4 = i32::from(self.0.family) == libc::AF_INET;
            let ip = if v4 { IpAddr::from([a, b, c, d]) } else { IpAddr::from(bytes) };
            unmapped(SocketAddr::new(ip, port))
        };
        (address(self.0.local_address, self.0.local_port), address(self.0.remote_address, self.0.remote_port))
    }

    /// Its final statistics; values that the program does not report are taken from `before`.
    pub(super) fn statistics(&self, before: Option<TcpInfo>) -> TcpInfo {
        let record = &self.0;
        let reported = TcpInfo {
            state: State::Closed,
            rtt_us: record.rtt_us,
            rtt_variance_us: record.rtt_variance_us,
            cwnd: record.cwnd,
            mss: record.mss,
            retransmissions: record.retransmissions,
            bytes_retransmitted: Some(record.bytes_retransmitted),
            bytes_sent: Some(record.bytes_sent),
            bytes_acked: record.bytes_acked,
            bytes_received: record.bytes_received,
            segments_sent: Some(record.segments_sent),
            segments_received: Some(record.segments_received),
            min_rtt_us: None,
            rto_us: 0,
            ssthresh: None,
            peer_window: None,
            unacked: 0,
            lost: 0,
            bytes_not_sent: None,
            delivery_rate: None,
            pacing_rate: None,
            busy_us: None,
            window_limited_us: None,
            buffer_limited_us: None,
            unanswered_probes: 0,
            backoff: 0,
            delivered: None,
            last_ack_ms: 0,
            window_scales: None,
        };
        let Some(before) = before else { return reported };
        TcpInfo {
            min_rtt_us: before.min_rtt_us,
            rto_us: before.rto_us,
            ssthresh: before.ssthresh,
            peer_window: before.peer_window,
            delivery_rate: before.delivery_rate,
            pacing_rate: before.pacing_rate,
            busy_us: before.busy_us,
            window_limited_us: before.window_limited_us,
            buffer_limited_us: before.buffer_limited_us,
            ..reported
        }
    }
}

// SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
unsafe impl Zeroable for plait_closed_subflow {}
// SAFETY: as above.
unsafe impl Pod for plait_closed_subflow {}
