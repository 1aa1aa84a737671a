//! Adds MPTCP options to subflows in packets that neither end has sent.
//!
//! Actors add options to passing acknowledgments. On an idle subflow none pass, so this builds one: a repetition of
//! the last state of the subflow, with the option. It acknowledges nothing new; the receiver processes the option.
//! Outgoing packets are sent by a raw socket and routed as usual; incoming ones are handed to this host as if its
//! interface had received them.
//!
//! An injected packet may be lost, and is not retransmitted: MP_PRIO is not acknowledged, ADD_ADDR is by its echo.
//! This requires root, a tracked subflow (a loaded policy with one of the actors `set_backup`, `clear_backup`,
//! `block_subflow`, `add_subflow` or `record`), and for incoming packets Linux 5.18.
//!
//! Injected incoming packets bypass XDP but not TC; outgoing ones pass all chains. `block_subflow` recognizes and
//! passes injected announcements, except in generic XDP.

mod acknowledgment;
mod receive;
mod send;

use std::io;

use plait_wire::BuildError;
use plait_wire::mptcp::{MptcpOption, Priority};

use crate::engine::{Engine, EngineError, FourTuple};
use crate::model::Hook;
use receive::Receiver;

/// Why an option could not be injected.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The subflow is not tracked.
    #[error(
        "the subflow {} - {} is not tracked: no packet was seen since a policy that tracks subflows was loaded",
        .0.local, .0.remote
    )]
    Unknown(FourTuple),
    /// Too little is recorded to build a packet.
    #[error(
        "expected recorded packets of the subflow {} - {} in both directions after its handshake, got too few",
        .0.local, .0.remote
    )]
    TooEarly(FourTuple),
    /// FIN or RST was seen.
    #[error("the subflow {} - {} has ended", .0.local, .0.remote)]
    Ended(FourTuple),
    /// The option does not fit into a TCP header.
    #[error("the option does not fit into a packet: {0}")]
    Option(BuildError),
    /// The engine failed.
    #[error("{0}")]
    Engine(EngineError),
    /// The packet could not be sent.
    #[error("cannot send a packet from {} to {}: {reason}; this requires root", .tuple.local, .tuple.remote)]
    Send {
        /// The subflow.
        tuple: FourTuple,
        /// Why.
        reason: io::Error,
    },
    /// The packet could not be delivered to this host.
    #[error(
        "cannot deliver a packet from {} to this host: {reason}; this requires root and Linux 5.18 or later",
        .tuple.remote
    )]
    Receive {
        /// The subflow.
        tuple: FourTuple,
        /// Why not.
        reason: libbpf_rs::Error,
    },
}

/// Injects options into the tracked subflows of an engine.
#[derive(Debug)]
pub struct Injector<'a> {
    engine: &'a Engine,
    receiver: Receiver,
}

impl<'a> Injector<'a> {
    /// For the tracked subflows of this engine.
    pub fn new(engine: &'a Engine) -> Injector<'a> {
        Injector { engine, receiver: Receiver::default() }
    }

    /// Injects MP_PRIO (RFC 8684, section 3.3.8), which asks its receiver to use the subflow as a backup, or not to: with
    /// [`Hook::Egress`] towards the peer, with [`Hook::Ingress`] towards this host, as if the peer had sent it.
    ///
    /// # Errors
    /// The subflow is not tracked or too little is recorded, or the kernel rejected a request.
    pub fn set_backup(&self, tuple: FourTuple, hook: Hook, backup: bool) -> Result<(), InjectError> {
        let flow = self.engine.flow(tuple).map_err(InjectError::Engine)?;
        let flow = flow.ok_or(InjectError::Unknown(tuple))?;
        let option = MptcpOption::Priority(Priority { backup, address_id: None });
        let packet = acknowledgment::build(tuple, &flow, hook, &option)?;
        let send = || match hook {
            Hook::Egress => send::send(&packet, tuple, flow.interface)
                .map_err(|reason| InjectError::Send { tuple, reason }),
            Hook::Ingress => self
                .receiver
                .receive(&packet, flow.interface)
                .map_err(|reason| InjectError::Receive { tuple, reason }),
        };
        self.engine.run_in_namespace(send).map_err(InjectError::Engine)?
    }
}
