//! What counters grew by from one sample to the next.

use std::collections::{BTreeMap, HashMap};

use super::{Sample, Subflow};
use crate::mptcp::Token;

/// Compares each sample with the one before.
#[derive(Debug, Default)]
pub struct Growth {
    begun: bool,
    subflows: HashMap<u64, Carried>,
    reinjected: BTreeMap<Token, u64>,
}

/// What a subflow carried, or how much of it since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Payload bytes sent, retransmissions included; before kernel 4.19, those that were acknowledged.
    pub bytes_sent: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes retransmitted.
    pub bytes_retransmitted: u64,
    /// Segments retransmitted.
    pub retransmissions: u64,
}

/// The growth since the sample before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    /// By [`Subflow::id`].
    pub subflows: HashMap<u64, Carried>,
    /// Bytes sent again at the data level, by connection; only of connections that are still there.
    pub reinjected: HashMap<Token, u64>,
}

impl Growth {
    /// The growth since the last call; `None` at the first one, as it is not known when what there is was carried.
    /// What was not there at the last call grew from zero.
    pub fn since_last(&mut self, samples: &[Sample]) -> Option<Grown> {
        let mut grown = Grown::default();
        for subflow in samples.iter().flat_map(|sample| &sample.subflows) {
            let now = Carried::by(subflow);
            let before = match subflow.closed {
                None => self.subflows.insert(subflow.id, now),
                Some(_) => self.subflows.remove(&subflow.id),
            };
            grown.subflows.insert(subflow.id, now.since(before.unwrap_or_default()));
        }
        let mut reinjected = BTreeMap::new();
        for sample in samples {
            let bytes = sample.connection.as_ref().and_then(|connection| connection.bytes_reinjected);
            let Some(bytes) = bytes else { continue };
            let before = self.reinjected.get(&sample.token).copied().unwrap_or(0);
            reinjected.insert(sample.token, bytes);
            grown.reinjected.insert(sample.token, bytes.saturating_sub(before));
        }
        self.reinjected = reinjected;
        let first = !std::mem::replace(&mut self.begun, true);
        (!first).then_some(grown)
    }
}

impl Carried {
    /// All that a subflow has carried.
    pub fn by(subflow: &Subflow) -> Carried {
        let tcp = &subflow.tcp;
        Carried {
            bytes_sent: tcp.bytes_sent.unwrap_or(tcp.bytes_acked),
            bytes_received: tcp.bytes_received,
            bytes_retransmitted: tcp.bytes_retransmitted.unwrap_or(0),
            retransmissions: tcp.retransmissions.into(),
        }
    }

    fn since(self, before: Carried) -> Carried {
        Carried {
            bytes_sent: self.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(before.bytes_received),
            bytes_retransmitted: self.bytes_retransmitted.saturating_sub(before.bytes_retransmitted),
            retransmissions: self.retransmissions.saturating_sub(before.retransmissions),
        }
    }
}
