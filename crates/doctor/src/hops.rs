//! The routers on a path, and whether the MPTCP option of a SYN arrives at each.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use crate::exchange::Prober;
use crate::syn::{Answer, Syn, SynKind};

/// A path's routers as far as they answer, in order of distance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The routers that answered.
    pub hops: Vec<Hop>,
    /// How many hops away the destination is; `None` if it did not answer.
    pub destination: Option<u8>,
}

/// A router that answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// How many hops away it is, from 1.
    pub distance: u8,
    /// Its address.
    pub address: IpAddr,
    /// Whether the SYN arrived there with its MPTCP option; `None` if the router quotes too little to tell.
    pub mptcp: Option<bool>,
}

impl Trace {
    /// The last router where the option arrived, and the first where it did not. `None`: none is known.
    pub fn boundary(&self) -> (Option<Hop>, Option<Hop>) {
        let missing = self.hops.iter().position(|hop| hop.mptcp == Some(false));
        let before = &self.hops[..missing.unwrap_or(self.hops.len())];
        let last = before.iter().rev().find(|hop| hop.mptcp == Some(true));
        (last.copied(), missing.map(|index| self.hops[index]))
    }

    /// The last router that answered.
    pub fn last(&self) -> Option<Hop> {
        self.hops.last().copied()
    }
}

/// Sends SYNs with growing hop limits until the destination answers, or until none does any more.
pub(crate) fn trace(prober: &mut Prober, kind: SynKind) -> io::Result<Trace> {
    let mut trace = Trace::default();
    for first in (1..=MAX_HOPS).step_by(AT_ONCE.into()) {
        let syns: Vec<Syn> =
            (first..first + AT_ONCE).map(|hop_limit| Syn { hop_limit, ..prober.syn(kind) }).collect();
        let outcomes = prober.exchange(&syns, 2, Duration::from_secs(1))?;
        let known = trace.hops.len();
        for (syn, outcome) in syns.iter().zip(outcomes) {
            match outcome.answer {
                Some(Answer::Icmp { from: address, mptcp, .. }) => {
                    trace.hops.push(Hop { distance: syn.hop_limit, address, mptcp });
                }
                Some(Answer::Accepted { .. } | Answer::Reset { .. }) => {
                    trace.destination = Some(syn.hop_limit);
                    return Ok(trace);
                }
                None => {}
            }
        }
        if trace.hops.len() == known {
            break;
        }
    }
    Ok(trace)
}

const MAX_HOPS: u8 = 32;
/// Few enough that the destination does not take them for a flood.
const AT_ONCE: u8 = 8;
