//! Whether the two ends of a connection agreed on a mode, settled inside its TCP handshake.
//!
//! `bpf/negotiate.bpf.c` writes and reads the option; this module attaches it to the gateway's own cgroup and reads,
//! per socket, what came of it. The kernel module reads it itself ([`crate::kmod`]). Parse, don't validate: an [`Agreement`] is the only way to a connection's transforms
//! ([`crate::establish`]), so no byte can be carried before its handshake was judged.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bytemuck::Zeroable;
use libbpf_rs::MapHandle;
use plait_linux::mptcp::{Info, Key};
use zeroize::Zeroize;

use crate::bindings::{
    PLAIT_JOINED, PLAIT_JOINED_EARLY, PLAIT_OUTCOME_FALLBACK, PLAIT_OUTCOME_NEGOTIATED,
    PLAIT_OUTCOME_NO_COMMON_MODE, PLAIT_OUTCOME_PLAIN, PLAIT_OUTCOME_UNCONFIRMED, plait_negotiate_settings,
    plait_verdict,
};
use crate::bpf::{self, BpfError, id, lookup};
use crate::mode::Policy;
use crate::skeleton::negotiate::NegotiateSkelBuilder;

/// How long an accepted socket may be without a verdict: the program writes it a moment after accept() can return, which on
/// a machine with much to do is a long one.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(3);

/// Negotiates for every MPTCP connection of one cgroup while it lives.
pub(crate) struct Negotiator {
    verdicts: MapHandle,
    outcomes: MapHandle,
    programs: bpf::Programs,
}

/// What the kernel says of a handshake; holds its keys, and wipes them.
struct Verdict(plait_verdict);

impl Drop for Verdict {
    fn drop(&mut self) {
        self.0.local_key.zeroize();
        self.0.remote_key.zeroize();
    }
}

/// What a handshake came to, before the policy has judged it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unprotected {
    /// The peer said nothing of plait.
    Silent,
    /// The peer speaks plait, but shares no mode or version.
    NoCommonMode,
    /// The connection fell back to TCP, so there are no MPTCP keys.
    Fallback,
    /// This gateway's own mode is off.
    Off,
}

/// Why a connection is not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The policy requires protection and the peer did not answer the offer (or made none).
    #[error("protection is required, and the peer did not negotiate: run plait there, or drop --require")]
    NotNegotiated,
    /// The policy requires protection and the peer knows only other modes or versions.
    #[error(
        "protection is required, and the peer offers no mode in common: use the same --mode on both ends"
    )]
    NoCommonMode,
    /// The policy requires protection and the connection is plain TCP.
    #[error(
        "protection is required, and the connection fell back to TCP, which has no MPTCP keys: \
         is MPTCP enabled at the peer, or does something on the path strip its options?"
    )]
    Fallback,
    /// The peer's identity is demanded, and the connection is not sealed.
    #[error(
        "the peer's identity is demanded, which only a sealed connection tells: use --mode sealed on both ends"
    )]
    Unidentified,
    /// The two ends may believe different things.
    #[error("the mode was chosen but never confirmed: something on the path strips TCP options one way")]
    Unconfirmed,
    /// A second subflow carried on before the first flight had arrived.
    #[error("the peer opened a further subflow before its first flight had arrived on the trusted path")]
    EarlySubflow,
    /// The kernel never said what the handshake came to.
    #[error("the outcome of the handshake is not known")]
    NoVerdict,
}

/// A connection that may be carried, and how.
pub(crate) enum Agreement {
    /// Plain, for this reason.
    Plain(Unprotected),
    /// As both ends agreed.
    Protected(Negotiated),
}

/// What both ends agreed on, and the secrets that MPTCP gives them.
pub(crate) struct Negotiated {
    /// The one bit of the handshake option that was chosen.
    pub(crate) chosen: u8,
    /// All that the initiator offered.
    pub(crate) offered: u8,
    pub(crate) local: Key,
    pub(crate) remote: Key,
}

impl Negotiator {
    /// Attaches to a cgroup that holds only the gateway; must precede the sockets it is to negotiate for.
    pub(crate) fn attach(policy: Policy, cgroup: impl AsFd) -> Result<Negotiator, BpfError> {
        let modes = policy.mode().offer().into();
        let mut negotiator = Negotiator::load(&plait_negotiate_settings { modes, ..Zeroable::zeroed() })?;
        negotiator.negotiate_in(cgroup)?;
        Ok(negotiator)
    }

    /// Loads what negotiates, attached to nothing yet.
    pub(crate) fn load(settings: &plait_negotiate_settings) -> Result<Negotiator, BpfError> {
        let mut storage = MaybeUninit::uninit();
        let skeleton = bpf::load("negotiate", NegotiateSkelBuilder::default(), &mut storage)?;
        bpf::write_settings(&skeleton.maps.settings, settings)?;
        Ok(Negotiator {
            verdicts: bpf::handle(&skeleton.maps.verdicts)?,
            outcomes: bpf::handle(&skeleton.maps.outcomes)?,
            programs: bpf::Programs::of(&skeleton)?,
        })
    }

