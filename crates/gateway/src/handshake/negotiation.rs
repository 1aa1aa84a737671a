//! Judges the handshake of every connection by one policy, for main connections and witnesses alike.

use std::io;

use plait_linux::cgroup::{self, Cgroup};
use plait_linux::privileges::MissingCapabilities;
use plait_proto::close_reason::CloseReason;
use plait_proto::option::Mode;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::net::TcpStream;
use tracing::{debug, warn};

use super::capable_flag::CapableFlag;
use super::failure::FailureReason;
use super::negotiator::Negotiator;
use super::shared::SharedNegotiation;
use crate::bpf::BpfError;
use crate::error::{ProtectionError, StartError};
use crate::protection::{Agreement, NegotiationSignal, PlainReason, ProtectionPolicy, Refusal};
use crate::socket::has_mptcp;
use crate::subflow_receive_buffer::SubflowReceiveBuffer;
use crate::unsent_limit::UnsentLimit;
use crate::warn_once::WarnOnce;

/// Checks whether something else on this host prevents protection.
pub(crate) type CheckHost = fn() -> Result<(), ProtectionError>;

/// Why the peer reset a connection before this end had noticed that it was open, as far as that is known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResetAtStart {
    #[error(transparent)]
    Refused(Refusal),
    #[error("its gateway ended the connection: {0}")]
    Ended(CloseReason),
}

impl From<ResetAtStart> for io::Error {
    fn from(reset: ResetAtStart) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, reset)
    }
}

/// What every handshake of a gateway is judged by.
pub(crate) struct Negotiation {
    policy: ProtectionPolicy,
    kernel: Option<KernelNegotiation>,
    /// The one that the gateway is in if it does not negotiate; `None` if it may not create one.
    cgroup_if_off: Option<GatewayCgroup>,
    pub(crate) warn_once: WarnOnce,
}

/// Dropped in this order: first the programs, then the cgroup that they are attached to.
struct KernelNegotiation {
    negotiator: Negotiator,
    flag: Option<CapableFlag>,
    cgroup: GatewayCgroup,
}

/// The cgroup of a gateway, and what sizes the buffers of the sockets in it. Dropped in this order.
struct GatewayCgroup {
    _unsent_limit: Option<UnsentLimit>,
    _receive_buffer: Option<SubflowReceiveBuffer>,
    cgroup: Cgroup,
}

impl GatewayCgroup {
    /// Moves this process into a cgroup. The buffers of sockets that it creates from then on are sized.
    fn enter(cgroup: Cgroup) -> Result<GatewayCgroup, cgroup::Error> {
        let unsent_limit = UnsentLimit::attach(&cgroup)
            .inspect_err(|error| debug!("subflows hold as much as the kernel hands to them: {error}"));
        let receive_buffer = SubflowReceiveBuffer::attach(&cgroup)
            .inspect_err(|error| debug!("subflows get the receive buffer of their connection late: {error}"));
        cgroup.enter()?;
        Ok(GatewayCgroup { _unsent_limit: unsent_limit.ok(), _receive_buffer: receive_buffer.ok(), cgroup })
    }

    /// Creates and enters a cgroup for a gateway that does not negotiate, which works without one as well.
    fn create_if_permitted() -> Option<GatewayCgroup> {
        if !has_mptcp() || MissingCapabilities::for_bpf().is_some() {
            return None;
        }
        let entered = Cgroup::create_below_current("gateway").and_then(GatewayCgroup::enter);
        entered.inspect_err(|error| debug!("the gateway has no cgroup of its own: {error}")).ok()
    }
}

impl KernelNegotiation {
    fn start(
        policy: ProtectionPolicy,
        signal: NegotiationSignal,
        check: CheckHost,
        other: Option<SharedNegotiation>,
    ) -> Result<KernelNegotiation, ProtectionError> {
        if !has_mptcp() {
            return Err(ProtectionError::Mptcp);
        }
        if let Some(missing) = MissingCapabilities::for_bpf() {
            return Err(ProtectionError::Privileges(missing));
        }
        check()?;
        let cgroup = match &other {
            Some(other) => Cgroup::of_process(other.process),
            None => Cgroup::create_below_current("gateway"),
        };
        let cgroup = cgroup.map_err(ProtectionError::Cgroup)?;
        let negotiator = match other {
            Some(other) => Negotiator::take_over(policy, signal, other)?,
            None => Negotiator::attach(policy, signal, &cgroup)?,
        };
        let flag = match signal {
            NegotiationSignal::Option => None,
            NegotiationSignal::Flag => Some(CapableFlag::attach(&cgroup)?),
        };
        let cgroup = GatewayCgroup::enter(cgroup).map_err(ProtectionError::Cgroup)?;
        // Keys are in memory from now on: no core dumps, and no ptrace by other processes of this user.
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            debug!("cannot disable core dumps: {error}");
        }
        Ok(KernelNegotiation { negotiator, flag, cgroup })
    }
}

