//! The SYNs of accepted connections, as they arrived (`TCP_SAVE_SYN`, kernel 4.2): middleboxes change their options.

use std::io;
use std::os::fd::AsFd;

use crate::sockopt;

/// Makes a listening socket keep the SYNs of connections that it accepts from now on.
///
/// # Errors
/// The kernel's reason; MPTCP sockets do not support it.
pub fn save(listener: impl AsFd) -> io::Result<()> {
    sockopt::set(listener, libc::IPPROTO_TCP, TCP_SAVE_SYN, &1i32.to_ne_bytes())
}

/// The SYN of an accepted connection, from its IP header on; empty if it was not kept, or has been taken before.
///
/// # Errors
/// The kernel's reason.
pub fn take(connection: impl AsFd) -> io::Result<Vec<u8>> {
    // The longest headers of IPv4 and TCP; those of IPv6 with extension headers that do not fit are an error.
    let mut bytes = vec![0; 512];
    let length = sockopt::get(connection, libc::IPPROTO_TCP, TCP_SAVED_SYN, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

const TCP_SAVE_SYN: i32 = 27;
const TCP_SAVED_SYN: i32 = 28;
