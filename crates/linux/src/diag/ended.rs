//! The last figures of each subflow of a network namespace, by a BPF program that runs when one is closed.
//!
//! It takes root and a kernel of version 5.12 or later with type information (BTF). The program looks at nothing but
//! sockets that are being closed, and is gone with its [`Ended`].
//!
//! `unsafe` here only asserts that the record the program writes is plain numbers.

use std::io;
use std::net::{IpAddr, SocketAddr};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{Link, Map, MapCore, MapFlags, Object, ObjectBuilder};

use crate::bindings::plait_ended;
use crate::bytes::{u64_at, unmapped};
use crate::mptcp::Token;
use crate::netns::NetNs;
use crate::tcp_info::{State, TcpInfo};

/// The running program.
#[derive(Debug)]
pub(super) struct Ended {
    object: Object,
    _link: Link,
}

/// The end of a subflow.
#[derive(Clone, Copy, Debug)]
pub(super) struct End(plait_ended);

impl Ended {
    /// Attaches the program for the network namespace of the calling thread.
    pub(super) fn start() -> io::Result<Ended> {
        let network = NetNs::current()?.identity()?.inode;
        let network = u32::try_from(network).map_err(|_| io::Error::other("the inode is too great"))?;
        let start = || {
            let mut opened = ObjectBuilder::default().open_memory(PROGRAM)?;
            let constants = opened.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
            let mut constants = constants.ok_or_else(|| io::Error::other("no constants"))?;
            constants.set_initial_value(&network.to_ne_bytes())?;
            let object = opened.load()?;
            let program = object.progs_mut().next().ok_or_else(|| io::Error::other("no program"))?;
            let link = program.attach()?;
            Ok(Ended { object, _link: link })
        };
        // That it cannot be attached is nothing to complain about on stderr, as the library does.
        let printing = libbpf_rs::set_print(None);
        let started = start();
        libbpf_rs::set_print(printing);
        started.map_err(|error: libbpf_rs::Error| io::Error::other(error.to_string()))
    }

    /// The next subflow that has ended, the earliest first.
    pub(super) fn next(&self) -> Option<End> {
        let record = self.map("ended")?.lookup_and_delete(&[]).ok()??;
        bytemuck::try_pod_read_unaligned(&record).ok().map(End)
    }

    /// How many ends were lost as more subflows ended than the queue holds.
    pub(super) fn lost(&self) -> u64 {
        let count = self.map("lost").and_then(|map| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok()?);
        count.and_then(|bytes| u64_at(&bytes, 0)).unwrap_or(0)
    }

    fn map(&self, name: &str) -> Option<Map<'_>> {
        self.object.maps().find(|map| map.name() == name)
    }
}

impl End {
    /// [`super::Subflow::id`]
    pub(super) fn id(&self) -> u64 {
        self.0.cookie
    }

    /// Its connection.
    pub(super) fn token(&self) -> Token {
        Token(self.0.token)
    }

    /// It was made by MP_JOIN.
    pub(super) fn joined(&self) -> bool {
        self.0.joined != 0
    }

    /// Its local and its remote address.
    pub(super) fn ends(&self) -> (SocketAddr, SocketAddr) {
        let address = |bytes: [u8; 16], port| {
            let [a, b, c, d, ..] = bytes;
            let v4 = i32::from(self.0.family) == libc::AF_INET;
            let ip = if v4 { IpAddr::from([a, b, c, d]) } else { IpAddr::from(bytes) };
            unmapped(SocketAddr::new(ip, port))
        };
        (address(self.0.local_address, self.0.local_port), address(self.0.remote_address, self.0.remote_port))
    }

    /// The figures it ended with; what the program does not tell is as it was `before`.
    pub(super) fn figures(&self, before: Option<TcpInfo>) -> TcpInfo {
        let record = &self.0;
        let told = TcpInfo {
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
            window_scales: None,
        };
        let Some(before) = before else { return told };
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
            ..told
        }
    }
}

// SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
unsafe impl Zeroable for plait_ended {}
// SAFETY: as above.
unsafe impl Pod for plait_ended {}

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ended.bpf.o"));
