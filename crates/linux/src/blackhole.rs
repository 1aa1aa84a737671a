//! The kernel's detection of blackholes: paths that drop MPTCP (kernel 6.12 or later).
//!
//! The kernel assumes a blackhole (`MPTcpExtBlackhole`) when a connection's SYNs are unanswered until it sends one
//! without the MPTCP option. Then all new MPTCP sockets of the network namespace connect by plain TCP, for
//! `net.mptcp.blackhole_timeout` seconds, and longer each time. An outage of three seconds has the same effect.

use std::fs;
use std::io;

use crate::counters::counters;

const TIMEOUT: &str = "/proc/sys/net/mptcp/blackhole_timeout";

/// The number of connections in this network namespace that use plain TCP because of a blackhole; 0 on older kernels.
///
/// # Errors
/// As [`counters`].
pub fn connections_made_tcp() -> io::Result<i64> {
    Ok(counters()?.get("MPTcpExtMPCapableSYNTXDisabled").copied().unwrap_or(0))
}

/// The timeout after the first blackhole, in seconds; 0: detection is disabled.
///
/// # Errors
/// The kernel has no blackhole detection, or `/proc/sys` cannot be read.
pub fn timeout() -> io::Result<u32> {
    let text = fs::read_to_string(TIMEOUT)?;
    text.trim().parse().map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("expected a number of seconds in {TIMEOUT}, got {text:?}"),
        )
    })
}

/// Makes new connections of this network namespace use MPTCP again immediately: writing the sysctl, even with an
/// unchanged value, resets the timeout.
///
/// # Errors
/// The sysctl cannot be read or written: this requires root and a writable `/proc/sys`.
pub fn end() -> io::Result<()> {
    fs::write(TIMEOUT, timeout()?.to_string())
}
