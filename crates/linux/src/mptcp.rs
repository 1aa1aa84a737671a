//! MPTCP sockets: creation, state, and reset.
//!
//! An MPTCP socket is a stream socket of protocol 262. The state of a connection is read with the kernel's `SOL_MPTCP`
//! socket options, field by field to support the shorter or longer structures of older and newer kernels. No data from
//! the kernel makes a function panic.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

pub use plait_wire::mptcp::{Key, Token};
use socket2::{Domain, Socket, Type};

use crate::bytes::{socket_address, u8_at, u32_at, u64_at, unmapped};
use crate::sockopt;
use crate::tcp_info::TcpInfo;

/// The protocol of a socket created by [`stream_socket`].
///
/// A connection of an [`Mptcp`](Protocol::Mptcp) socket falls back to TCP if the peer has no MPTCP: see [`is_mptcp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Multipath TCP, version 1 (RFC 8684).
    Mptcp,
    /// TCP, if this kernel has no MPTCP or it is disabled.
    Tcp,
}

/// Creates a stream socket for MPTCP, or for TCP if the kernel has no MPTCP or `net.mptcp.enabled` is 0.
///
/// # Errors
/// An error of `socket(2)` other than missing MPTCP.
pub fn stream_socket(domain: Domain) -> io::Result<(Socket, Protocol)> {
    match Socket::new(domain, Type::STREAM, Some(socket2::Protocol::MPTCP)) {
        Ok(socket) => Ok((socket, Protocol::Mptcp)),
        Err(error) if means_no_mptcp(&error) => {
            Ok((Socket::new(domain, Type::STREAM, Some(socket2::Protocol::TCP))?, Protocol::Tcp))
        }
        Err(error) => Err(error),
    }
}

/// Whether `socket(2)` failed for lack of MPTCP: `EPROTONOSUPPORT` if the kernel does not have it, `ENOPROTOOPT` if it
/// is disabled, `EINVAL` on kernels without protocol numbers above 255.
pub(crate) fn means_no_mptcp(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPROTONOSUPPORT | libc::ENOPROTOOPT | libc::EINVAL))
}

