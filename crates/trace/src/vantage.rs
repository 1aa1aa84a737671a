//! Where along its path a subflow was captured, and therefore which samples measure the path's round trip.

use std::time::Duration;

use crate::sender_stats::SenderStats;

/// Where a direction of a subflow was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vantage {
    /// At the sender: acknowledgements measure the path.
    Sender,
    /// At the receiver: only the sender's echoes of timestamps measure the path.
    Receiver,
    /// Between them.
    Between,
}

/// Share of the round trip that the part of the path beyond the capture point may take, for the capture to count as taken
/// at an end: the error of round-trip times measured there.
const MAX_SHARE: u32 = 10;

/// The same for short paths: what the network stacks of hosts take.
const MAX_TIME: Duration = Duration::from_micros(100);

impl Vantage {
    /// The vantage point, given the shortest round trips seen between the capture and sender, and the capture and receiver;
    /// `None` unless both are known.
    pub(crate) fn of(to_sender: Option<Duration>, to_receiver: Option<Duration>) -> Option<Self> {
        let (to_sender, to_receiver) = (to_sender?, to_receiver?);
        let limit = MAX_TIME.max(to_sender.saturating_add(to_receiver) / MAX_SHARE);
        Some(match () {
            () if to_sender <= limit => Self::Sender,
            () if to_receiver <= limit => Self::Receiver,
            () => Self::Between,
        })
    }
}

/// The shortest round trip between the capture and the receiver in a direction: by the handshake, by acknowledgements of
/// what was sent `there`, or by the timestamps that were echoed on the way `back`.
pub(crate) fn reach(
    by_handshake: Option<Duration>,
    there: &SenderStats,
    back: &SenderStats,
) -> Option<Duration> {
    [by_handshake, there.ack_rtt.min(), back.echo_min].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_where_the_round_trip_is_short() {
        let of = |sender, receiver| {
            let microseconds = |time: u64| Some(Duration::from_micros(time));
            Vantage::of(microseconds(sender), microseconds(receiver))
        };
        assert_eq!(of(35, 21_000), Some(Vantage::Sender));
        assert_eq!(of(21_000, 35), Some(Vantage::Receiver));
        assert_eq!(of(4_000, 17_000), Some(Vantage::Between));
        assert_eq!(of(30, 60), Some(Vantage::Sender));
        assert_eq!(Vantage::of(None, Some(Duration::from_micros(35))), None);
        assert_eq!(Vantage::of(Some(Duration::from_micros(35)), None), None);
    }
}
