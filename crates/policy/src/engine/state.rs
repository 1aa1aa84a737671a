//! What is loaded in a network namespace, as a file that outlives a command and survives being killed at any moment.
//!
//! Two files: `loaded.json` is what is loaded, `next.json` what a command is about to load. `next.json` is written
//! before anything changes and removed after all is done; both are written beside and renamed, so that they are whole.
//! Who finds a `next.json` and holds the lock knows that a command was killed, and mends what it left (swap.rs). An
//! empty list of policies in `next.json` says that all is being unloaded.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use plait_wire::Role;
use serde::{Deserialize, Serialize};

use super::Error;
use super::attach::Attached;
use super::own::Numbered;
use crate::bindings::{PLAIT_CHAIN_SLOTS, PLAIT_COUNTER_SLOTS, PLAIT_LEASES};

/// What is loaded in a namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    /// What tells the namespace from others that have or had its inode number.
    pub(super) namespace: String,
    /// Programs at XDP were loaded for packets in several buffers.
    pub(super) frags: bool,
    /// What the loaded programs exchange with Rust, as a number.
    pub(super) contract: u64,
    /// What the last command no longer needs is removed.
    pub(super) settled: bool,
    /// The policies, by the order in which they were first loaded.
    pub(super) policies: Vec<Stored>,
    /// Roles of interfaces, by name.
    pub(super) roles: BTreeMap<String, Role>,
    /// The entry of the map of chains that is written next.
    pub(super) next_chain: u32,
    /// Whose the entries of the map of counters are.
    pub(super) counters: BTreeMap<u32, Counted>,
    /// Whose the numbers of programs of the user's own are.
    pub(super) own: Vec<Numbered>,
    /// Where programs are attached, or about to be.
    pub(super) attached: Vec<Attached>,
}

/// A loaded policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) text: String,
    /// Its entry of the map of leases; 0: it stays until it is unloaded.
    pub(super) lease: u32,
}

/// What a counter is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) policy: String,
    pub(super) chain: String,
    /// The actor's place in the chain and its `enum plait_actor_kind`; `None` for the chain itself.
    pub(super) actor: Option<(usize, u32)>,
}

impl State {
    /// What is loaded.
    pub(super) fn loaded(directory: &Path) -> Result<Option<State>, Error> {
        read(&directory.join(LOADED))
    }

    /// What a command is, or was, about to load.
    pub(super) fn next(directory: &Path) -> Result<Option<State>, Error> {
        read(&directory.join(NEXT))
    }

    /// Says what is about to be loaded.
    pub(super) fn announce(&self, directory: &Path) -> Result<(), Error> {
        self.write(directory, NEXT)
    }

    /// Says that this is loaded, and nothing is about to be.
    pub(super) fn commit(&self, directory: &Path) -> Result<(), Error> {
        self.write(directory, LOADED)?;
        State::withdraw(directory)
    }

