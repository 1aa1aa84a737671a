//! Attaching the programs to interfaces, and detaching them.
//!
//! What comes in is met as early as the interface allows: by XDP in its driver, else by XDP after the driver, else by
//! TC. Interfaces that are made by software are met by TC at once, unless XDP is asked for: what comes by them has been
//! in the kernel already, often as many segments in one, and XDP has these cut or copied (on a veth pair, a connection
//! is then a third as fast). What goes out is met by TC. TC hosts programs by TCX (Linux 6.6), else as a filter in the queueing discipline
//! `clsact`, beside the filters of others. What works is found out by trying.
//!
//! XDP has room for one program on an interface. Where somebody else's is, packets are met after it, by TC: what it
//! lets pass goes through the policies. XDP needs an Ethernet header, so packets of TUN devices and modems that have
//! none are met by TC. So are those of interfaces from which a chain redirects what comes in, as TC alone finds the next
//! hop.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, ProgramHandle, TC_EGRESS, TC_INGRESS, TcHook, TcHookBuilder, libbpf_sys as sys};
use plait_linux::interfaces::Interface;
use plait_linux::netns::NetNs;
use plait_linux::traffic_control::{clsact_filters, has_clsact};
use serde::{Deserialize, Serialize};

use super::objects::Objects;
use super::{Error, sys as raw};
use crate::Hook;

/// How a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By XDP in the interface's driver, before the kernel has made anything of a packet.
    Native,
    /// By XDP right after the driver: works with all drivers, and costs more.
    Generic,
    /// By TC with a link of its own (TCX).
    Tcx,
    /// By TC as a filter of the queueing discipline `clsact`.
    Clsact,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
            Mode::Tcx => "tcx",
            Mode::Clsact => "clsact",
        })
    }
}

/// Where a program is attached, or about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attached {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) hook: Hook,
    pub(super) ethernet: bool,
    pub(super) software: bool,
    /// `None` while it is tried.
    pub(super) mode: Option<Mode>,
    /// The interface had a `clsact` that plait did not make.
    pub(super) found_clsact: bool,
}

impl Attached {
    /// It is attached at XDP.
    pub(super) fn by_xdp(&self) -> bool {
        matches!(self.mode, Some(Mode::Native | Mode::Generic))
    }

    /// What may be attached to an interface, where nobody knows.
    pub(super) fn anywhere(interface: &Interface) -> [Attached; 2] {
        [Hook::Ingress, Hook::Egress].map(|hook| {
            let Interface { index, name, ethernet, software, .. } = interface.clone();
            Attached { index, name, hook, ethernet, software, mode: None, found_clsact: true }
        })
    }
}

/// What attaching takes.
pub(super) struct Attacher<'a> {
    pub(super) objects: &'a Objects,
    /// The directory for pins of links.
    pub(super) links: PathBuf,
    /// Ways that are not to be tried.
    pub(super) avoided: &'a [Mode],
    /// Interfaces that are made by software are met by XDP too.
    pub(super) by_xdp: bool,
}

impl Attacher<'_> {
    /// What is to be known before attaching to an interface, to be able to undo it.
    pub(super) fn plan(interface: &Interface, hook: Hook, attached: &[Attached]) -> Result<Attached, Error> {
        let made_before = attached.iter().any(|other| {
            other.index == interface.index && other.mode == Some(Mode::Clsact) && !other.found_clsact
        });
        let found_clsact = !made_before && has_clsact(interface.index).map_err(Error::Interfaces)?;
        let Interface { index, name, ethernet, software, .. } = interface.clone();
        Ok(Attached { index, name, hook, ethernet, software, mode: None, found_clsact })
    }

    /// Attaches what was planned, in the best way that works; `by_tc`: by TC alone.
    pub(super) fn attach(&self, planned: &mut Attached, by_tc: bool) -> Result<(), Error> {
        let ways: &[Mode] = match planned.hook {
            _ if by_tc => &[Mode::Tcx, Mode::Clsact],
            Hook::Ingress if planned.ethernet && (self.by_xdp || !planned.software) => {
                &[Mode::Native, Mode::Generic, Mode::Tcx, Mode::Clsact]
            }
            Hook::Ingress if planned.ethernet => &[Mode::Tcx, Mode::Clsact, Mode::Generic],
            _ => &[Mode::Tcx, Mode::Clsact],
        };
        let mut tried = Vec::new();
        for mode in ways.iter().copied().filter(|mode| !self.avoided.contains(mode)) {
            match self.attach_by(mode, planned) {
                Ok(()) => {
                    planned.mode = Some(mode);
                    return Ok(());
                }
                Err(error) => tried.push((mode, error)),
            }
        }
        Err(Error::Attach { interface: planned.name.clone(), hook: planned.hook, tried: Tried(tried) })
    }

    /// Whether it is attached still, and to an interface that is there.
    pub(super) fn is_alive(&self, attached: &Attached, interfaces: &[Interface]) -> bool {
        if !interfaces.iter().any(|interface| interface.index == attached.index) {
            return false;
        }
        match attached.mode {
            None => false,
            Some(Mode::Clsact) => {
                self.objects.loaded(program(Mode::Clsact, attached)).is_some_and(|program| {
                    filter(program.as_fd(), attached).query().is_ok_and(|id| id == program.id())
                })
            }
            Some(_) => Link::open(pin(&self.links, attached))
                .is_ok_and(|link| place_of(&link) == Some(attached.index)),
        }
    }

    fn attach_by(&self, mode: Mode, planned: &Attached) -> io::Result<()> {
        let program = self.objects.program(program(mode, planned)).map_err(io::Error::other)?;
        let (place, flags) = match (mode, planned.hook) {
            (Mode::Native, _) => (sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE),
            (Mode::Generic, _) => (sys::BPF_XDP, sys::XDP_FLAGS_SKB_MODE),
            (Mode::Tcx, Hook::Ingress) => (sys::BPF_TCX_INGRESS, 0),
            (Mode::Tcx, Hook::Egress) => (sys::BPF_TCX_EGRESS, 0),
            (Mode::Clsact, _) => {
                let mut filter = filter(program.as_fd(), planned);
                // One that was left when its pins were lost.
                let left = filter.query().and_then(ProgramHandle::from_prog_id);
                filter.replace(left.is_ok_and(|left| left.name() == program.name()));
                let attached = filter.create().and_then(|mut filter| filter.attach());
                return attached.map(|_| ()).map_err(|error| self.clsact_failed(planned, error));
            }
        };
        let link = raw::link(program.as_fd(), planned.index, place, flags)?;
        raw::pin(link.as_fd(), &pin(&self.links, planned))
    }

    /// Removes the `clsact` that was made for a filter that then could not be.
    fn clsact_failed(&self, planned: &Attached, error: libbpf_rs::Error) -> io::Error {
        // What could not be made may not be there to be removed.
        let _ = detach(&self.links, planned, &[]);
        io::Error::other(error)
    }
}

