//! Fragmentation of datagrams by the kernel (`ip(7)`, IP_MTU_DISCOVER).

use std::io;
use std::os::fd::AsFd;

use crate::sockopt;

/// Lets the kernel fragment the datagrams of a UDP socket that are longer than the path MTU that it knows; shorter ones are not
/// fragmented on the way. `is_ipv6`: the family of the socket, which may have IPv4 addresses, too.
///
/// # Errors
/// The kernel's reason.
pub fn fragment_by_path_mtu(socket: impl AsFd, is_ipv6: bool) -> io::Result<()> {
    let set = |level, name, value: i32| sockopt::set(&socket, level, name, &value.to_ne_bytes());
    set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_WANT)?;
    if is_ipv6 {
        set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_WANT)?;
        set(libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0)?;
    }
    Ok(())
}
