//! The state of a network namespace's engine, in files that survive a command killed at any moment.
//!
//! `loaded.json` describes what is loaded, `next.json` what a command is about to load. `next.json` is written before
//! anything changes and removed when everything is done; both are replaced atomically. A process that holds the lock
//! and finds a `next.json` knows that a command was interrupted, and recovers (swap.rs). In `next.json`, an empty
//! list of policies means that everything is being unloaded.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use plait_config::Role;
use serde::{Deserialize, Serialize};

use super::attach::AttachPoint;
use super::custom::CustomSlot;
use super::error::EngineError;
use crate::bindings::{PLAIT_CHAIN_SLOTS, PLAIT_COUNTER_SLOTS, PLAIT_LEASES};

/// What is loaded in a namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    /// The identifier of the namespace.
    pub(super) namespace: String,
    /// XDP programs accept multi-buffer packets.
    pub(super) frags: bool,
    /// The version of the interface between the programs and this crate.
    pub(super) contract: u64,
    /// What only earlier policies needed was removed.
    pub(super) settled: bool,
    /// The policies in the order in which they were first loaded.
    pub(super) policies: Vec<StoredPolicy>,
    /// Roles of interfaces, by name.
    pub(super) roles: BTreeMap<String, Role>,
    /// The next free entry of the map of chains.
    pub(super) next_chain: u32,
    /// The owners of the entries of the map of counters.
    pub(super) counters: BTreeMap<u32, CounterOwner>,
    /// The slots of custom programs.
    pub(super) custom: Vec<CustomSlot>,
    /// Where programs are attached, or about to be.
    pub(super) attached: Vec<AttachPoint>,
}

/// A loaded policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StoredPolicy {
    pub(super) name: String,
    pub(super) text: String,
    /// Its entry of the map of leases; 0: it does not expire.
    pub(super) lease: u32,
}

/// What a counter counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct CounterOwner {
    pub(super) policy: String,
    pub(super) chain: String,
    /// The actor's index in the chain and its `enum plait_actor_kind`; `None` for the chain itself.
    pub(super) actor: Option<(usize, u32)>,
}

impl State {
    /// What is loaded.
    pub(super) fn loaded(directory: &Path) -> Result<Option<State>, EngineError> {
        read(&directory.join(LOADED))
    }

    /// What a command is, or was, about to load.
    pub(super) fn next(directory: &Path) -> Result<Option<State>, EngineError> {
        read(&directory.join(NEXT))
    }

    /// Records what is about to be loaded.
    pub(super) fn write_next(&self, directory: &Path) -> Result<(), EngineError> {
        self.write(directory, NEXT)
    }

    /// Records that this is loaded, and nothing is about to be.
    pub(super) fn commit(&self, directory: &Path) -> Result<(), EngineError> {
        self.write(directory, LOADED)?;
        State::remove_next(directory)
    }

