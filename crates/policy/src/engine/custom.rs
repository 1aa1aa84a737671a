//! Assigns slots of the program array to custom selectors and actors.
//!
//! A name has one slot number for both its selector and its actor. When its file or its parameters change it gets
//! another slot, so that every packet runs either the old or the new program; an unchanged program keeps its slot and
//! its maps.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsFd;

use bytemuck::Zeroable as _;
use libbpf_rs::libbpf_sys as sys;
use rustix::thread::{MembarrierCommand, membarrier};
use serde::{Deserialize, Serialize};

use super::custom_file::{CustomFile, CustomPrograms, ProgramPair};
use super::error::EngineError;
use super::objects::Objects;
use crate::bindings::{PLAIT_CUSTOM_ACTORS, PLAIT_CUSTOM_SELECTORS, PLAIT_MAX_CUSTOM, plait_parameters};
use crate::compile::ProgramKind;
use crate::model::{CustomProgram, Policy};

/// A slot in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CustomSlot {
    policy: String,
    name: String,
    /// A hash of the file.
    digest: u64,
    function: Option<String>,
    parameters: Vec<u64>,
    number: u32,
}

/// The slots of all loaded policies.
#[derive(Debug)]
pub(super) struct CustomSlots {
    pub(super) taken: Vec<CustomSlot>,
    /// Those whose programs must be loaded.
    new: Vec<CustomSlot>,
}

/// Programs that are loaded but not installed.
pub(super) struct NewPrograms(Vec<(CustomSlot, CustomPrograms)>);

impl CustomSlots {
    /// Assigns slots, given those that are in use already.
    pub(super) fn assign(policies: &[Policy], before: &[CustomSlot]) -> Result<CustomSlots, EngineError> {
        let mut slots = CustomSlots { taken: Vec::new(), new: Vec::new() };
        for policy in policies {
            for (name, CustomProgram { file, function, parameters }) in &policy.custom {
                let known = before.iter().find(|known| known.policy == policy.name && known.name == *name);
                let digest = match (fs::read(file), known) {
                    (Ok(bytes), _) => hash_of(&bytes),
                    // A loaded program does not need its file any more.
                    (Err(_), Some(known)) => known.digest,
                    (Err(reason), None) => return Err(EngineError::directory("read", file)(reason)),
                };
                let slot = |number| CustomSlot {
                    policy: policy.name.clone(),
                    name: name.clone(),
                    digest,
                    function: function.clone(),
                    parameters: parameters.clone(),
                    number,
                };
                if let Some(known) = known.filter(|known| **known == slot(known.number)) {
                    slots.taken.push(known.clone());
                    continue;
                }
                let is_free =
                    |number: &u32| before.iter().chain(&slots.taken).all(|taken| taken.number != *number);
                let number = (0..PLAIT_MAX_CUSTOM).find(is_free).ok_or(EngineError::TooMany {
                    what: "custom selectors and actors",
                    found: before.len() + slots.taken.len() + 1,
                    max: PLAIT_MAX_CUSTOM,
                })?;
                slots.new.push(slot(number));
                slots.taken.push(slot(number));
            }
        }
        Ok(slots)
    }

    /// Loads the programs of new slots.
    pub(super) fn load(&self, policies: &[Policy], objects: &Objects) -> Result<NewPrograms, EngineError> {
        let flags = if objects.frags { sys::BPF_F_XDP_HAS_FRAGS } else { 0 };
        let mut files = BTreeMap::new();
        let mut programs = Vec::new();
        for slot in &self.new {
            let policy = policies.iter().find(|policy| policy.name == slot.policy);
            let Some(program) = policy.and_then(|policy| policy.custom.get(&slot.name)) else { continue };
            let path = &program.file;
            if !files.contains_key(path) {
                let file =
                    CustomFile::load(path, |map| objects.shared(map), flags).map_err(EngineError::Custom)?;
                files.insert(path, file);
            }
            let function = slot.function.as_ref().unwrap_or(&slot.name);
            programs.push((slot.clone(), files[path].find(function).map_err(EngineError::Custom)?));
        }
        Ok(NewPrograms(programs))
    }

    /// Removes the programs of unused slots.
    pub(super) fn remove_unused(&self, objects: &Objects) -> Result<(), EngineError> {
        let mut unused = Vec::new();
        for number in
            (0..PLAIT_MAX_CUSTOM).filter(|number| self.taken.iter().all(|taken| taken.number != *number))
        {
            for step in [PLAIT_CUSTOM_SELECTORS + number, PLAIT_CUSTOM_ACTORS + number] {
                for kind in [ProgramKind::Xdp, ProgramKind::Tc] {
                    if objects.step(kind, step)?.is_some() {
                        unused.push((kind, step));
                    }
                }
            }
        }
        if !unused.is_empty() {
            // Waits until packets in flight have left the programs. On kernels without membarrier, such a packet
            // skips the program.
            let _ = membarrier(MembarrierCommand::Global);
        }
        unused.into_iter().try_for_each(|(kind, step)| objects.clear_step(kind, step))
    }
}

impl NewPrograms {
    /// Installs them in the program array.
    pub(super) fn install(&self, objects: &Objects) -> Result<(), EngineError> {
        let set = |first: u32, number: u32, custom: &ProgramPair| {
            objects.set_step(ProgramKind::Xdp, first + number, custom.xdp.as_fd())?;
            objects.set_step(ProgramKind::Tc, first + number, custom.tc.as_fd())
        };
        for (slot, owned) in &self.0 {
            let mut parameters = plait_parameters::zeroed();
            for (number, given) in parameters.numbers.iter_mut().zip(&slot.parameters) {
                *number = *given;
            }
            objects.write("parameters", slot.number, &parameters)?;
            if let Some(selector) = &owned.selector {
                set(PLAIT_CUSTOM_SELECTORS, slot.number, selector)?;
            }
            if let Some(actor) = &owned.actor {
                set(PLAIT_CUSTOM_ACTORS, slot.number, actor)?;
            }
        }
        Ok(())
    }
}

/// The slots of a policy, by name.
pub(super) fn slots_of(taken: &[CustomSlot], policy: &str) -> BTreeMap<String, u32> {
    let of_policy = taken.iter().filter(|slot| slot.policy == policy);
    of_policy.map(|slot| (slot.name.clone(), slot.number)).collect()
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
