//! A packet that goes out as though a subflow had sent it.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use rustix::net::netdevice::index_to_name;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::engine::Ends;

/// Sends a packet, from IP's header on, by the interface by which the subflow's packets go: the kernel finds the next
/// host, and does with it what it does with others that leave there.
pub(super) fn send(packet: &[u8], ends: Ends, if_index: u32) -> io::Result<()> {
    let domain = if ends.remote.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    // With this protocol the kernel expects IP's header.
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
    socket.bind_device(Some(index_to_name(&socket, if_index)?.as_bytes()))?;
    // Routes may depend on the source, which on a host between the two ends is not its own.
    if ends.local.is_ipv4() {
        socket.set_freebind_v4(true)?;
    } else {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&without_port(ends.local.ip(), if_index))?;
    socket.send_to(packet, &without_port(ends.remote.ip(), if_index)).map(|_| ())
}

/// The port of a raw socket would be a protocol.
fn without_port(address: IpAddr, if_index: u32) -> SockAddr {
    match address {
        IpAddr::V4(_) => SocketAddr::new(address, 0).into(),
        IpAddr::V6(address) => {
            let scope = if address.is_unicast_link_local() { if_index } else { 0 };
            SocketAddrV6::new(address, 0, 0, scope).into()
        }
    }
}