    /// Attaches to a cgroup; must precede the sockets it is to negotiate for.
    pub(crate) fn negotiate_in(&mut self, cgroup: impl AsFd) -> Result<(), BpfError> {
        self.programs.attach(cgroup)
    }

    /// Negotiates no more; what it found out remains to be read.
    pub(crate) fn detach(&mut self) {
        self.programs.detach();
    }

    /// The kernel's id of the map of verdicts.
    pub(crate) fn verdicts(&self) -> Result<u32, BpfError> {
        id(&self.verdicts)
    }

    /// The ring buffer of outcomes, if the settings enable it.
    pub(crate) fn outcomes(&self) -> &MapHandle {
        &self.outcomes
    }

    fn verdict(&self, socket: &impl AsFd) -> Option<Verdict> {
        let descriptor = socket.as_fd().as_raw_fd();
        lookup(&self.verdicts, &descriptor.to_ne_bytes()).ok().flatten().map(Verdict)
    }

    async fn settled_verdict(&self, socket: &impl AsFd) -> Option<Verdict> {
        let patient = async {
            loop {
                if let Some(verdict) = self.verdict(socket) {
                    return verdict;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(VERDICT_TIMEOUT, patient).await.ok()
    }

    /// Judges the handshake of a connected or accepted socket by the policy.
    pub(crate) async fn agreement(&self, policy: Policy, socket: &impl AsFd) -> Result<Agreement, Refusal> {
        let verdict = self.settled_verdict(socket).await.ok_or(Refusal::NoVerdict)?;
        let reason = match u32::from(verdict.0.outcome) {
            PLAIT_OUTCOME_NEGOTIATED => return protected(&verdict, socket),
            PLAIT_OUTCOME_PLAIN => Unprotected::Silent,
            PLAIT_OUTCOME_NO_COMMON_MODE => Unprotected::NoCommonMode,
            PLAIT_OUTCOME_FALLBACK => Unprotected::Fallback,
            PLAIT_OUTCOME_UNCONFIRMED => return Err(Refusal::Unconfirmed),
            _ => return Err(Refusal::NoVerdict),
        };
        unprotected(policy, reason)
    }

    /// Whether the peer opened a further subflow before any data of the first flight had arrived.
    pub(crate) fn early_subflow(&self, socket: &impl AsFd) -> bool {
        self.verdict(socket).is_some_and(|verdict| u32::from(verdict.0.joined) & PLAIT_JOINED_EARLY != 0)
    }

    /// Whether the peer, or somebody in its name, has opened any further subflow.
    pub(crate) fn joined(&self, socket: &impl AsFd) -> bool {
        self.verdict(socket).is_none_or(|verdict| u32::from(verdict.0.joined) & PLAIT_JOINED != 0)
    }
}

/// What the policy says of a connection that did not negotiate.
pub(crate) fn unprotected(policy: Policy, reason: Unprotected) -> Result<Agreement, Refusal> {
    if !policy.requires() {
        return Ok(Agreement::Plain(reason));
    }
    Err(match reason {
        Unprotected::Silent | Unprotected::Off => Refusal::NotNegotiated,
        Unprotected::NoCommonMode => Refusal::NoCommonMode,
        Unprotected::Fallback => Refusal::Fallback,
    })
}

fn protected(Verdict(verdict): &Verdict, socket: &impl AsFd) -> Result<Agreement, Refusal> {
    // Both ends have confirmed: from here on there is no way back to plain.
    if Info::of(socket).map_or(true, |info| info.fallback) {
        return Err(Refusal::Unconfirmed);
    }
    let local = Key::new(verdict.local_key.to_be_bytes());
    let remote = Key::new(verdict.remote_key.to_be_bytes());
    Ok(Agreement::Protected(Negotiated { chosen: verdict.mode, offered: verdict.offered, local, remote }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plait_proto::option::Mode;

    use crate::mode::Requirement;

    #[test]
    fn prefer_carries_plain_and_require_refuses() {
        let prefer = Policy::new(Mode::Xor64, None).unwrap();
        let require = Policy::new(Mode::Xor64, Some(Requirement::Mode)).unwrap();
        for reason in [Unprotected::Silent, Unprotected::NoCommonMode, Unprotected::Fallback] {
            let carried = unprotected(prefer, reason);
            assert!(
                carried.is_ok_and(|agreed| matches!(agreed, Agreement::Plain(because) if because == reason))
            );
            assert!(unprotected(require, reason).is_err());
        }
    }
}
