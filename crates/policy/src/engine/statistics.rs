//! The counters of the loaded policies.

use bytemuck::Pod;
use libbpf_rs::{MapCore, MapFlags};
use serde::Serialize;

use super::error::EngineError;
use super::flows;
use super::objects::Objects;
use super::state::State;
use crate::bindings::{
    PLAIT_CONNECTIONS_SEEN, PLAIT_FLOWS_SEEN, PLAIT_LOST_EVENT, PLAIT_SKIPPED_BAD_OPTIONS,
    PLAIT_SKIPPED_EXTENSION, PLAIT_SKIPPED_FRAGMENT, PLAIT_SKIPPED_MALFORMED, PLAIT_SKIPPED_NO_MEMORY,
    PLAIT_SKIPPED_WRONG_CHECKSUM, plait_counter,
};
use crate::model::{Hook, Policy};

/// Counters since each policy, chain and actor was loaded; replacing a policy keeps the counters of unchanged parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// The policies in the order in which they were loaded.
    pub policies: Vec<PolicyStatistics>,
    /// Packets that were skipped.
    pub skipped: SkipCounters,
    /// Subflows that are tracked now.
    pub flows: u64,
    /// Subflows that were ever tracked.
    pub flows_seen: u64,
    /// Connections that were ever tracked.
    pub connections_seen: u64,
}

/// The counters of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyStatistics {
    /// The name of the policy.
    pub name: String,
    /// The chains in file order.
    pub chains: Vec<ChainStatistics>,
}

/// The counters of a chain and its actors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainStatistics {
    /// The name of the chain.
    pub name: String,
    /// Its hook.
    pub hook: Hook,
    /// Packets that its selector matched.
    #[serde(flatten)]
    pub count: Counters,
    /// The actors in order.
    pub actors: Vec<ActorStatistics>,
}

/// The counters of an actor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActorStatistics {
    /// Its name in the policy.
    pub name: String,
    /// Packets it was applied to.
    #[serde(flatten)]
    pub count: Counters,
}

/// Packet counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes from the IP header on; of merged segments, all.
    pub bytes: u64,
    /// Packets on which an actor took effect.
    pub hits: u64,
    /// Packets on which an actor failed.
    pub errors: u64,
    /// Processing time, while it was measured.
    pub nanoseconds: u64,
}

/// Packets that were passed without evaluating chains, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SkipCounters {
    /// IP fragments.
    pub fragments: u64,
    /// IPv6 packets with extension headers.
    pub extension_headers: u64,
    /// Packets with truncated or inconsistent headers.
    pub malformed: u64,
    /// Packets with malformed TCP options.
    pub bad_options: u64,
    /// Packets that an actor would have modified but whose checksum was wrong.
    pub wrong_checksum: u64,
    /// Subflows that did not fit into the map of subflows.
    pub no_memory: u64,
    /// Events that were lost because they were not read in time.
    pub lost_events: u64,
}

impl Statistics {
    pub(super) fn read(
        objects: &Objects,
        state: &State,
        policies: &[Policy],
    ) -> Result<Statistics, EngineError> {
        let count = |policy: &Policy, chain: &str, actor| match state.counter(&policy.name, chain, actor) {
            Some(entry) => Counters::read(objects, entry),
            None => Ok(Counters::default()),
        };
        let mut statistics = Statistics::default();
        for policy in policies {
            let mut chains = Vec::new();
            for chain in &policy.chains {
                let mut actors = Vec::new();
                for (place, actor) in chain.actors.iter().enumerate() {
                    let name = actor.name().to_owned();
                    actors.push(ActorStatistics { name, count: count(policy, &chain.name, Some(place))? });
                }
                let (name, hook) = (chain.name.clone(), chain.hook);
                chains.push(ChainStatistics { name, hook, count: count(policy, &chain.name, None)?, actors });
            }
            statistics.policies.push(PolicyStatistics { name: policy.name.clone(), chains });
        }
        let skipped = |reason| Ok::<_, EngineError>(per_cpu::<u64>(objects, "skipped", reason)?.iter().sum());
        statistics.skipped = SkipCounters {
            fragments: skipped(PLAIT_SKIPPED_FRAGMENT)?,
            extension_headers: skipped(PLAIT_SKIPPED_EXTENSION)?,
            malformed: skipped(PLAIT_SKIPPED_MALFORMED)?,
            bad_options: skipped(PLAIT_SKIPPED_BAD_OPTIONS)?,
            wrong_checksum: skipped(PLAIT_SKIPPED_WRONG_CHECKSUM)?,
            no_memory: skipped(PLAIT_SKIPPED_NO_MEMORY)?,
            lost_events: skipped(PLAIT_LOST_EVENT)?,
        };
        statistics.flows = flows::count(objects.map("flows")?)?;
        statistics.flows_seen = skipped(PLAIT_FLOWS_SEEN)?;
        statistics.connections_seen = skipped(PLAIT_CONNECTIONS_SEEN)?;
        Ok(statistics)
    }
}

impl Counters {
    fn read(objects: &Objects, entry: u32) -> Result<Counters, EngineError> {
        let mut count = Counters::default();
        for counter in per_cpu::<plait_counter>(objects, "counters", entry)? {
            count.packets += counter.packets;
            count.bytes += counter.bytes;
            count.hits += counter.hits;
            count.errors += counter.errors;
            count.nanoseconds += counter.nanoseconds;
        }
        Ok(count)
    }
}

/// The value of an entry on each CPU.
fn per_cpu<T: Pod>(objects: &Objects, map: &'static str, entry: u32) -> Result<Vec<T>, EngineError> {
    let values = objects.map(map)?.lookup_percpu(&entry.to_ne_bytes(), MapFlags::ANY);
    let values = values.map_err(EngineError::kernel("read counters"))?.unwrap_or_default();
    Ok(values.iter().filter_map(|bytes| bytemuck::try_pod_read_unaligned(bytes).ok()).collect())
}
