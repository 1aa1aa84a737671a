//! Negotiates a mode inside the TCP handshake.
//!
//! `bpf/negotiate.bpf.c` writes and reads the option; this module attaches it to a cgroup and reads each socket's outcome.
//! With [`NegotiationSignal::Flag`], `capable_flag` carries the option by a flag.
//! The kernel module reads it itself ([`crate::kmod`]).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use bytemuck::Zeroable;
use libbpf_rs::MapHandle;
use plait_linux::mptcp::{Info, Key};
use plait_proto::close_reason::CloseReason;
use plait_proto::option::{Mode, Variant};
use tracing::debug;
use zeroize::Zeroize;

use super::shared::{SharedNegotiation, link_name};
use crate::bindings::{
    PLAIT_JOINED, PLAIT_JOINED_EARLY, PLAIT_MODE_REQUIRED, PLAIT_OUTCOME_FALLBACK, PLAIT_OUTCOME_NEGOTIATED,
    PLAIT_OUTCOME_NO_COMMON_MODE, PLAIT_OUTCOME_PLAIN, PLAIT_OUTCOME_UNCONFIRMED, plait_close_reasons,
    plait_negotiate_settings, plait_verdict,
};
use crate::bpf::{self, BpfError, id, lookup};
use crate::protection::{Agreement, Negotiated, NegotiationSignal, PlainReason, ProtectionPolicy, Refusal};
use crate::skeleton::negotiate::NegotiateSkelBuilder;

/// How long an accepted socket may be without a verdict: the program writes it just after accept() can return, which takes
/// long on a busy machine.
const VERDICT_TIMEOUT: Duration = Duration::from_secs(3);

/// Attempts to read a verdict before the first pause: mostly it is written within microseconds.
const PROMPT_ATTEMPTS: u32 = 20;

/// The names of maps that processes share.
const VERDICTS: &str = "verdicts";
const CLOSE_REASONS: &str = "close reasons";

/// Negotiates for every MPTCP connection of one cgroup until dropped.
pub(crate) struct Negotiator {
    verdicts: MapHandle,
    outcomes: MapHandle,
    close_reasons: MapHandle,
    programs: bpf::Programs,
    /// Links of another process, by the names of their programs.
    taken: Vec<(String, OwnedFd)>,
    /// What this end offers and accepts.
    offer: u8,
}

/// A handshake's outcome, with its keys, which are wiped when dropped.
struct Verdict(plait_verdict);

impl Drop for Verdict {
    fn drop(&mut self) {
        self.0.local_key.zeroize();
        self.0.remote_key.zeroize();
    }
}

impl Negotiator {
    /// Attaches to a cgroup that holds only the gateway, for sockets created from then on.
    pub(crate) fn attach(
        policy: ProtectionPolicy,
        signal: NegotiationSignal,
        cgroup: impl AsFd,
    ) -> Result<Negotiator, BpfError> {
        let mut negotiator = Negotiator::load(&settings(policy, signal))?;
        negotiator.attach_to(cgroup)?;
        Ok(negotiator)
    }

    /// Goes on with the negotiation of another process, whose programs remain in force until they are
    /// [replaced](Self::replace_programs).
    pub(crate) fn take_over(
        policy: ProtectionPolicy,
        signal: NegotiationSignal,
        mut other: SharedNegotiation,
    ) -> Result<Negotiator, BpfError> {
        let maps = other.take(VERDICTS).and_then(|verdicts| Ok((verdicts, other.take(CLOSE_REASONS)?)));
        let maps = maps.map_err(|error| BpfError::io("go on with the negotiation", error))?;
        let mut negotiator = Negotiator::load_with(&settings(policy, signal), Some(maps))?;
        negotiator.taken = other.take_links();
        Ok(negotiator)
    }

    /// Puts the programs in the place of those of the other process, if there is one.
    pub(crate) fn replace_programs(&self) -> Result<(), BpfError> {
        if self.taken.is_empty() { Ok(()) } else { self.programs.replace(&self.taken) }
    }

