//! The congestion control state of the connections in this network namespace.
//!
//! `unsafe` is used only to assert that the program's record consists of integers.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use plait_linux::mptcp::Token;

use crate::bindings::plait_cc_socket;
use crate::object::iterate;
use crate::skeleton::sockets::SocketsSkelBuilder;
use crate::{Algorithm, Error, Path};

/// An MPTCP connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its local token.
    pub token: Token,
    /// Its subflows.
    pub subflows: Vec<Subflow>,
}

/// A subflow.
#[derive(Clone, Debug)]
pub struct Subflow {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// The kernel name of its congestion control algorithm.
    pub congestion_control: String,
    /// The congestion window, in segments.
    pub window: u32,
    /// The slow start threshold, in segments; `None` before the first loss.
    pub threshold: Option<u32>,
    /// The smoothed round-trip time; `None` before the first measurement.
    pub rtt: Option<Duration>,
    /// The increase of the window per round trip in congestion avoidance, in segments (1 for reno). `None` if the
    /// algorithm is not one of plait's, or if the other subflows do not take this one into account.
    pub increase: Option<f64>,
}

/// The current MPTCP connections of the calling thread's network namespace, sorted by token.
///
/// Not a snapshot: a subflow that is created or closed during the call may or may not be included.
///
/// # Errors
/// [`Error::Kernel`].
pub fn connections() -> Result<Vec<Connection>, Error> {
    let mut found = BTreeMap::<u32, Vec<plait_cc_socket>>::new();
    for record in records()? {
        if record.token != 0 {
            found.entry(record.token).or_default().push(record);
        }
    }
    let connection = |(token, records): (u32, Vec<_>)| Connection {
        token: Token(token),
        subflows: (0..records.len()).map(|index| subflow(&records, index)).collect(),
    };
    Ok(found.into_iter().map(connection).collect())
}

/// The number of sockets in the calling thread's network namespace that use an algorithm.
pub(crate) fn sockets_of(kernel_name: &str) -> Result<usize, Error> {
    let uses = |record: &&plait_cc_socket| name_of(record) == kernel_name;
    Ok(records()?.iter().filter(uses).count())
}

fn subflow(records: &[plait_cc_socket], index: usize) -> Subflow {
    let record = &records[index];
    Subflow {
        local: address(record.family, record.local_address, record.local_port),
        remote: address(record.family, record.remote_address, record.remote_port),
        congestion_control: name_of(record),
        window: record.window,
        threshold: Some(record.threshold).filter(|threshold| *threshold < INFINITE_SSTHRESH),
        rtt: (record.rtt != 0).then(|| Duration::from_nanos(u64::from(record.rtt) * 125)),
        increase: increase(records, index),
    }
}

fn increase(records: &[plait_cc_socket], index: usize) -> Option<f64> {
    let algorithm: Algorithm = name_of(&records[index]).parse().ok()?;
    let is_considered = |record: &plait_cc_socket| {
        [ESTABLISHED, CLOSE_WAIT].contains(&record.state) && record.rtt != 0 && record.window != 0
    };
    if !is_considered(&records[index]) {
        return None;
    }
    let before = records[..index].iter().filter(|record| is_considered(record)).count();
    let paths: Vec<_> = records.iter().filter(|record| is_considered(record)).map(path).collect();
    Some(algorithm.increase(&paths, before) * paths[before].window)
}

fn path(record: &plait_cc_socket) -> Path {
    Path { window: record.window.into(), rtt: record.rtt.into(), transmitted: record.transmitted as f64 }
}

fn name_of(record: &plait_cc_socket) -> String {
    let name = record.algorithm.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn address(family: u16, bytes: [u8; 16], port: u16) -> SocketAddr {
    let [a, b, c, d, ..] = bytes;
    let ip =
        if i32::from(family) == libc::AF_INET { IpAddr::from([a, b, c, d]) } else { IpAddr::from(bytes) };
    SocketAddr::new(ip.to_canonical(), port)
}

/// Reads a record of each MPTCP subflow, and of each other socket that uses one of plait's algorithms.
fn records() -> Result<Vec<plait_cc_socket>, Error> {
    let failed = Error::kernel("list connections");
    let read = || {
        let mut storage = MaybeUninit::uninit();
        let program = SocketsSkelBuilder::default().open(&mut storage)?.load()?;
        let link = program.progs.list_sockets.attach()?;
        let bytes = iterate(&link)?;
        Ok(bytes.as_chunks::<SIZE>().0.iter().map(|record| bytemuck::pod_read_unaligned(record)).collect())
    };
    read().map_err(failed)
}

// SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
unsafe impl Zeroable for plait_cc_socket {}
// SAFETY: as above.
unsafe impl Pod for plait_cc_socket {}

const SIZE: usize = size_of::<plait_cc_socket>();
/// The kernel's `TCP_INFINITE_SSTHRESH`.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// From the kernel's `tcp_states.h`.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
