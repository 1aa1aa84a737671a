//! Selectors and actors of the user's own, among the programs that are called for a packet.
//!
//! Each has a number, the same for its selector and its actor. One whose file has changed gets another number, so that
//! packets on their way meet the old one or the new one; one that has not stays as it is, with what it keeps.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;

use libbpf_rs::libbpf_sys as sys;
use rustix::thread::{MembarrierCommand, membarrier};
use serde::{Deserialize, Serialize};

use super::Error;
use super::objects::Objects;
use crate::Policy;
use crate::bindings::{PLAIT_MAX_OWN, PLAIT_OWN_ACTORS, PLAIT_OWN_SELECTORS};
use crate::compile::ProgramKind;
use crate::own::{File, Own, Owned};

/// A number that is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbered {
    policy: String,
    name: String,
    /// Of the file.
    digest: u64,
    number: u32,
}

/// Which numbers the policies' own selectors and actors have.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) taken: Vec<Numbered>,
    /// Those that are to be loaded: the first number that is new.
    new: Vec<Numbered>,
}

/// Programs that are loaded, and do nothing yet.
pub(super) struct Programs(Vec<(u32, Owned)>);

impl Numbers {
    /// `before` are taken already.
    pub(super) fn give(policies: &[Policy], before: &[Numbered]) -> Result<Numbers, Error> {
        let mut numbers = Numbers { taken: Vec::new(), new: Vec::new() };
        for policy in policies {
            for (name, file) in &policy.own {
                let known = before.iter().find(|known| known.policy == policy.name && known.name == *name);
                let digest = match (fs::read(file), known) {
                    (Ok(bytes), _) => digest_of(&bytes),
                    // What is loaded does without its file.
                    (Err(_), Some(known)) => known.digest,
                    (Err(reason), None) => return Err(Error::directory("read", file)(reason)),
                };
                if let Some(known) = known.filter(|known| known.digest == digest) {
                    numbers.taken.push(known.clone());
                    continue;
                }
                let is_free =
                    |number: &u32| before.iter().chain(&numbers.taken).all(|taken| taken.number != *number);
                let number = (0..PLAIT_MAX_OWN).find(is_free).ok_or(Error::TooMany {
                    what: "selectors and actors of your own",
                    found: before.len() + numbers.taken.len() + 1,
                    most: PLAIT_MAX_OWN,
                })?;
                let numbered = Numbered { policy: policy.name.clone(), name: name.clone(), digest, number };
                numbers.new.push(numbered.clone());
                numbers.taken.push(numbered);
            }
        }
        Ok(numbers)
    }

    /// Loads those that are new.
    pub(super) fn load(&self, policies: &[Policy], objects: &Objects) -> Result<Programs, Error> {
        let flags = if objects.frags { sys::BPF_F_XDP_HAS_FRAGS } else { 0 };
        let mut files = BTreeMap::new();
        let mut programs = Vec::new();
        for numbered in &self.new {
            let policy = policies.iter().find(|policy| policy.name == numbered.policy);
            let Some(path) = policy.and_then(|policy| policy.own.get(&numbered.name)) else { continue };
            if !files.contains_key(path) {
                let file = File::load(path, |map| objects.shared(map), flags).map_err(Error::Own)?;
                files.insert(path, file);
            }
            programs.push((numbered.number, files[path].find(&numbered.name).map_err(Error::Own)?));
        }
        Ok(Programs(programs))
    }

    /// Takes away the programs whose numbers nothing has.
    pub(super) fn remove_unused(&self, objects: &Objects) -> Result<(), Error> {
        let mut unused = Vec::new();
        for number in
            (0..PLAIT_MAX_OWN).filter(|number| self.taken.iter().all(|taken| taken.number != *number))
        {
            for step in [PLAIT_OWN_SELECTORS + number, PLAIT_OWN_ACTORS + number] {
                for kind in [ProgramKind::Xdp, ProgramKind::Tc] {
                    if objects.step(kind, step)?.is_some() {
                        unused.push((kind, step));
                    }
                }
            }
        }
        if !unused.is_empty() {
            // Until every packet has passed that was on its way. Kernels that cannot wait let such a packet go.
            let _ = membarrier(MembarrierCommand::Global);
        }
        unused.into_iter().try_for_each(|(kind, step)| objects.clear_step(kind, step))
    }
}

impl Programs {
    /// Puts them where chains find them.
    pub(super) fn install(&self, objects: &Objects) -> Result<(), Error> {
        let set = |first: u32, number: u32, own: &Own| {
            objects.set_step(ProgramKind::Xdp, first + number, own.xdp.as_fd())?;
            objects.set_step(ProgramKind::Tc, first + number, own.tc.as_fd())
        };
        for (number, owned) in &self.0 {
            if let Some(selector) = &owned.selector {
                set(PLAIT_OWN_SELECTORS, *number, selector)?;
            }
            if let Some(actor) = &owned.actor {
                set(PLAIT_OWN_ACTORS, *number, actor)?;
            }
        }
        Ok(())
    }
}

/// The numbers of a policy's, by name.
pub(super) fn numbers_of(taken: &[Numbered], policy: &str) -> BTreeMap<String, u32> {
    let of_policy = taken.iter().filter(|numbered| numbered.policy == policy);
    of_policy.map(|numbered| (numbered.name.clone(), numbered.number)).collect()
}

fn digest_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
