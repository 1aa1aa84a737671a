//! Sends a packet as if a subflow had sent it.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use rustix::net::netdevice::index_to_name;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::engine::FourTuple;

/// Sends a packet, from the IP header on, by the interface of the subflow; the kernel resolves the next hop.
pub(super) fn send(packet: &[u8], tuple: FourTuple, if_index: u32) -> io::Result<()> {
    let domain = if tuple.remote.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    // This protocol means that packets include the IP header.
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
    socket.bind_device(Some(index_to_name(&socket, if_index)?.as_bytes()))?;
    // Routes may depend on the source address, which is not local on a host between the two ends.
    if tuple.local.is_ipv4() {
        socket.set_freebind_v4(true)?;
    } else {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&without_port(tuple.local.ip(), if_index))?;
    socket.send_to(packet, &without_port(tuple.remote.ip(), if_index)).map(|_| ())
}

/// The port of a raw socket is a protocol number.
fn without_port(address: IpAddr, if_index: u32) -> SockAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, 0).into(),
        IpAddr::V6(address) => {
            let scope = if address.is_unicast_link_local() { if_index } else { 0 };
            SocketAddrV6::new(address, 0, 0, scope).into()
        }
    }
}
