//! What a gateway is configured with.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use plait_proto::codec::records::Padding;
use plait_proto::option::Mode;
use plait_scheduler::SchedulerConfig;

use crate::error::StartError;
use crate::inbound::ServiceName;
use crate::monitor::Monitor;
use crate::protection::{NegotiationSignal, ProtectionPolicy};
use crate::side_connections::Redundancy;
use crate::trust::Identities;

/// The time after which a gateway may be configured to renew the keys of a connection; the longest is the default.
pub const REKEY_AFTER: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// A gateway's configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The command it serves, for reports.
    pub command: &'static str,
    /// Whether it opens connections, which takes descriptors for the programs that redirect them and for their paths.
    pub opens_connections: bool,
    /// How its connections are protected.
    pub policy: ProtectionPolicy,
    /// What negotiates that in the TCP handshake; a flag takes mode `xor64`.
    pub signal: NegotiationSignal,
    /// Its key pair and the keys of its peers, for mode `sealed`.
    pub identities: Identities,
    /// Whether handshakes of mode `sealed` that it starts exchange keys with ML-KEM-768 as well as with X25519.
    pub hybrid: bool,
    /// The padding of what it sends, if not none; takes mode `sealed`.
    pub padding: Option<Padding>,
    /// The time after which it renews the keys of the connections that it opens, from [`REKEY_AFTER`], if not the longest;
    /// takes mode `sealed`.
    pub rekey_after: Option<Duration>,
    /// The writes of which it sends copies on each path, to peers that do so, too; takes mode `sealed`.
    pub redundancy: Option<Redundancy>,
    /// What peers may ask for in mode `sealed`; empty: the port that is listened on.
    pub services: Vec<ServiceName>,
    /// The congestion control of its connections, if not the host's default, or cubic where that is bbr.
    pub congestion_control: Option<String>,
    /// The scheduler of its connections, which is a congestion control as well: not with another one.
    pub scheduler: Option<SchedulerConfig>,
    /// Connections carried at once; further ones wait, established, for one to end.
    pub max_connections: usize,
    /// Those of them that one peer, by its IPv4 address or /64 of IPv6, may have with a [service](Gateway::serve).
    pub max_connections_per_peer: usize,
    /// How long live connections may take to end after a stop was requested.
    pub drain: Duration,
    /// Does what takes root, if this process gives it up.
    pub monitor: Option<Arc<Monitor>>,
}

impl Settings {
    /// Checks that the settings fit together.
    pub(crate) fn prepare(&mut self) -> Result<(), StartError> {
        if let Some(monitor) = &self.monitor {
            self.identities.set_monitor(monitor);
        }
        let Settings { policy, identities, padding, rekey_after, redundancy, .. } = &*self;
        if policy.mode() != Mode::Sealed
            && (identities.authenticates_peers() || identities.authenticates_clients())
        {
            return Err(StartError::Identities(policy.mode()));
        }
        if policy.mode() != Mode::Sealed
            && (padding.is_some() || rekey_after.is_some() || redundancy.is_some())
        {
            return Err(StartError::Records(policy.mode()));
        }
        if self.signal == NegotiationSignal::Flag && policy.mode() != Mode::Xor64 {
            return Err(StartError::Flag(policy.mode()));
        }
        Ok(())
    }
}