    /// Records that nothing is about to be loaded.
    pub(super) fn remove_next(directory: &Path) -> Result<(), EngineError> {
        let path = directory.join(NEXT);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(EngineError::directory("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// The policy's entry of the map of leases; 0: none.
    pub(super) fn lease(&self, policy: &str) -> u32 {
        self.policies.iter().find(|stored| stored.name == policy).map_or(0, |stored| stored.lease)
    }

    /// A free entry of the map of leases.
    pub(super) fn free_lease(&self) -> Result<u32, EngineError> {
        let is_free = |lease: &u32| self.policies.iter().all(|stored| stored.lease != *lease);
        let (found, max) = (self.policies.len() + 1, PLAIT_LEASES - 1);
        (1..PLAIT_LEASES).find(is_free).ok_or(EngineError::TooMany {
            what: "policies with an expiry",
            found,
            max,
        })
    }

    /// Assigns counters; existing owners keep theirs. Returns the new ones.
    pub(super) fn assign_counters(&mut self, owners: Vec<CounterOwner>) -> Result<Vec<u32>, EngineError> {
        let before = std::mem::take(&mut self.counters);
        let mut entries: BTreeMap<_, _> = before.iter().map(|(entry, counted)| (counted, *entry)).collect();
        let mut free = (0..PLAIT_COUNTER_SLOTS).filter(|entry| !before.contains_key(entry));
        let mut new = Vec::new();
        let number = owners.len();
        for counted in owners {
            let entry = match entries.remove(&counted) {
                Some(entry) => entry,
                None => {
                    let (what, max) = ("chains and actors", PLAIT_COUNTER_SLOTS);
                    let too_many = || EngineError::TooMany { what, found: number, max };
                    let entry = free.next().ok_or_else(too_many)?;
                    new.push(entry);
                    entry
                }
            };
            self.counters.insert(entry, counted);
        }
        Ok(new)
    }

    /// A counter that [`assign_counters`](State::assign_counters) assigned.
    pub(super) fn counter(&self, policy: &str, chain: &str, actor: Option<usize>) -> Option<u32> {
        let is_it = |counted: &CounterOwner| {
            let place = counted.actor.map(|(place, _)| place);
            counted.policy == policy && counted.chain == chain && place == actor
        };
        self.counters.iter().find(|(_, counted)| is_it(counted)).map(|(entry, _)| *entry)
    }

    /// Allocates entries of the map of chains that no packet in flight uses any more.
    pub(super) fn chain_entries(&mut self, number: usize) -> Result<Vec<u16>, EngineError> {
        // Room for the generation in use, this one, and one that failed.
        let max = PLAIT_CHAIN_SLOTS / 4;
        let first = self.next_chain;
        let count = u32::try_from(number).ok().filter(|count| *count <= max);
        let count = count.ok_or(EngineError::TooMany { what: "chains", found: number, max })?;
        self.next_chain = (first + count) % PLAIT_CHAIN_SLOTS;
        Ok((first..first + count).map(|entry| (entry % PLAIT_CHAIN_SLOTS) as u16).collect())
    }

    fn write(&self, directory: &Path, name: &str) -> Result<(), EngineError> {
        let (path, draft) = (directory.join(name), directory.join("draft"));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| EngineError::directory("write", &path)(error.into()))?;
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?.write_all(&text)?;
            fs::rename(&draft, &path)
        };
        write().map_err(EngineError::directory("write", &path))
    }
}

const LOADED: &str = "loaded.json";
const NEXT: &str = "next.json";

fn read(path: &Path) -> Result<Option<State>, EngineError> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(EngineError::directory("read", path))?,
    };
    let state = serde_json::from_slice(&text);
    state.map(Some).map_err(|reason| EngineError::Unreadable { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(chain: &str) -> CounterOwner {
        CounterOwner { policy: "p".into(), chain: chain.into(), actor: None }
    }

    #[test]
    fn existing_chains_keep_counters_and_new_ones_get_unused_counters() {
        let mut state = State::default();
        state.assign_counters(vec![counted("a"), counted("b")]).expect("counters");
        let kept = state.counter("p", "b", None).expect("a counter");
        let new = state.assign_counters(vec![counted("b"), counted("c")]).expect("counters");
        assert_eq!(state.counter("p", "b", None), Some(kept));
        assert_eq!(state.counter("p", "c", None), Some(new[0]));
        assert_eq!((new.len(), state.counter("p", "a", None)), (1, None));
        assert!(new[0] > 1, "a freed counter is not reused at once");
    }

    #[test]
    fn chain_entries_differ_from_those_of_the_previous_generation() {
        let mut state = State::default();
        let mut before = Vec::new();
        for _ in 0..1000 {
            let entries = state.chain_entries(24).expect("entries");
            assert!(
                entries.iter().all(|entry| !before.contains(entry) && u32::from(*entry) < PLAIT_CHAIN_SLOTS)
            );
            before = entries;
        }
        assert!(state.chain_entries(PLAIT_CHAIN_SLOTS as usize).is_err());
    }

    #[test]
    fn state_files_round_trip() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut state = State { namespace: "7".into(), ..State::default() };
        state.assign_counters(vec![counted("a")]).expect("counters");
        assert!(State::loaded(directory.path()).expect("no state").is_none());
        state.write_next(directory.path()).expect("written");
        assert!(State::next(directory.path()).expect("a state").is_some());
        state.commit(directory.path()).expect("written");
        assert!(State::next(directory.path()).expect("no state").is_none());
        let read = State::loaded(directory.path()).expect("a state").expect("a state");
        assert_eq!((read.namespace.as_str(), read.counters), ("7", state.counters));
    }
}