/// Detaches what was attached, and leaves nothing on the interface that was not there before. `others` are attached,
/// too.
pub(super) fn detach(links: &Path, attached: &Attached, others: &[Attached]) -> Result<(), Error> {
    let failed = |reason| Error::Detach { interface: attached.name.clone(), hook: attached.hook, reason };
    unlink(&pin(links, attached)).map_err(failed)?;
    let by_link = !matches!(attached.mode, Some(Mode::Clsact) | None);
    if by_link || !has_clsact(attached.index).unwrap_or(false) {
        return Ok(());
    }
    let namespace = NetNs::current().map_err(failed)?;
    // To ask for it and to remove it takes no program, but the library wants some descriptor.
    let mut filter = filter(namespace.as_fd(), attached);
    let found = filter.query().and_then(ProgramHandle::from_prog_id);
    if found.is_ok_and(|found| found.name() == program(Mode::Clsact, attached).trim_start_matches("tc_")) {
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

/// Whether some link that is pinned in a directory is attached to an interface.
pub(super) fn any_attached(links: &Path) -> bool {
    let pins = std::fs::read_dir(links).into_iter().flatten().flatten();
    pins.filter_map(|pin| Link::open(pin.path()).ok()).any(|link| place_of(&link).is_some())
}

/// Detaches and unpins whatever links are pinned in a directory.
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

/// The ways that were tried, and why each did not work.
#[derive(Debug)]
pub struct Tried(Vec<(Mode, io::Error)>);

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (mode, error)) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{mode}: {error}")?;
        }
        Ok(())
    }
}

/// Detached at once, and not only when the kernel has cleaned up behind the pin.
fn unlink(pin: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    // That of an interface that is gone is detached already.
    if let Ok(link) = Link::open(pin) {
        let _ = link.detach();
    }
    std::fs::remove_file(pin)
}

/// The interface that a link attaches to; `None` when that is gone.
fn place_of(link: &Link) -> Option<u32> {
    let index = match link.info().ok()?.info {
        LinkTypeInfo::Xdp(xdp) => xdp.ifindex,
        LinkTypeInfo::Tcx(tcx) => tcx.ifindex,
        _ => return None,
    };
    (index != 0).then_some(index)
}

/// The program for an interface, as objects.rs names it.
fn program(mode: Mode, attached: &Attached) -> &'static str {
    match (mode, attached.hook, attached.ethernet) {
        (Mode::Native | Mode::Generic, ..) => "xdp_ingress",
        (_, Hook::Ingress, true) => "tc_ingress",
        (_, Hook::Ingress, false) => "tc_ingress_ip",
        (_, Hook::Egress, true) => "tc_egress",
        (_, Hook::Egress, false) => "tc_egress_ip",
    }
}

fn pin(links: &Path, attached: &Attached) -> PathBuf {
    links.join(format!("{}-{}", attached.index, attached.hook))
}

/// Of a priority and handle of its own, by which it is known again.
fn filter(program: BorrowedFd, attached: &Attached) -> TcHook {
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