/// Whether a connected or accepted socket uses MPTCP.
///
/// `false` for a connection accepted from a TCP peer, which is a TCP socket, and for one that has fallen back, because
/// the peer uses TCP or a middlebox strips options.
///
/// # Errors
/// An error of `getsockopt(2)` other than missing MPTCP.
pub fn is_mptcp(fd: impl AsFd) -> io::Result<bool> {
    match Info::of(fd) {
        Ok(info) => Ok(!info.fallback),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives all subflows of a connection its receive buffer, which Linux has adapted to what arrives.
///
/// A new subflow has the initial one (the second value of `net.ipv4.tcp_rmem`), and keeps it until the connection needs more than it
/// has: until then, what the peer may send once the other subflows are gone is some 85 kB per round trip. The kernel adapts the
/// subflows' buffers when a larger number of bytes is waited for (`SO_RCVLOWAT`, Linux 6.7 and later); so the connection's grows by
/// some percent.
///
/// Returns whether it did: not if the buffer is smaller than 256 KiB, or near half of the third value of `net.ipv4.tcp_rmem`,
/// which limits what is waited for; older kernels do not.
///
/// # Errors
/// An error of `getsockopt(2)` or `setsockopt(2)`.
pub fn share_receive_buffer(fd: impl AsFd) -> io::Result<bool> {
    let socket = socket2::SockRef::from(&fd);
    let before = socket.recv_buffer_size()?;
    if before < MIN_SHARED_BUFFER {
        return Ok(false);
    }
    let wait_for = |bytes: usize| {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        sockopt::set(&fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes.to_ne_bytes())
    };
    // How many bytes a buffer holds depends on the segments that have arrived: an eighth of its size and more.
    let steps = (4..=32).map(|step| before / 32 * step);
    let grown = (|| {
        for bytes in steps {
            wait_for(bytes)?;
            if socket.recv_buffer_size()? > before {
                return Ok(true);
            }
        }
        Ok(false)
    })();
    wait_for(1)?;
    grown
}

/// Smaller ones are about what a new subflow has.
const MIN_SHARED_BUFFER: usize = 256 << 10;

/// Resets a connection: the peer's next read fails with `ECONNRESET`.
///
/// For MPTCP the kernel sends MP_FASTCLOSE (RFC 8684, section 3.5) and resets every subflow; for TCP, RST. Data
/// not yet sent is discarded. The socket stays open, unconnected; reading from it returns end of file.
///
/// # Errors
/// The kernel's reason, for example that the descriptor is not a socket.
pub fn abort(fd: impl AsFd) -> io::Result<()> {
    rustix::net::connect_unspec(fd).map_err(io::Error::from)
}

/// The state of a connection (`MPTCP_INFO`, kernel 5.16 or later).
///
/// Sequence numbers are data sequence numbers; fields that only newer kernels have are `None` on older ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The local token.
    pub token: Token,
    /// Data sequence number of the next byte the application writes.
    pub write_seq: u64,
    /// First data sequence number that the peer has not acknowledged; equal to [`write_seq`](Info::write_seq) when all
    /// written data is acknowledged.
    pub snd_una: u64,
    /// Data sequence number of the next byte expected from the peer.
    pub rcv_nxt: u64,
    /// Additional subflows, as counted by the path manager.
    pub extra_subflows: u8,
    /// All open subflows, including the initial one (kernel 6.10).
    pub subflows: Option<u8>,
    /// Addresses announced to the peer.
    pub addresses_signalled: u8,
    /// Addresses of the peer that were accepted.
    pub addresses_accepted: u8,
    /// Local endpoints used for subflows.
    pub local_addresses_used: u8,
    /// Whether the connection has fallen back to TCP (RFC 8684, section 3.7).
    pub fallback: bool,
    /// Whether the peer's key was received.
    pub remote_key_received: bool,
    /// Whether DSS checksums are used.
    pub checksums: bool,
    /// Bytes sent at the data level, without reinjections (kernel 6.5).
    pub bytes_sent: Option<u64>,
    /// Bytes received in order at the data level (kernel 6.5).
    pub bytes_received: Option<u64>,
    /// Bytes reinjected (kernel 6.5).
    pub bytes_retransmitted: Option<u64>,
    /// Bytes acknowledged at the data level (kernel 6.5).
    pub bytes_acked: Option<u64>,
    /// Retransmission timeouts at the data level (kernel 6.5).
    pub retransmits: Option<u32>,
}

impl Info {
    /// Reads the state of a socket.
    ///
    /// # Errors
    /// `EOPNOTSUPP` or `ENOPROTOOPT` if it is not an MPTCP socket, otherwise the error of `getsockopt(2)`.
    pub fn of(fd: impl AsFd) -> io::Result<Info> {
        let mut buffer = [0; 256];
        let length = sockopt::get(fd, SOL_MPTCP, MPTCP_INFO, &mut buffer)?;
        let bytes = &buffer[..length];
        Info::parse(bytes).ok_or_else(|| {
            io::Error::other(format!("expected at least 43 bytes of MPTCP_INFO, got {length}"))
        })
    }

    /// Parses a `struct mptcp_info`, as far as it is present.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Info> {
        let flags = u32_at(bytes, 8)?;
        Some(Info {
            token: Token(u32_at(bytes, 12)?),
            write_seq: u64_at(bytes, 16)?,
            snd_una: u64_at(bytes, 24)?,
            rcv_nxt: u64_at(bytes, 32)?,
            extra_subflows: u8_at(bytes, 0)?,
            subflows: u8_at(bytes, 80),
            addresses_signalled: u8_at(bytes, 1)?,
            addresses_accepted: u8_at(bytes, 2)?,
            local_addresses_used: u8_at(bytes, 40)?,
            fallback: flags & 1 != 0,
            remote_key_received: flags & 2 != 0,
            checksums: u8_at(bytes, 42)? != 0,
            retransmits: u64_at(bytes, 48).and(u32_at(bytes, 44)),
            bytes_retransmitted: u64_at(bytes, 48),
            bytes_sent: u64_at(bytes, 56),
            bytes_received: u64_at(bytes, 64),
            bytes_acked: u64_at(bytes, 72),
        })
    }
}