    /// Says that nothing is about to be loaded.
    pub(super) fn withdraw(directory: &Path) -> Result<(), Error> {
        let path = directory.join(NEXT);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::directory("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// The policy's entry of the map of leases; 0: none.
    pub(super) fn lease(&self, policy: &str) -> u32 {
        self.policies.iter().find(|stored| stored.name == policy).map_or(0, |stored| stored.lease)
    }

    /// An entry of the map of leases that no policy has.
    pub(super) fn free_lease(&self) -> Result<u32, Error> {
        let is_free = |lease: &u32| self.policies.iter().all(|stored| stored.lease != *lease);
        let (found, most) = (self.policies.len() + 1, PLAIT_LEASES - 1);
        (1..PLAIT_LEASES).find(is_free).ok_or(Error::TooMany { what: "policies for a time", found, most })
    }

    /// Gives counters to what is to be counted: what has one keeps it. Those that are new.
    pub(super) fn count(&mut self, wanted: Vec<Counted>) -> Result<Vec<u32>, Error> {
        let before = std::mem::take(&mut self.counters);
        let mut entries: BTreeMap<_, _> = before.iter().map(|(entry, counted)| (counted, *entry)).collect();
        let mut free = (0..PLAIT_COUNTER_SLOTS).filter(|entry| !before.contains_key(entry));
        let mut new = Vec::new();
        let number = wanted.len();
        for counted in wanted {
            let entry = match entries.remove(&counted) {
                Some(entry) => entry,
                None => {
                    let (what, most) = ("chains and actors", PLAIT_COUNTER_SLOTS);
                    let too_many = || Error::TooMany { what, found: number, most };
                    let entry = free.next().ok_or_else(too_many)?;
                    new.push(entry);
                    entry
                }
            };
            self.counters.insert(entry, counted);
        }
        Ok(new)
    }

    /// The counter of something that [`count`](State::count) gave one.
    pub(super) fn counter(&self, policy: &str, chain: &str, actor: Option<usize>) -> Option<u32> {
        let is_it = |counted: &Counted| {
            let place = counted.actor.map(|(place, _)| place);
            counted.policy == policy && counted.chain == chain && place == actor
        };
        self.counters.iter().find(|(_, counted)| is_it(counted)).map(|(entry, _)| *entry)
    }

    /// Entries of the map of chains for this many, which packets on their way have left long ago.
    pub(super) fn chain_entries(&mut self, number: usize) -> Result<Vec<u16>, Error> {
        // Of the generation that still runs, of this one, and of one that failed.
        let most = PLAIT_CHAIN_SLOTS / 4;
        let first = self.next_chain;
        let count = u32::try_from(number).ok().filter(|count| *count <= most);
        let count = count.ok_or(Error::TooMany { what: "chains", found: number, most })?;
        self.next_chain = (first + count) % PLAIT_CHAIN_SLOTS;
        Ok((first..first + count).map(|entry| (entry % PLAIT_CHAIN_SLOTS) as u16).collect())
    }

    fn write(&self, directory: &Path, name: &str) -> Result<(), Error> {
        let (path, draft) = (directory.join(name), directory.join("draft"));
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::directory("write", &path)(error.into()))?;
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?.write_all(&text)?;
            fs::rename(&draft, &path)
        };
        write().map_err(Error::directory("write", &path))
    }
}

const LOADED: &str = "loaded.json";
const NEXT: &str = "next.json";

fn read(path: &Path) -> Result<Option<State>, Error> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(Error::directory("read", path))?,
    };
    let state = serde_json::from_slice(&text);
    state.map(Some).map_err(|reason| Error::Unreadable { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(chain: &str) -> Counted {
        Counted { policy: "p".into(), chain: chain.into(), actor: None }
    }

    #[test]
    fn what_stays_keeps_its_counter_and_what_comes_gets_one_that_nothing_had() {
        let mut state = State::default();
        state.count(vec![counted("a"), counted("b")]).expect("counters");
        let kept = state.counter("p", "b", None).expect("a counter");
        let new = state.count(vec![counted("b"), counted("c")]).expect("counters");
        assert_eq!(state.counter("p", "b", None), Some(kept));
        assert_eq!(state.counter("p", "c", None), Some(new[0]));
        assert_eq!((new.len(), state.counter("p", "a", None)), (1, None));
        assert!(new[0] > 1, "the counter of what went is not used again at once");
    }

    #[test]
    fn chains_get_entries_that_the_generations_before_did_not_have() {
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
    fn a_state_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut state = State { namespace: "7".into(), ..State::default() };
        state.count(vec![counted("a")]).expect("counters");
        assert!(State::loaded(directory.path()).expect("no state").is_none());
        state.announce(directory.path()).expect("written");
        assert!(State::next(directory.path()).expect("a state").is_some());
        state.commit(directory.path()).expect("written");
        assert!(State::next(directory.path()).expect("no state").is_none());
        let read = State::loaded(directory.path()).expect("a state").expect("a state");
        assert_eq!((read.namespace.as_str(), read.counters), ("7", state.counters));
    }
}
