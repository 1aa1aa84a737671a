//! The kernel's side of rules with a cap or a quota: `bpf/path_limits.bpf.c`, attached to the cgroup of a gateway.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::{MapCore, MapHandle};
use rustix::time::{ClockId, clock_gettime};

use crate::bindings::{PLAIT_MAX_PATH_RULES, plait_path_limit, plait_path_use};
use crate::bpf::{self, BpfError, update};
use crate::ring_events::RingEvents;
use crate::skeleton::path_limits::PathLimitsSkelBuilder;

/// Rules that can be configured.
pub(crate) const MAX_RULES: usize = PLAIT_MAX_PATH_RULES as usize;

/// What the interfaces of each rule have carried: a gateway shares it with its monitor, which then knows what a gateway that was killed
/// carried last.
pub(crate) type PathUses = bpf::ArrayMap<plait_path_use>;

impl PathUses {
    pub(crate) fn new() -> Result<PathUses, BpfError> {
        PathUses::create("uses", PLAIT_MAX_PATH_RULES)
    }

    /// The bytes that the interfaces of a rule have carried since the start.
    pub(crate) fn bytes_carried(&self, rule: usize) -> Result<u64, BpfError> {
        Ok(self.get(index(rule))?.bytes)
    }
}

/// What the kernel counts and limits, until dropped.
pub(super) struct PathLimits {
    limits: MapHandle,
    uses: PathUses,
    rules: MapHandle,
    reports: MapHandle,
    /// The rules of interfaces, by index, as they are in the kernel.
    interfaces: Mutex<HashMap<u32, u32>>,
    _programs: bpf::Programs,
}

impl PathLimits {
    /// For the sockets of a cgroup.
    pub(super) fn attach(cgroup: impl AsFd, uses: PathUses) -> Result<PathLimits, BpfError> {
        let mut storage = MaybeUninit::uninit();
        let builder = PathLimitsSkelBuilder::default();
        let skeleton = bpf::load_prepared("path_limits", builder, &mut storage, |open| {
            open.maps.uses.reuse_fd(uses.as_fd())
        })?;
        let mut programs = bpf::Programs::of(&skeleton)?;
        programs.attach(cgroup)?;
        Ok(PathLimits {
            limits: bpf::handle(&skeleton.maps.limits)?,
            uses,
            rules: bpf::handle(&skeleton.maps.rules)?,
            reports: bpf::handle(&skeleton.maps.reports)?,
            interfaces: Mutex::default(),
            _programs: programs,
        })
    }

    /// Limits what the interfaces of a rule carry.
    pub(super) fn set(&self, rule: usize, limit: &plait_path_limit) -> Result<(), BpfError> {
        update(&self.limits, &key(rule), limit)
    }

    /// The bytes that the interfaces of a rule have carried since the start.
    pub(super) fn used(&self, rule: usize) -> Result<u64, BpfError> {
        self.uses.bytes_carried(rule)
    }

    /// How long nothing should be received by the interfaces of a rule, so that its cap is held.
    pub(super) fn pause(&self, rule: usize) -> Duration {
        // Without it, packets are dropped.
        let busy_until = self.uses.get(index(rule)).map_or(0, |usage| usage.busy_until[1]);
        let now = clock_gettime(ClockId::Monotonic);
        let now =
            u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0);
        Duration::from_nanos(busy_until.saturating_sub(now))
    }

    /// Sets which interfaces, by index, belong to which rules.
    pub(super) fn set_interfaces(&self, wanted: &HashMap<u32, u32>) -> Result<(), BpfError> {
        let mut current = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        for (interface, rule) in wanted {
            if current.get(interface) != Some(rule) {
                update(&self.rules, &interface.to_ne_bytes(), rule)?;
            }
        }
        for interface in current.keys().filter(|interface| !wanted.contains_key(interface)) {
            // It may be gone.
            let _ = self.rules.delete(&interface.to_ne_bytes());
        }
        current.clone_from(wanted);
        Ok(())
    }

    /// Events of rules: something of their quota was used, or more arrives than their cap allows ([`PLAIT_PATH_TOO_FAST`]).
    pub(super) fn reports(&self) -> io::Result<RingEvents<u32>> {
        RingEvents::open(&self.reports)
    }
}

fn key(rule: usize) -> [u8; 4] {
    index(rule).to_ne_bytes()
}

fn index(rule: usize) -> u32 {
    u32::try_from(rule).unwrap_or(u32::MAX)
}
