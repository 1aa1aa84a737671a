//! A UDP socket that receives several packets by one system call, and sends from the address that it received on.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};

use plait_linux::fragmentation::fragment_by_path_mtu;
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use crate::socket::canonical;

/// Buffers that one system call fills.
const BATCH: usize = 8;

/// The longest datagram, or several of equal length that the kernel has coalesced.
const BUFFER: usize = 65_536;

/// What a socket may hold before packets are dropped, if the host's limit (`net.core.rmem_max`) permits: a burst of milliseconds.
pub(crate) const SOCKET_BUFFER: usize = 1 << 20;

/// A socket for packets.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    is_ipv6: bool,
}

/// A packet.
#[derive(Debug)]
pub(crate) struct Received<'a> {
    pub(crate) from: SocketAddr,
    /// The address of this host that it was sent to.
    pub(crate) to: Option<IpAddr>,
    pub(crate) packet: &'a mut [u8],
}

/// Where packets are received into.
pub(crate) struct ReceiveBuffers {
    bytes: Vec<u8>,
    meta: [RecvMeta; BATCH],
}

impl Default for ReceiveBuffers {
    fn default() -> ReceiveBuffers {
        ReceiveBuffers { bytes: vec![0; BATCH * BUFFER], meta: [RecvMeta::default(); BATCH] }
    }
}

/// A socket on an address, and on the interface `device` if there is one, for a [`DatagramSocket`].
pub(crate) fn bind(address: SocketAddr, device: Option<&str>) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if let Some(device) = device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    if address.is_ipv6() {
        // The host's default may be another one.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

impl TryFrom<std::net::UdpSocket> for DatagramSocket {
    type Error = io::Error;

    /// Configures a socket that is [bound](bind).
    fn try_from(socket: std::net::UdpSocket) -> io::Result<DatagramSocket> {
        let is_ipv6 = socket.local_addr()?.is_ipv6();
        let buffers = SockRef::from(&socket);
        // Less also works.
        let _ = buffers.set_recv_buffer_size(SOCKET_BUFFER);
        let _ = buffers.set_send_buffer_size(SOCKET_BUFFER);
        let state = UdpSocketState::new((&socket).into())?;
        fragment_by_path_mtu(&socket, is_ipv6)?;
        Ok(DatagramSocket { socket: UdpSocket::from_std(socket)?, state, is_ipv6 })
    }
}

impl DatagramSocket {
    /// A socket on an address, and on the interface `device` if there is one.
    pub(crate) fn bind(address: SocketAddr, device: Option<&str>) -> io::Result<DatagramSocket> {
        bind(address, device)?.try_into()
    }

    /// Receives packets, and calls `each` with them.
    ///
    /// # Errors
    /// Of the socket, such as one that an ICMP message has caused: the next call may succeed.
    pub(crate) async fn receive(
        &self,
        buffers: &mut ReceiveBuffers,
        mut each: impl FnMut(Received<'_>),
    ) -> io::Result<()> {
        let received = self.socket.async_io(Interest::READABLE, || {
            let mut slices: Vec<_> = buffers.bytes.chunks_mut(BUFFER).map(IoSliceMut::new).collect();
            self.state.recv((&self.socket).into(), &mut slices, &mut buffers.meta)
        });
        let received = received.await?;
        for (meta, buffer) in buffers.meta[..received].iter().zip(buffers.bytes.chunks_mut(BUFFER)) {
            // An empty datagram has no stride.
            for packet in buffer[..meta.len].chunks_mut(meta.stride.max(1)) {
                each(Received {
                    from: canonical(meta.addr),
                    to: meta.dst_ip.map(|ip| ip.to_canonical()),
                    packet,
                });
            }
        }
        Ok(())
    }

    /// Sends a packet, if there is room for it now.
    ///
    /// # Errors
    /// There is none, or there is no route.
    pub(crate) fn send(&self, to: SocketAddr, from: Option<IpAddr>, packet: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: self.native(to),
            ecn: None,
            contents: packet,
            segment_size: None,
            // The kernel takes an IPv4 source of an IPv4-mapped destination.
            src_ip: from,
        };
        // Not by the runtime, which does not know yet that a new socket can send, so that the first packet would be lost.
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// An address as a socket of this family has it.
    fn native(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.is_ipv6 => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }
}
