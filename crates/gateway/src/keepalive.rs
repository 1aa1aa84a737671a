//! Keepalive probes (RFC 1122, section 4.2.3.6): frequent while a connection to a peer is in use, so that a peer that was killed
//! is noticed soon even if its reset was lost, and rare while it is idle. The end that accepted it probes rarely.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use crate::connections::Connection;

/// Without traffic for this long, a connection that was in use is probed.
pub(crate) const IN_USE: Duration = Duration::from_secs(1);

/// Without traffic for this long, any connection is probed.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// Between two probes without an answer.
const INTERVAL: Duration = Duration::from_secs(1);

/// Probes without an answer after which a subflow has failed: a cut of two minutes is survived.
const PROBES: u32 = 120;

/// Between two checks whether a connection is in use.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Probes a connection that was without traffic for this long. Linux before 6.10 cannot set the times of MPTCP's probes: two hours
/// apply.
pub(crate) fn probe_after(stream: &TcpStream, idle: Duration) -> io::Result<()> {
    let probes = TcpKeepalive::new().with_time(idle).with_interval(INTERVAL).with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&probes)
}

/// Adapts the probes of a connection, which is in use at first, for as long as it is polled.
pub(crate) async fn adapt(connection: &Connection) -> Infallible {
    let (mut set_to, mut before) = (IN_USE, 0);
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let total = connection.progress.sent.total() + connection.progress.received.total();
        let wanted = if total == before { IDLE } else { IN_USE };
        before = total;
        // The connection works without.
        if wanted != set_to && probe_after(&connection.far, wanted).is_ok() {
            set_to = wanted;
        }
    }
}