/// A connection and its subflows, in order of creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullInfo {
    /// The connection.
    pub info: Info,
    /// Its subflows.
    pub subflows: Vec<Subflow>,
}

/// The addresses of a subflow: the local one, and the peer's.
pub type SubflowEnds = (SocketAddr, SocketAddr);

/// A subflow of a connection: its addresses and `TCP_INFO`.
///
/// IPv4-mapped addresses are converted to IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subflow {
    /// The local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
    /// TCP state and statistics.
    pub tcp: TcpInfo,
}

impl FullInfo {
    /// Reads the state of a connection and its subflows.
    ///
    /// Uses `MPTCP_SUBFLOW_ADDRS` and `MPTCP_TCPINFO` (kernel 5.16) rather than `MPTCP_FULL_INFO` (kernel 6.6),
    /// which returns the same data in one call but only on newer kernels.
    ///
    /// # Errors
    /// As [`Info::of`]; `EAGAIN` if subflows changed faster than they could be read.
    pub fn of(fd: impl AsFd) -> io::Result<FullInfo> {
        let fd = fd.as_fd();
        // The two lists match only if no subflow was created or closed in between.
        for _ in 0..ATTEMPTS {
            let before = per_subflow(fd, MPTCP_SUBFLOW_ADDRS, ADDRESSES_SIZE)?;
            let tcp = per_subflow(fd, MPTCP_TCPINFO, TCP_INFO_SIZE)?;
            let info = Info::of(fd)?;
            if before == per_subflow(fd, MPTCP_SUBFLOW_ADDRS, ADDRESSES_SIZE)? && before.len() == tcp.len() {
                let subflows = before.iter().zip(&tcp).filter_map(|(a, t)| Subflow::parse(a, t)).collect();
                return Ok(FullInfo { info, subflows });
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }
}

impl Subflow {
    /// Its addresses, local and the peer's, by which it is known within its connection.
    #[must_use]
    pub fn ends(&self) -> SubflowEnds {
        (self.local, self.remote)
    }

    /// Parses a `struct mptcp_subflow_addrs` and a `struct tcp_info`; `None` if the subflow has no addresses or its
    /// state cannot be parsed.
    fn parse(addresses: &[u8], tcp: &[u8]) -> Option<Subflow> {
        Some(Subflow {
            local: unmapped(socket_address(addresses)?),
            remote: unmapped(socket_address(addresses.get(ADDRESSES_SIZE / 2..)?)?),
            tcp: TcpInfo::parse(tcp)?,
        })
    }
}

const SOL_MPTCP: i32 = 284;
const MPTCP_INFO: i32 = 1;
const MPTCP_TCPINFO: i32 = 2;
const MPTCP_SUBFLOW_ADDRS: i32 = 3;
const ATTEMPTS: usize = 8;
/// Two `struct sockaddr_storage`.
const ADDRESSES_SIZE: usize = 256;
/// `struct tcp_info` up to and including `tcpi_snd_wnd`.
const TCP_INFO_SIZE: usize = 232;

/// Reads an option that returns an element of at most `size` bytes for each subflow.
fn per_subflow(fd: impl AsFd, name: i32, size: usize) -> io::Result<Vec<Vec<u8>>> {
    let fd = fd.as_fd();
    let mut capacity = 8;
    loop {
        // struct mptcp_subflow_data: its size, two fields set by the kernel, the size of an element.
        let mut buffer = vec![0; HEADER + capacity * size];
        buffer[..4].copy_from_slice(&(HEADER as u32).to_ne_bytes());
        buffer[12..16].copy_from_slice(&(size as u32).to_ne_bytes());
        sockopt::get(fd, SOL_MPTCP, name, &mut buffer)?;
        let count = u32_at(&buffer, 4).unwrap_or(0) as usize;
        if count <= capacity {
            let element_size = (u32_at(&buffer, 8).unwrap_or(0) as usize).min(size);
            let elements = buffer[HEADER..].chunks_exact(size).take(count);
            return Ok(elements.map(|element| element[..element_size].to_vec()).collect());
        }
        capacity = count + 8;
    }
}

const HEADER: usize = 16;
