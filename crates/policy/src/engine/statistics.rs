//! What the loaded policies have counted.

use bytemuck::Pod;
use libbpf_rs::{MapCore, MapFlags};
use serde::Serialize;

use super::objects::Objects;
use super::state::State;
use super::{Error, flows};
use crate::bindings::{
    PLAIT_CONNECTIONS_SEEN, PLAIT_FLOWS_SEEN, PLAIT_LEFT_BAD_OPTIONS, PLAIT_LEFT_EVENT, PLAIT_LEFT_EXTENSION,
    PLAIT_LEFT_FRAGMENT, PLAIT_LEFT_MALFORMED, PLAIT_LEFT_NO_MEMORY, PLAIT_LEFT_WRONG_CHECKSUM,
    plait_counter,
};
use crate::{Hook, Policy};

/// What was counted since each policy, chain and actor was loaded; replacing a policy keeps the counts of what it has
/// in common with the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// By policy, in the order in which they were loaded.
    pub policies: Vec<PolicyStatistics>,
    /// Packets that were left alone.
    pub left_alone: LeftAlone,
    /// Subflows that are remembered.
    pub flows: u64,
    /// Subflows that became known.
    pub flows_seen: u64,
    /// Connections that became known.
    pub connections_seen: u64,
}

/// What the chains of a policy have counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PolicyStatistics {
    /// The policy's name.
    pub name: String,
    /// In the order of its file.
    pub chains: Vec<ChainStatistics>,
}

/// What a chain and its actors have counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChainStatistics {
    /// The chain's name.
    pub name: String,
    /// Its hook.
    pub hook: Hook,
    /// Packets that its selector chose.
    #[serde(flatten)]
    pub count: Count,
    /// In the order in which they act.
    pub actors: Vec<ActorStatistics>,
}

/// What an actor has counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ActorStatistics {
    /// Its name in the policy.
    pub name: String,
    /// Packets that it was asked to act on.
    #[serde(flatten)]
    pub count: Count,
}

/// Of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// How many.
    pub packets: u64,
    /// Their bytes, from the IP header on; of segments that are sent as one, all.
    pub bytes: u64,
    /// Those with which an actor did what it is for.
    pub hits: u64,
    /// Those with which an actor could not do what it should.
    pub errors: u64,
    /// Time that was spent on them, as far as timing was on.
    pub nanoseconds: u64,
}

/// Packets that no policy was asked about, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftAlone {
    /// IP fragments.
    pub fragments: u64,
    /// Packets of IPv6 with extension headers.
    pub extension_headers: u64,
    /// Packets whose headers end too early or contradict each other.
    pub malformed: u64,
    /// Packets with TCP options that end too early, are too short, or reach beyond the header.
    pub bad_options: u64,
    /// Packets that an actor would have changed, but whose checksum is wrong.
    pub wrong_checksum: u64,
    /// Subflows for which the map of subflows had no room.
    pub no_memory: u64,
    /// Events that nobody read in time.
    pub lost_events: u64,
}

impl Statistics {
    pub(super) fn read(objects: &Objects, state: &State, policies: &[Policy]) -> Result<Statistics, Error> {
        let count = |policy: &Policy, chain: &str, actor| match state.counter(&policy.name, chain, actor) {
            Some(entry) => Count::read(objects, entry),
            None => Ok(Count::default()),
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
        let left = |reason| Ok::<_, Error>(per_processor::<u64>(objects, "left_alone", reason)?.iter().sum());
        statistics.left_alone = LeftAlone {
            fragments: left(PLAIT_LEFT_FRAGMENT)?,
            extension_headers: left(PLAIT_LEFT_EXTENSION)?,
            malformed: left(PLAIT_LEFT_MALFORMED)?,
            bad_options: left(PLAIT_LEFT_BAD_OPTIONS)?,
            wrong_checksum: left(PLAIT_LEFT_WRONG_CHECKSUM)?,
            no_memory: left(PLAIT_LEFT_NO_MEMORY)?,
            lost_events: left(PLAIT_LEFT_EVENT)?,
        };
        statistics.flows = flows::count(objects.map("flows")?)?;
        statistics.flows_seen = left(PLAIT_FLOWS_SEEN)?;
        statistics.connections_seen = left(PLAIT_CONNECTIONS_SEEN)?;
        Ok(statistics)
    }
}

impl Count {
    fn read(objects: &Objects, entry: u32) -> Result<Count, Error> {
        let mut count = Count::default();
        for counter in per_processor::<plait_counter>(objects, "counters", entry)? {
            count.packets += counter.packets;
            count.bytes += counter.bytes;
            count.hits += counter.hits;
            count.errors += counter.errors;
            count.nanoseconds += counter.nanoseconds;
        }
        Ok(count)
    }
}

/// The values that an entry has on each processor.
fn per_processor<T: Pod>(objects: &Objects, map: &'static str, entry: u32) -> Result<Vec<T>, Error> {
    let values = objects.map(map)?.lookup_percpu(&entry.to_ne_bytes(), MapFlags::ANY);
    let values = values.map_err(Error::kernel("read counters"))?.unwrap_or_default();
    Ok(values.iter().filter_map(|bytes| bytemuck::try_pod_read_unaligned(bytes).ok()).collect())
}
