//! Writes what is wanted of paths to the maps of a loaded scheduler.

use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use plait_congestion::{Error, Registry};

use crate::bindings::{
    PLAIT_PATH_ADDRESS, PLAIT_PATH_INTERFACE, plait_path_name, plait_path_options, plait_targets,
};
use crate::config::{PathName, PathOptions};
use crate::{Scheduler, SchedulerConfig, object};

/// Loads a scheduler into the kernel if it is not yet, with these options; they apply to existing connections too. `false` if it
/// was loaded already.
///
/// # Errors
/// As [`Registry::load`]; the scheduler was loaded by another version of plait.
pub fn load(registry: &Registry<Scheduler>, configuration: &SchedulerConfig) -> Result<bool, Error> {
    let scheduler = configuration.scheduler();
    let is_new = registry.load_object(scheduler, || object::load(configuration, scheduler.kernel_name()))?;
    if configuration.file.is_some() && !is_new {
        return Err(Error::AlreadyLoaded(scheduler.name()));
    }
    let open = |part| {
        MapHandle::from_pinned_path(registry.part(scheduler, part))
            .map_err(Error::kernel("open the options of the loaded scheduler; unload it first"))
    };
    write(configuration, &open(object::PATH_OPTIONS)?, &open(object::TARGETS)?)?;
    Ok(is_new)
}

/// Replaces the options in the maps of a scheduler.
pub(crate) fn write(
    configuration: &SchedulerConfig,
    path_options: &impl MapCore,
    targets: &impl MapCore,
) -> Result<(), Error> {
    let failed = Error::kernel("set the options of the scheduler");
    let write = || {
        targets.update(&0u32.to_ne_bytes(), &targets_as_bytes(configuration), MapFlags::ANY)?;
        let wanted: Vec<_> = configuration.paths.keys().map(name_as_bytes).collect();
        for key in path_options.keys().collect::<Vec<_>>() {
            if !wanted.iter().any(|name| name[..] == key[..]) {
                path_options.delete(&key)?;
            }
        }
        for (name, options) in wanted.iter().zip(configuration.paths.values()) {
            path_options.update(
                name,
                &options_as_bytes(configuration.scheduler(), *options),
                MapFlags::ANY,
            )?;
        }
        Ok(())
    };
    write().map_err(failed)
}

fn name_as_bytes(name: &PathName) -> [u8; size_of::<plait_path_name>()] {
    let mut bytes = [0; _];
    let kind = match name {
        PathName::Interface(name) => {
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            PLAIT_PATH_INTERFACE
        }
        PathName::Address(address) => {
            let address = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => *address,
            };
            bytes[..16].copy_from_slice(&address.octets());
            PLAIT_PATH_ADDRESS
        }
    };
    bytes[16..].copy_from_slice(&kind.to_ne_bytes());
    bytes
}

fn options_as_bytes(scheduler: Scheduler, options: PathOptions) -> [u8; size_of::<plait_path_options>()] {
    let (weight, level) = match scheduler {
        Scheduler::Weighted => (options.number, 0),
        _ => (1, options.number),
    };
    let max_rate =
        options.max_rate.map_or(0, |rate| u32::try_from(rate.bytes_per_second()).unwrap_or(u32::MAX));
    concatenate([weight, level, max_rate].map(u32::to_ne_bytes).as_flattened())
}

fn targets_as_bytes(configuration: &SchedulerConfig) -> [u8; size_of::<plait_targets>()] {
    let rate = configuration.rate.map_or(0, |rate| rate.bytes_per_second());
    let rtt = configuration.rtt.map_or(0, |rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX));
    let rest = [rtt, 1, configuration.last_level(), 0].map(u32::to_ne_bytes);
    concatenate(&[&rate.to_ne_bytes()[..], rest.as_flattened()].concat())
}

/// The length is that of the structure in bpf/intf.h, as its assertions say.
fn concatenate<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    all.copy_from_slice(bytes);
    all
}
