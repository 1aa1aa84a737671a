//! The MPTCP connections of this network namespace, with the keys of both ends.
//!
//! No socket option gives the keys, so a BPF iterator over all TCP sockets reads them from the kernel's memory. It
//! covers the connections of every process in the network namespace of the thread that asks, and takes root
//! (`CAP_BPF` and `CAP_PERFMON`) and a kernel of version 5.19 or later with type information (BTF).
//!
//! `unsafe` here only asserts that the record the program writes is plain numbers.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{Iter, Link, Object, ObjectBuilder};
use zeroize::Zeroizing;

use crate::bindings::plait_subflow;
use crate::bytes::unmapped;
use crate::mptcp::{Key, Token};

/// Why the connections cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program cannot be loaded.
    #[error(
        "cannot load the BPF program that lists MPTCP connections: {0}; \
         it takes root, and a kernel of version 5.19 or later with BPF, BTF and MPTCP"
    )]
    Load(libbpf_rs::Error),
    /// The program failed.
    #[error("cannot read the list of MPTCP connections: {0}")]
    Read(io::Error),
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The local token.
    pub token: Token,
    /// The local key.
    pub local_key: Key,
    /// The peer's key; `None` before it has arrived, and after a fallback to TCP in the handshake.
    pub remote_key: Option<Key>,
    /// Bytes sent at the data level (kernel 6.5).
    pub bytes_sent: Option<u64>,
    /// Bytes received at the data level (kernel 6.5).
    pub bytes_received: Option<u64>,
    /// Its subflows.
    pub subflows: Vec<Subflow>,
}

/// A subflow of a [`Connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subflow {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// State of the TCP connection, as in the kernel's `tcp_states.h`: 1 is established.
    pub state: u8,
    /// Bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
}

/// The loaded program: lists connections any number of times.
#[derive(Debug)]
pub struct Connections {
    link: Link,
    /// Keeps the program.
    _object: Object,
}

impl Connections {
    /// Loads the program, some milliseconds of work.
    ///
    /// # Errors
    /// [`Error::Load`]
    pub fn load() -> Result<Connections, Error> {
        let load = || {
            let object = ObjectBuilder::default().open_memory(PROGRAM)?.load()?;
            let program = object.progs_mut().next().ok_or_else(|| io::Error::other("no program"))?;
            let link = program.attach()?;
            Ok(Connections { link, _object: object })
        };
        load().map_err(Error::Load)
    }

    /// The connections that there are now, by token.
    ///
    /// Sockets are visited one after the other: a subflow that comes or goes meanwhile may or may not be there.
    ///
    /// # Errors
    /// [`Error::Read`]
    pub fn list(&self) -> Result<Vec<Connection>, Error> {
        let mut iterator = Iter::new(&self.link).map_err(|error| Error::Read(io::Error::other(error)))?;
        let mut connections = BTreeMap::new();
        let mut buffer = Zeroizing::new(vec![0; RECORDS * SIZE]);
        let mut filled = 0;
        loop {
            match iterator.read(&mut buffer[filled..]) {
                Ok(0) => return Ok(connections.into_values().collect()),
                Ok(length) => filled += length,
                // The kernel pauses after a million sockets without output.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) => return Err(Error::Read(error)),
            }
            let whole = filled - filled % SIZE;
            for record in buffer[..whole].as_chunks::<SIZE>().0 {
                add(&mut connections, &bytemuck::pod_read_unaligned(record));
            }
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
        }
    }
}

/// The connections that there are now: [`Connections::load`] and [`Connections::list`] at once.
///
/// # Errors
/// As those two.
pub fn connections() -> Result<Vec<Connection>, Error> {
    Connections::load()?.list()
}

// SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
unsafe impl Zeroable for plait_subflow {}
// SAFETY: as above.
unsafe impl Pod for plait_subflow {}

/// Puts a subflow to its connection.
fn add(connections: &mut BTreeMap<u32, Connection>, record: &plait_subflow) {
    let count = |bytes| (record.connection_counts != 0).then_some(bytes);
    let connection = connections.entry(record.token).or_insert_with(|| Connection {
        token: Token(record.token),
        local_key: key(record.local_key),
        remote_key: (record.remote_key != 0).then(|| key(record.remote_key)),
        bytes_sent: count(record.connection_bytes_sent),
        bytes_received: count(record.connection_bytes_received),
        subflows: Vec::new(),
    });
    connection.subflows.push(Subflow {
        local: address(record.family, record.local_address, record.local_port),
        remote: address(record.family, record.remote_address, record.remote_port),
        state: record.state,
        bytes_sent: record.bytes_sent,
        bytes_received: record.bytes_received,
    });
}

/// The kernel holds a key as the number whose big-endian form crosses the wire.
fn key(number: u64) -> Key {
    Key::new(number.to_be_bytes())
}

fn address(family: u16, bytes: [u8; 16], port: u16) -> SocketAddr {
    let [a, b, c, d, ..] = bytes;
    let ip =
        if i32::from(family) == libc::AF_INET { IpAddr::from([a, b, c, d]) } else { IpAddr::from(bytes) };
    unmapped(SocketAddr::new(ip, port))
}

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/connections.bpf.o"));
const SIZE: usize = size_of::<plait_subflow>();
const RECORDS: usize = 512;
