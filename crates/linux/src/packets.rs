//! Packets of this host as they are on its interfaces: received by a packet socket (`packet(7)`), sent by a raw socket
//! (`raw(7)`). Both require `CAP_NET_RAW`.
//!
//! A packet socket sees outgoing packets after the firewall and incoming ones before it, and before `rp_filter`. So it shows
//! whether a packet has left this host, and whether an answer has arrived.
//!
//! `unsafe` is used only because `recvfrom(2)` returns the interface by a pointer to a `sockaddr_ll`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::index_to_name;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// A packet on an interface, from its IP header on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Index of the interface.
    pub if_index: u32,
    /// Whether this host sent it.
    pub outgoing: bool,
    /// The packet, or its first 2 KiB.
    pub bytes: Vec<u8>,
}

/// Receives packets that open or refuse TCP connections (SYN, RST), and ICMP messages, on all interfaces.
#[derive(Debug)]
pub struct PacketTap {
    socket: Socket,
}

impl PacketTap {
    /// Opens a tap in the network namespace of the calling thread.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`.
    pub fn open() -> io::Result<PacketTap> {
        // No packets before the filter is attached: protocol 0.
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        socket.attach_filter(&FILTER)?;
        let protocol = u16::to_be(libc::ETH_P_ALL as u16);
        bind(&socket, protocol)?;
        Ok(PacketTap { socket })
    }

    /// The next packet, once there is one; `None` at the deadline.
    ///
    /// # Errors
    /// The socket failed.
    pub fn next(&self, deadline: Instant) -> io::Result<Option<Packet>> {
        loop {
            if let Some(packet) = self.try_next()? {
                return Ok(Some(packet));
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(rest.max(Duration::from_millis(1))).map_err(io::Error::other)?;
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut ready, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn try_next(&self) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0; SNAP_LENGTH];
        let mut from = link_address(0);
        let mut from_length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the pointers and lengths describe `bytes` and `from`, which outlive the call.
        let length = unsafe {
            libc::recvfrom(
                self.socket.as_fd().as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT,
                (&raw mut from).cast(),
                &raw mut from_length,
            )
        };
        let Ok(length) = usize::try_from(length) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                // Reported once when an interface goes down; others are still received.
                _ if error.raw_os_error() == Some(libc::ENETDOWN) => Ok(None),
                _ => Err(error),
            };
        };
        bytes.truncate(length);
        Ok(Some(Packet {
            if_index: from.sll_ifindex.try_into().unwrap_or(0),
            outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
            bytes,
        }))
    }
}

/// Sends packets with their IP headers by one interface. The kernel resolves the next hop, and computes IPv4's checksum.
#[derive(Debug)]
pub struct RawSender {
    socket: Socket,
}

impl RawSender {
    /// Opens a sender for packets from `source`, an address of this host, by the interface `if_index`.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`; the interface does not exist.
    pub fn open(source: IpAddr, if_index: u32) -> io::Result<RawSender> {
        // This protocol means that packets include the IP header.
        let socket = Socket::new(
            Domain::for_address(without_port(source)),
            Type::RAW,
            Some(Protocol::from(libc::IPPROTO_RAW)),
        )?;
        socket.bind_device(Some(index_to_name(&socket, if_index)?.as_bytes()))?;
        // Routes may depend on the source address.
        socket.bind(&without_port(source).into())?;
        Ok(RawSender { socket })
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// The kernel's reason: `EPERM` if a firewall rule of this host drops it, `EMSGSIZE` beyond the interface's MTU,
    /// `ENETUNREACH` without a route.
    pub fn send(&self, packet: &[u8], destination: IpAddr) -> io::Result<()> {
        self.socket.send_to(packet, &without_port(destination).into()).map(|_| ())
    }
}

/// The port of a raw socket is a protocol number.
fn without_port(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, 0)
}

/// The address of a packet socket that receives packets of a protocol, in network order, on all interfaces.
fn link_address(protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

fn bind(socket: &Socket, protocol: u16) -> io::Result<()> {
    let address = link_address(protocol);
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `address`, which outlives the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const SNAP_LENGTH: usize = 2 << 10;

/// Classic BPF, from the IP header on: TCP segments with SYN or RST of unfragmented packets without IPv6 extension headers,
/// and all of ICMP.
const FILTER: [SockFilter; 19] = [
    load_byte(0),
    instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 0, 0, 4),
    jump_if_equal(4, 0, 8),
    // IPv4: protocol, fragment offset, length of the header (in X), flags of TCP.
    load_byte(9),
    jump_if_equal(1, 13, 0),
    jump_if_equal(6, 0, 11),
    instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, 0, 0, 6),
    jump_if_any(0x1fff, 9, 0),
    instruction(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
    instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_IND, 0, 0, 13),
    jump_if_any(SYN_OR_RST, 7, 6),
    // IPv6: next header, flags of TCP.
    jump_if_equal(6, 0, 5),
    load_byte(6),
    jump_if_equal(58, 4, 0),
    jump_if_equal(6, 0, 2),
    load_byte(40 + 13),
    jump_if_any(SYN_OR_RST, 1, 0),
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, SNAP_LENGTH as u32),
];

const SYN_OR_RST: u32 = 0x06;

const fn load_byte(offset: u32) -> SockFilter {
    instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0, offset)
}

/// Skips `equal` instructions if the accumulator is `value`, and `different` otherwise.
const fn jump_if_equal(value: u32, equal: u8, different: u8) -> SockFilter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, equal, different, value)
}

/// Skips `any` instructions if the accumulator has any bit of `mask`, and `none` otherwise.
const fn jump_if_any(mask: u32, any: u8, none: u8) -> SockFilter {
    instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, any, none, mask)
}

const fn instruction(code: u32, jump_true: u8, jump_false: u8, k: u32) -> SockFilter {
    SockFilter::new(code as u16, jump_true, jump_false, k)
}
