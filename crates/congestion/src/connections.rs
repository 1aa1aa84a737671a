//! What congestion control does with the connections of this network namespace.
//!
//! `unsafe` here only asserts that the record the program writes is plain numbers.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::Iter;
use plait_linux::mptcp::Token;

use crate::bindings::plait_controlled;
use crate::{Algorithm, Error, Path, object};

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
    /// The kernel's name of its congestion control.
    pub congestion_control: String,
    /// The congestion window, in segments.
    pub window: u32,
    /// Where slow start ends, in segments; `None` before the first loss.
    pub threshold: Option<u32>,
    /// The smoothed round-trip time; `None` before it was measured.
    pub rtt: Option<Duration>,
    /// What the window gains in a round trip in congestion avoidance, in segments, where reno gains 1; `None` if the
    /// algorithm is none of these, or the subflow does not count for its siblings (yet).
    pub increase: Option<f64>,
}

/// The MPTCP connections of the calling thread's network namespace that there are now, by token.
///
/// Sockets are visited one after the other: a subflow that comes or goes meanwhile may or may not be there.
///
/// # Errors
/// The kernel's refusal.
pub fn connections() -> Result<Vec<Connection>, Error> {
    let mut found = BTreeMap::<u32, Vec<plait_controlled>>::new();
    for record in records()? {
        if record.token != 0 {
            found.entry(record.token).or_default().push(record);
        }
    }
    let connection = |(token, records): (u32, Vec<_>)| Connection {
        token: Token(token),
        subflows: (0..records.len()).map(|place| subflow(&records, place)).collect(),
    };
    Ok(found.into_iter().map(connection).collect())
}

/// How many sockets of the calling thread's network namespace use an algorithm.
pub(crate) fn sockets_of(algorithm: Algorithm) -> Result<usize, Error> {
    let uses = |record: &&plait_controlled| name_of(record) == algorithm.kernel_name();
    Ok(records()?.iter().filter(uses).count())
}

fn subflow(records: &[plait_controlled], place: usize) -> Subflow {
    let record = &records[place];
    Subflow {
        local: address(record.family, record.local_address, record.local_port),
        remote: address(record.family, record.remote_address, record.remote_port),
        congestion_control: name_of(record),
        window: record.window,
        threshold: Some(record.threshold).filter(|threshold| *threshold < INFINITE),
        rtt: (record.rtt != 0).then(|| Duration::from_nanos(u64::from(record.rtt) * 125)),
        increase: increase(records, place),
    }
}

fn increase(records: &[plait_controlled], place: usize) -> Option<f64> {
    let algorithm: Algorithm = name_of(&records[place]).parse().ok()?;
    let counts = |record: &plait_controlled| {
        [ESTABLISHED, CLOSE_WAIT].contains(&record.state) && record.rtt != 0 && record.window != 0
    };
    if !counts(&records[place]) {
        return None;
    }
    let before = records[..place].iter().filter(|record| counts(record)).count();
    let paths: Vec<_> = records.iter().filter(|record| counts(record)).map(path).collect();
    Some(algorithm.increase(&paths, before) * paths[before].window)
}

fn path(record: &plait_controlled) -> Path {
    Path { window: record.window.into(), rtt: record.rtt.into(), transmitted: record.transmitted as f64 }
}

fn name_of(record: &plait_controlled) -> String {
    let name = record.algorithm.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn address(family: u16, bytes: [u8; 16], port: u16) -> SocketAddr {
    let [a, b, c, d, ..] = bytes;
    let ip =
        if i32::from(family) == libc::AF_INET { IpAddr::from([a, b, c, d]) } else { IpAddr::from(bytes) };
    SocketAddr::new(ip.to_canonical(), port)
}

/// A record of each socket that matters.
fn records() -> Result<Vec<plait_controlled>, Error> {
    let failed = Error::kernel("list connections");
    let read = || {
        let object = object::open(PROGRAM).map_err(io::Error::other)?.load()?;
        let program = object.progs_mut().next().ok_or_else(|| io::Error::from(ErrorKind::NotFound))?;
        let link = program.attach()?;
        let mut bytes = Vec::new();
        read_all(&mut Iter::new(&link)?, &mut bytes)?;
        Ok(bytes.as_chunks::<SIZE>().0.iter().map(|record| bytemuck::pod_read_unaligned(record)).collect())
    };
    read().map_err(failed)
}

fn read_all(iterator: &mut Iter, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = vec![0; 512 * SIZE];
    loop {
        match iterator.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
            // The kernel pauses after a million sockets without output.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
}

// SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
unsafe impl Zeroable for plait_controlled {}
// SAFETY: as above.
unsafe impl Pod for plait_controlled {}

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/controlled.bpf.o"));
const SIZE: usize = size_of::<plait_controlled>();
/// TCP_INFINITE_SSTHRESH of the kernel.
const INFINITE: u32 = 0x7fff_ffff;
/// Of the kernel's `tcp_states.h`.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
