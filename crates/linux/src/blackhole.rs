//! The kernel's detection of paths that drop MPTCP, called blackholes (6.12 and later).
//!
//! A connection whose SYNs are unanswered until it sends one without the MPTCP option counts as a blackhole
//! (`MPTcpExtBlackhole`). From then on, every new MPTCP socket of the network namespace connects with plain TCP, for
//! `net.mptcp.blackhole_timeout` seconds, and longer each time. A path that is silent for three seconds has the same
//! effect.

use std::fs;
use std::io;

use crate::counters::counters;

const TIMEOUT: &str = "/proc/sys/net/mptcp/blackhole_timeout";

/// The number of connections in this network namespace that the kernel made plain TCP for this reason; 0 on older kernels.
///
/// # Errors
/// As [`counters`].
pub fn connections_made_tcp() -> io::Result<i64> {
    Ok(counters()?.get("MPTcpExtMPCapableSYNTXDisabled").copied().unwrap_or(0))
}

/// The timeout in seconds after the first blackhole; 0: detection is disabled.
///
/// # Errors
/// The kernel is older, or `/proc/sys` cannot be read.
pub fn timeout() -> io::Result<u32> {
    let text = fs::read_to_string(TIMEOUT)?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{TIMEOUT} is {text:?}")))
}

/// Makes new connections of this network namespace use MPTCP again at once: writing the setting resets the timeout. The
/// setting keeps its value.
///
/// # Errors
/// The setting cannot be read or written: this requires root and a writable `/proc/sys`.
pub fn end() -> io::Result<()> {
    fs::write(TIMEOUT, timeout()?.to_string())
}
