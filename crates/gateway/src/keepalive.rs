//! Keepalive probes (RFC 1122, section 4.2.3.6): frequent while a connection to a peer is in use, so that a peer that was killed
//! is noticed soon even if its reset was lost, and so is a silent path on which this end sends nothing; and rare while it is idle.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tracing::trace;

/// Without traffic for this long, a connection that was in use is probed.
pub(crate) const IN_USE: Duration = Duration::from_secs(1);

/// Without traffic for this long, any connection is probed.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// Between two probes without an answer.
const INTERVAL: Duration = Duration::from_secs(1);

/// Probes without an answer after which a subflow has failed: a cut of two minutes is survived.
const PROBES: u32 = 120;

/// Probes a connection that was without traffic for this long. Linux before 6.10 cannot set the times of MPTCP's probes: two hours
/// apply.
pub(crate) fn probe_after(stream: &TcpStream, idle: Duration) -> io::Result<()> {
    let probes = TcpKeepalive::new().with_time(idle).with_interval(INTERVAL).with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Adapts the probes of a connection to whether it is in use.
pub(crate) fn set_in_use(stream: &TcpStream, in_use: bool) {
    if let Err(error) = probe_after(stream, if in_use { IN_USE } else { IDLE }) {
        trace!("keepalive: {error}");
    }
}
