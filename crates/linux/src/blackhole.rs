//! What the kernel does when it takes a path for one that drops MPTCP (6.12 and later).
//!
//! A connection whose SYNs stayed without an answer until it sent one without MPTCP's option counts as a blackhole
//! (`MPTcpExtBlackhole`). From then on, every new MPTCP socket of the network namespace connects by TCP alone, for
//! `net.mptcp.blackhole_timeout` seconds, and for longer each time. A path that is merely silent for three seconds looks
//! the same.

use std::fs;
use std::io;

use crate::counters::counters;

const TIMEOUT: &str = "/proc/sys/net/mptcp/blackhole_timeout";

/// How many connections of this network namespace the kernel has made TCP for that reason; 0 with kernels that do not.
///
/// # Errors
/// As [`counters`].
pub fn connections_made_tcp() -> io::Result<i64> {
    Ok(counters()?.get("MPTcpExtMPCapableSYNTXDisabled").copied().unwrap_or(0))
}

/// For how many seconds it does so after the first blackhole; 0: never.
///
/// # Errors
/// The kernel is older, or `/proc/sys` cannot be read.
pub fn timeout() -> io::Result<u32> {
    let text = fs::read_to_string(TIMEOUT)?;
    text.trim()
        .parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{TIMEOUT} is {text:?}")))
}

/// Makes new connections of this network namespace MPTCP again at once: whatever is written to the setting, the time
/// begins anew. The setting keeps its value.
///
/// # Errors
/// The setting cannot be read or written: it takes root and a writable `/proc/sys`.
pub fn end() -> io::Result<()> {
    fs::write(TIMEOUT, timeout()?.to_string())
}
