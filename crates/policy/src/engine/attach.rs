//! Attaches the programs to interfaces and detaches them.
//!
//! Ingress packets are processed as early as the interface allows: by XDP in its driver, else by generic XDP, else by
//! TC. Software interfaces use TC unless XDP is requested: their packets have already passed the kernel, often as one
//! large segment, which XDP would have split or copied (on a veth pair, throughput of a connection drops to a third).
//! Egress packets are processed by TC. TC programs are attached by TCX (Linux 6.6), else as a filter of the `clsact`
//! queueing discipline, beside the filters of others. Modes are tried until one works.
//!
//! An interface has room for one XDP program. If it is taken, packets are processed afterwards, by TC: policies see
//! what the other program passes. XDP also needs an Ethernet header, so TUN devices and modems without one use TC. So
//! do interfaces from which a chain redirects ingress packets, as only TC finds the next hop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, ProgramHandle, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder, libbpf_sys as sys};
use plait_linux::bpf_link;
use plait_linux::interfaces::Interface;
use plait_linux::netns::NetNs;
use plait_linux::traffic_control::{clsact_filters, has_clsact};
use serde::{Deserialize, Serialize};

use super::attach_mode::{AttachFailures, AttachMode};
use super::error::EngineError;
use super::objects::Objects;
use crate::model::Hook;

/// A program on an interface, attached or about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttachPoint {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) hook: Hook,
    pub(super) ethernet: bool,
    pub(super) software: bool,
    /// `None` until a mode has worked.
    pub(super) mode: Option<AttachMode>,
    /// The interface had a `clsact` that was not created by plait.
    pub(super) found_clsact: bool,
}

impl AttachPoint {
    /// Whether it is attached by XDP.
    pub(super) fn uses_xdp(&self) -> bool {
        matches!(self.mode, Some(AttachMode::Native | AttachMode::Generic))
    }

    /// What may be attached to an interface if the state is unknown.
    pub(super) fn anywhere(interface: &Interface) -> [AttachPoint; 2] {
        [Hook::Ingress, Hook::Egress].map(|hook| {
            let Interface { index, name, ethernet, software, .. } = interface.clone();
            AttachPoint { index, name, hook, ethernet, software, mode: None, found_clsact: true }
        })
    }
}

/// Attaches programs.
pub(super) struct Attacher<'a> {
    pub(super) objects: &'a Objects,
    /// The directory of pinned links.
    pub(super) links: PathBuf,
    /// Modes not to try.
    pub(super) avoided_modes: &'a [AttachMode],
    /// Use XDP on software interfaces, too.
    pub(super) prefer_xdp: bool,
}

impl Attacher<'_> {
    /// Collects what is needed to undo attaching to an interface.
    pub(super) fn plan(
        interface: &Interface,
        hook: Hook,
        attached: &[AttachPoint],
    ) -> Result<AttachPoint, EngineError> {
        let made_before = attached.iter().any(|other| {
            other.index == interface.index && other.mode == Some(AttachMode::Clsact) && !other.found_clsact
        });
        let found_clsact = !made_before && has_clsact(interface.index).map_err(EngineError::Interfaces)?;
        let Interface { index, name, ethernet, software, .. } = interface.clone();
        Ok(AttachPoint { index, name, hook, ethernet, software, mode: None, found_clsact })
    }

    /// Attaches in the first mode that works; `only_tc`: by TC only.
    pub(super) fn attach(&self, planned: &mut AttachPoint, only_tc: bool) -> Result<(), EngineError> {
        let modes: &[AttachMode] = match planned.hook {
            _ if only_tc => &[AttachMode::Tcx, AttachMode::Clsact],
            Hook::Ingress if planned.ethernet && (self.prefer_xdp || !planned.software) => {
                &[AttachMode::Native, AttachMode::Generic, AttachMode::Tcx, AttachMode::Clsact]
            }
            Hook::Ingress if planned.ethernet => &[AttachMode::Tcx, AttachMode::Clsact, AttachMode::Generic],
            _ => &[AttachMode::Tcx, AttachMode::Clsact],
        };
        let mut failures = Vec::new();
        for mode in modes.iter().copied().filter(|mode| !self.avoided_modes.contains(mode)) {
            match self.attach_by(mode, planned) {
                Ok(()) => {
                    planned.mode = Some(mode);
                    return Ok(());
                }
                Err(error) => failures.push((mode, error)),
            }
        }
        Err(EngineError::Attach {
            interface: planned.name.clone(),
            hook: planned.hook,
            failures: AttachFailures(failures),
        })
    }

    /// Whether it is still attached to an existing interface.
    pub(super) fn is_alive(&self, attached: &AttachPoint, interfaces: &[Interface]) -> bool {
        if !interfaces.iter().any(|interface| interface.index == attached.index) {
            return false;
        }
        match attached.mode {
            None => false,
            Some(AttachMode::Clsact) => {
                self.objects.loaded(program(AttachMode::Clsact, attached)).is_some_and(|program| {
                    filter(program.as_fd(), attached).query().is_ok_and(|id| id == program.id())
                })
            }
            Some(_) => Link::open(pin(&self.links, attached))
                .is_ok_and(|link| interface_of(&link) == Some(attached.index)),
        }
    }

    fn attach_by(&self, mode: AttachMode, planned: &AttachPoint) -> io::Result<()> {
        let program = self.objects.program(program(mode, planned)).map_err(io::Error::other)?;
        let (place, flags) = match (mode, planned.hook) {
            (AttachMode::Native, _) => (sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE),
            (AttachMode::Generic, _) => (sys::BPF_XDP, sys::XDP_FLAGS_SKB_MODE),
            (AttachMode::Tcx, Hook::Ingress) => (sys::BPF_TCX_INGRESS, 0),
            (AttachMode::Tcx, Hook::Egress) => (sys::BPF_TCX_EGRESS, 0),
            (AttachMode::Clsact, _) => {
                let mut filter = filter(program.as_fd(), planned);
                // A filter of ours may be left from when pins were lost.
                let left = filter.query().and_then(ProgramHandle::from_prog_id);
                filter.replace(left.is_ok_and(|left| left.name() == program.name()));
                let attached = filter.create().and_then(|mut filter| filter.attach());
                return attached.map(|_| ()).map_err(|error| self.clsact_failed(planned, error));
            }
        };
        let link = bpf_link::attach(program.as_fd(), planned.index, place, flags)?;
        bpf_link::pin(link.as_fd(), &pin(&self.links, planned))
    }

    /// Removes the `clsact` that was created for a filter that then failed.
    fn clsact_failed(&self, planned: &AttachPoint, error: libbpf_rs::Error) -> io::Error {
        // Nothing may have been created.
        let _ = detach(&self.links, planned, &[]);
        io::Error::other(error)
    }
}