    /// What another process needs to go on with this negotiation.
    pub(crate) fn share(&self) -> io::Result<SharedNegotiation> {
        let map = |name: &str, map: &MapHandle| Ok((name.to_owned(), map.as_fd().try_clone_to_owned()?));
        let taken = self.taken.iter().map(|(program, link)| (&**program, link));
        let links = self.programs.named_links().chain(taken);
        let links = links.map(|(program, link)| Ok((link_name(program), link.try_clone()?)));
        let maps = [map(VERDICTS, &self.verdicts), map(CLOSE_REASONS, &self.close_reasons)];
        let descriptors = maps.into_iter().chain(links).collect::<io::Result<_>>()?;
        Ok(SharedNegotiation { process: std::process::id(), descriptors })
    }

    /// Loads the programs without attaching them.
    pub(crate) fn load(settings: &plait_negotiate_settings) -> Result<Negotiator, BpfError> {
        Negotiator::load_with(settings, None)
    }

    /// As [`load`](Self::load), with the maps of verdicts and of close reasons of another process.
    fn load_with(
        settings: &plait_negotiate_settings,
        maps: Option<(OwnedFd, OwnedFd)>,
    ) -> Result<Negotiator, BpfError> {
        let mut storage = MaybeUninit::uninit();
        let builder = NegotiateSkelBuilder::default();
        let skeleton = bpf::load_prepared("negotiate", builder, &mut storage, |open| match &maps {
            Some((verdicts, close_reasons)) => {
                open.maps.verdicts.reuse_fd(verdicts.as_fd())?;
                open.maps.close_reasons.reuse_fd(close_reasons.as_fd())
            }
            None => Ok(()),
        })?;
        bpf::write_settings(&skeleton.maps.settings, settings)?;
        Ok(Negotiator {
            verdicts: bpf::handle(&skeleton.maps.verdicts)?,
            outcomes: bpf::handle(&skeleton.maps.outcomes)?,
            close_reasons: bpf::handle(&skeleton.maps.close_reasons)?,
            programs: bpf::Programs::of(&skeleton)?,
            taken: Vec::new(),
            offer: settings.modes as u8,
        })
    }

    /// Attaches to a cgroup, for sockets created from then on.
    pub(crate) fn attach_to(&mut self, cgroup: impl AsFd) -> Result<(), BpfError> {
        self.programs.attach(cgroup)
    }

    /// Stops negotiating; verdicts remain readable.
    pub(crate) fn detach(&mut self) {
        self.programs.detach();
    }

    /// The id of the map of verdicts.
    pub(crate) fn verdicts_id(&self) -> Result<u32, BpfError> {
        id(&self.verdicts)
    }

    /// The ring buffer of outcome events, if the settings enable them.
    pub(crate) fn outcomes(&self) -> &MapHandle {
        &self.outcomes
    }

    /// The verdict, once the outcome is known.
    fn verdict(&self, socket: &impl AsFd) -> Option<Verdict> {
        let verdict = lookup(&self.verdicts, &socket_key(socket)).ok().flatten().map(Verdict)?;
        (verdict.0.outcome != 0).then_some(verdict)
    }

