//! The state of a TCP connection (`struct tcp_info`, `tcp(7)`), as far as the kernel provides it.

use serde::{Deserialize, Serialize};

use crate::bytes::{u8_at, u32_at, u64_at};

/// State and statistics of a TCP connection, such as a subflow.
///
/// Counters start with the connection. Values that only newer kernels have are `None` on older ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpInfo {
    /// Its state.
    pub state: State,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Mean deviation of the round-trip time, microseconds.
    pub rtt_variance_us: u32,
    /// Minimum recent round-trip time, microseconds (kernel 4.6); `None` before the first measurement.
    pub min_rtt_us: Option<u32>,
    /// Retransmission timeout, microseconds.
    pub rto_us: u32,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow start threshold, segments; `None` before the first loss.
    pub ssthresh: Option<u32>,
    /// Maximum segment size for sending, bytes.
    pub mss: u32,
    /// Receive window advertised by the peer, bytes (kernel 5.18).
    pub peer_window: Option<u32>,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Segments currently considered lost.
    pub lost: u32,
    /// Segments retransmitted.
    pub retransmissions: u32,
    /// Payload bytes retransmitted (kernel 4.19).
    pub bytes_retransmitted: Option<u64>,
    /// Payload bytes sent, retransmissions included (kernel 4.19).
    pub bytes_sent: Option<u64>,
    /// Bytes that the peer acknowledged; the SYN and the FIN count as one each.
    pub bytes_acked: u64,
    /// Bytes received in order; the FIN counts as one.
    pub bytes_received: u64,
    /// Bytes in the send buffer that were not sent yet (kernel 4.6).
    pub bytes_not_sent: Option<u32>,
    /// Segments sent (kernel 4.2).
    pub segments_sent: Option<u32>,
    /// Segments received (kernel 4.2).
    pub segments_received: Option<u32>,
    /// Most recent delivery rate, bytes per second (kernel 4.9).
    pub delivery_rate: Option<u64>,
    /// Pacing rate, bytes per second; `None`: not paced.
    pub pacing_rate: Option<u64>,
    /// Time spent with data to send, microseconds (kernel 4.10).
    pub busy_us: Option<u64>,
    /// Part of the busy time limited by the peer's receive window, microseconds (kernel 4.10).
    pub window_limited_us: Option<u64>,
    /// Part of the busy time limited by the send buffer, microseconds (kernel 4.10).
    pub buffer_limited_us: Option<u64>,
    /// Probes sent without an answer: keepalives, or for a closed receive window.
    #[serde(skip)]
    pub unanswered_probes: u8,
    /// How often the retransmission timeout was doubled since the last acknowledgment.
    #[serde(skip)]
    pub backoff: u8,
    /// Segments that the peer has received, selectively acknowledged ones included (kernel 4.18).
    #[serde(skip)]
    pub delivered: Option<u32>,
    /// Time since the last acknowledgment was received, of whatever, milliseconds.
    #[serde(skip)]
    pub last_ack_ms: u32,
    /// Window scales of the peer and of this end (RFC 7323, section 2.2); `None` if unused or if the connection is
    /// closed.
    #[serde(skip)]
    pub window_scales: Option<(u8, u8)>,
}

/// State of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the RFC's own names")]
pub enum State {
    Established,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Closed,
    CloseWait,
    LastAck,
    Listen,
    Closing,
}

impl State {
    /// The state with this number in the kernel's `tcp_states.h`.
    pub(crate) fn from_number(number: u8) -> Option<State> {
        Some(match number {
            1 => State::Established,
            2 => State::SynSent,
            // 12 is a connection request, which has no socket yet.
            3 | 12 => State::SynReceived,
            4 => State::FinWait1,
            5 => State::FinWait2,
            6 => State::TimeWait,
            7 => State::Closed,
            8 => State::CloseWait,
            9 => State::LastAck,
            10 => State::Listen,
            11 => State::Closing,
            _ => return None,
        })
    }
}

impl TcpInfo {
    /// The payload bytes that the subflow was given so far, sent or not, without retransmissions (kernel 4.19).
    #[must_use]
    pub fn assigned_bytes(&self) -> Option<u64> {
        let sent = self.bytes_sent?.saturating_sub(self.bytes_retransmitted?);
        Some(sent + u64::from(self.bytes_not_sent?))
    }

    /// Parses a `struct tcp_info`; `None` if it is shorter than that of kernel 4.1 or its state is unknown.
    pub(crate) fn parse(bytes: &[u8]) -> Option<TcpInfo> {
        Some(TcpInfo {
            state: State::from_number(u8_at(bytes, 0)?)?,
            unanswered_probes: u8_at(bytes, 3)?,
            backoff: u8_at(bytes, 4)?,
            last_ack_ms: u32_at(bytes, 56)?,
            rto_us: u32_at(bytes, 8)?,
            mss: u32_at(bytes, 16)?,
            unacked: u32_at(bytes, 24)?,
            lost: u32_at(bytes, 32)?,
            rtt_us: u32_at(bytes, 68)?,
            rtt_variance_us: u32_at(bytes, 72)?,
            ssthresh: Some(u32_at(bytes, 76)?).filter(|segments| *segments < INFINITE_SSTHRESH),
            cwnd: u32_at(bytes, 80)?,
            retransmissions: u32_at(bytes, 100)?,
            pacing_rate: Some(u64_at(bytes, 104)?).filter(|rate| *rate != u64::MAX),
            bytes_acked: u64_at(bytes, 120)?,
            bytes_received: u64_at(bytes, 128)?,
            segments_sent: u32_at(bytes, 136),
            segments_received: u32_at(bytes, 140),
            bytes_not_sent: u32_at(bytes, 144),
            min_rtt_us: u32_at(bytes, 148).filter(|rtt| *rtt != u32::MAX),
            delivery_rate: u64_at(bytes, 160),
            busy_us: u64_at(bytes, 168),
            window_limited_us: u64_at(bytes, 176),
            buffer_limited_us: u64_at(bytes, 184),
            delivered: u32_at(bytes, 192),
            bytes_sent: u64_at(bytes, 200),
            bytes_retransmitted: u64_at(bytes, 208),
            peer_window: u32_at(bytes, 228),
            window_scales: (u8_at(bytes, 5)? & TCPI_OPT_WSCALE != 0)
                .then_some((u8_at(bytes, 6)? & 0xf, u8_at(bytes, 6)? >> 4)),
        })
    }
}

const TCPI_OPT_WSCALE: u8 = 4;
/// `TCP_INFINITE_SSTHRESH`
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