/// Detaches, and leaves nothing on the interface that was not there before. `others` are the remaining attach points.
pub(super) fn detach(
    links: &Path,
    attached: &AttachPoint,
    others: &[AttachPoint],
) -> Result<(), EngineError> {
    let failed =
        |reason| EngineError::Detach { interface: attached.name.clone(), hook: attached.hook, reason };
    unlink(&pin(links, attached)).map_err(failed)?;
    let by_link = !matches!(attached.mode, Some(AttachMode::Clsact) | None);
    if by_link || !has_clsact(attached.index).unwrap_or(false) {
        return Ok(());
    }
    let namespace = NetNs::current().map_err(failed)?;
    // Querying and removing needs no program, but libbpf requires a descriptor.
    let mut filter = filter(namespace.as_fd(), attached);
    let found = filter.query().and_then(ProgramHandle::from_prog_id);
    if found
        .is_ok_and(|found| found.name() == program(AttachMode::Clsact, attached).trim_start_matches("tc_"))
    {
        filter.detach().map_err(|error| failed(io::Error::other(error)))?;
    }
    let needed = others.iter().any(|other| other.index == attached.index && other.hook != attached.hook);
    let only_ours = !attached.found_clsact && !needed && has_clsact(attached.index).unwrap_or(false);
    if only_ours && clsact_filters(attached.index).is_ok_and(|filters| filters == 0) {
        filter.attach_point(TC_INGRESS | TC_EGRESS);
        filter.destroy().map_err(|error| failed(io::Error::other(error)))?;
    }
    Ok(())
}

/// Whether any link pinned in a directory is attached to an interface.
pub(super) fn any_attached(links: &Path) -> bool {
    let pins = std::fs::read_dir(links).into_iter().flatten().flatten();
    pins.filter_map(|pin| Link::open(pin.path()).ok()).any(|link| interface_of(&link).is_some())
}

/// Detaches and unpins all links pinned in a directory.
pub(super) fn unlink_all(links: &Path) -> io::Result<()> {
    let entries = match std::fs::read_dir(links) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        unlink(&entry?.path())?;
    }
    Ok(())
}

/// Detaches at once, instead of when the kernel drops the last reference.
fn unlink(pin: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    // The link of a deleted interface is already detached.
    if let Ok(link) = Link::open(pin) {
        let _ = link.detach();
    }
    std::fs::remove_file(pin)
}

/// The interface that a link is attached to; `None` if it was deleted.
fn interface_of(link: &Link) -> Option<u32> {
    let index = match link.info().ok()?.info {
        LinkTypeInfo::Xdp(xdp) => xdp.ifindex,
        LinkTypeInfo::Tcx(tcx) => tcx.ifindex,
        _ => return None,
    };
    (index != 0).then_some(index)
}

/// The program for an interface, by its name in objects.rs.
fn program(mode: AttachMode, attached: &AttachPoint) -> &'static str {
    match (mode, attached.hook, attached.ethernet) {
        (AttachMode::Native | AttachMode::Generic, ..) => "xdp_ingress",
        (_, Hook::Ingress, true) => "tc_ingress",
        (_, Hook::Ingress, false) => "tc_ingress_ip",
        (_, Hook::Egress, true) => "tc_egress",
        (_, Hook::Egress, false) => "tc_egress_ip",
    }
}

fn pin(links: &Path, attached: &AttachPoint) -> PathBuf {
    links.join(format!("{}-{}", attached.index, attached.hook))
}

/// Identified by a fixed priority and handle.
fn filter(program: BorrowedFd, attached: &AttachPoint) -> TcHook {
    let point = if attached.hook == Hook::Ingress { TC_INGRESS } else { TC_EGRESS };
    TcHookBuilder::new(program)
        .ifindex(attached.index as i32)
        .priority(FILTER_PRIORITY)
        .handle(FILTER_HANDLE)
        .hook(point)
}

/// `0x7074`: "pt".
const FILTER_PRIORITY: u32 = 28788;
const FILTER_HANDLE: u32 = 1;