    async fn settled_verdict(&self, socket: &impl AsFd) -> Option<Verdict> {
        let poll = async {
            let mut attempts = 0;
            loop {
                if let Some(verdict) = self.verdict(socket) {
                    return verdict;
                }
                attempts += 1;
                if attempts < PROMPT_ATTEMPTS {
                    tokio::task::yield_now().await;
                } else {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        };
        tokio::time::timeout(VERDICT_TIMEOUT, poll).await.ok()
    }

    /// Judges the handshake of a connected or accepted socket by the policy.
    pub(crate) async fn agreement(
        &self,
        policy: ProtectionPolicy,
        socket: &impl AsFd,
    ) -> Result<Agreement, Refusal> {
        let verdict = self.settled_verdict(socket).await.ok_or(Refusal::NoVerdict)?;
        let reason = match u32::from(verdict.0.outcome) {
            PLAIT_OUTCOME_NEGOTIATED => return protected(&verdict, socket),
            PLAIT_OUTCOME_PLAIN => PlainReason::NotNegotiated,
            PLAIT_OUTCOME_NO_COMMON_MODE => self.no_common_mode(policy, &verdict)?,
            PLAIT_OUTCOME_FALLBACK => PlainReason::Fallback,
            PLAIT_OUTCOME_UNCONFIRMED => return Err(Refusal::Unconfirmed),
            _ => return Err(Refusal::NoVerdict),
        };
        policy.judge_plain(reason)
    }

    /// Tells the peer, by the reset that follows, why this end ends a connection; only a peer that speaks plait.
    pub(crate) fn set_close_reason(&self, socket: &impl AsFd, reason: CloseReason) {
        let (key, reasons) = (socket_key(socket), plait_close_reasons { own: reason.code(), peer: 0 });
        if let Err(error) = bpf::update(&self.close_reasons, &key, &reasons) {
            debug!("cannot tell the peer why the connection ends: {error}");
        }
    }

    /// The peer's requirement in the handshake that this end does not fulfill.
    pub(crate) fn refusal_of_peer(&self, policy: ProtectionPolicy, socket: &impl AsFd) -> Option<Refusal> {
        let verdict = self.verdict(socket)?;
        let differs = u32::from(verdict.0.outcome) == PLAIT_OUTCOME_NO_COMMON_MODE;
        differs.then(|| self.no_common_mode(policy, &verdict).err()).flatten()
    }

    /// The two ends have no mode in common. A peer that requires its own would refuse the connection.
    fn no_common_mode(
        &self,
        policy: ProtectionPolicy,
        Verdict(verdict): &Verdict,
    ) -> Result<PlainReason, Refusal> {
        let required = PLAIT_MODE_REQUIRED as u8;
        let is_initiator = verdict.offered == self.offer;
        let of_peer = if is_initiator { verdict.mode } else { verdict.offered };
        let peer = Mode::of_bits(of_peer & !required);
        if is_initiator && of_peer & required != 0 {
            return Err(Refusal::PeerRequires { own: policy.mode(), peer });
        }
        Ok(PlainReason::NoCommonMode(peer))
    }

    /// Why the peer ended a connection by a reset, as that claims.
    pub(crate) fn close_reason_of_peer(&self, socket: &impl AsFd) -> Option<CloseReason> {
        let reasons = lookup::<plait_close_reasons>(&self.close_reasons, &socket_key(socket)).ok()??;
        (reasons.peer != 0).then(|| CloseReason::from_code(reasons.peer))
    }

    /// Whether the peer opened a further subflow before any data of the first flight had arrived.
    pub(crate) fn has_early_subflow(&self, socket: &impl AsFd) -> bool {
        self.verdict(socket).is_some_and(|verdict| u32::from(verdict.0.joined) & PLAIT_JOINED_EARLY != 0)
    }

    /// Whether the peer, or an attacker in its name, has opened a further subflow.
    pub(crate) fn has_joins(&self, socket: &impl AsFd) -> bool {
        self.verdict(socket).is_none_or(|verdict| u32::from(verdict.0.joined) & PLAIT_JOINED != 0)
    }
}

/// What the programs do.
fn settings(policy: ProtectionPolicy, signal: NegotiationSignal) -> plait_negotiate_settings {
    let required = policy.requires().into();
    match signal {
        NegotiationSignal::Option => plait_negotiate_settings {
            modes: policy.mode().offer().into(),
            required,
            give_reasons: 1,
            ..Zeroable::zeroed()
        },
        // A reset has no MP_CAPABLE, whose flag could tell a reason.
        NegotiationSignal::Flag => plait_negotiate_settings {
            modes: Variant::Xor64Hmac.bit().into(),
            required,
            by_flag: 1,
            ..Zeroable::zeroed()
        },
    }
}

/// Of maps that store values with sockets.
fn socket_key(socket: &impl AsFd) -> [u8; 4] {
    socket.as_fd().as_raw_fd().to_ne_bytes()
}

fn protected(Verdict(verdict): &Verdict, socket: &impl AsFd) -> Result<Agreement, Refusal> {
    // Both ends have confirmed: from here on the connection is never carried plain.
    if Info::of(socket).map_or(true, |info| info.fallback) {
        return Err(Refusal::Unconfirmed);
    }
    let local = Key::new(verdict.local_key.to_be_bytes());
    let remote = Key::new(verdict.remote_key.to_be_bytes());
    Ok(Agreement::Protected(Negotiated { chosen: verdict.mode, offered: verdict.offered, local, remote }))
}