impl Negotiation {
    /// Negotiates for sockets of this process that are created from now on, and for those of the other process.
    ///
    /// If this host cannot protect, a preferred mode becomes `off`, with a warning; a required one is an error.
    pub(crate) fn start(
        policy: ProtectionPolicy,
        signal: NegotiationSignal,
        check: CheckHost,
        other: Option<SharedNegotiation>,
    ) -> Result<Negotiation, StartError> {
        let (policy, kernel) = match policy.mode() {
            Mode::Off => (policy, None),
            mode => match KernelNegotiation::start(policy, signal, check, other) {
                Ok(kernel) => (policy, Some(kernel)),
                Err(reason) if policy.requires() => return Err(StartError::Protection { mode, reason }),
                Err(reason) => {
                    warn!(
                        "connections will be unprotected: mode '{mode}' cannot be negotiated here: {reason}"
                    );
                    (ProtectionPolicy::Off, None)
                }
            },
        };
        let cgroup_if_off = if kernel.is_none() { GatewayCgroup::create_if_permitted() } else { None };
        Ok(Negotiation { policy, kernel, cgroup_if_off, warn_once: WarnOnce::default() })
    }

    /// The policy in force: `Off` if this host cannot protect.
    pub(crate) fn policy(&self) -> ProtectionPolicy {
        self.policy
    }

    /// What another process needs to go on with it; `None` if none is in force, or it is by a flag, which is tied to this process.
    pub(crate) fn share(&self) -> io::Result<Option<SharedNegotiation>> {
        let kernel = self.kernel.as_ref().filter(|kernel| kernel.flag.is_none());
        kernel.map(|kernel| kernel.negotiator.share()).transpose()
    }

    /// Puts the programs in the place of those of the other process, if there is one.
    pub(crate) fn replace_programs(&self) -> Result<(), BpfError> {
        self.kernel.as_ref().map_or(Ok(()), |kernel| kernel.negotiator.replace_programs())
    }

    /// The cgroup of its own that the gateway is in: always, if it negotiates.
    pub(crate) fn cgroup(&self) -> Option<&Cgroup> {
        let kernel = self.kernel.as_ref().map(|kernel| &kernel.cgroup);
        kernel.or(self.cgroup_if_off.as_ref()).map(|entered| &entered.cgroup)
    }

    /// Judges a connection's handshake by the policy in force or a stricter one. Warns, once per peer, if it is carried
    /// unprotected although a mode is preferred.
    pub(crate) async fn agreement(
        &self,
        policy: ProtectionPolicy,
        far: &TcpStream,
    ) -> Result<Agreement, Refusal> {
        let judged = match &self.kernel {
            Some(kernel) => kernel.negotiator.agreement(policy, far).await,
            None => policy.judge_plain(PlainReason::Off),
        };
        if let (Ok(agreement), Ok(peer)) = (&judged, far.peer_addr()) {
            let peer = peer.ip().to_canonical();
            match agreement {
                Agreement::Plain(reason) => self.warn_once.plain(peer, policy.mode(), *reason),
                Agreement::Protected(_) => self.warn_once.protected(peer),
            }
        }
        judged
    }

    /// Tells the peer why its connection failed; if the peer ended it, returns why, as far as it told.
    pub(crate) fn failed(&self, far: &TcpStream, reason: FailureReason) -> Option<CloseReason> {
        match reason.close_reason() {
            Some(reason) => {
                self.set_close_reason(far, reason);
                None
            }
            None => self.close_reason_of_peer(far),
        }
    }

    /// Tells the peer, if it speaks plait, why this end is about to reset a connection.
    pub(crate) fn set_close_reason(&self, far: &TcpStream, reason: CloseReason) {
        if let Some(kernel) = &self.kernel {
            kernel.negotiator.set_close_reason(far, reason);
        }
    }

    /// Why the peer reset a connection that was opened here just now.
    pub(crate) fn reset_at_start(&self, far: &TcpStream) -> Option<ResetAtStart> {
        let kernel = self.kernel.as_ref()?;
        let refused = kernel.negotiator.refusal_of_peer(self.policy, far).map(ResetAtStart::Refused);
        refused.or_else(|| kernel.negotiator.close_reason_of_peer(far).map(ResetAtStart::Ended))
    }

    /// Why the peer reset a connection, as far as it told. Nothing authenticates it.
    pub(crate) fn close_reason_of_peer(&self, far: &TcpStream) -> Option<CloseReason> {
        self.kernel.as_ref()?.negotiator.close_reason_of_peer(far)
    }

    /// Whether the peer, or an attacker in its name, has opened a further subflow.
    pub(crate) fn has_joins(&self, far: &TcpStream) -> bool {
        self.kernel.as_ref().is_none_or(|kernel| kernel.negotiator.has_joins(far))
    }

    /// Whether the peer opened a further subflow before its first flight had arrived.
    pub(crate) fn has_early_subflow(&self, far: &TcpStream) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.negotiator.has_early_subflow(far))
    }
}
