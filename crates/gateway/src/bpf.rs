//! Loading this crate's BPF objects, and the types that cross between them and Rust.
//!
//! `unsafe` here asserts that the generated structs are plain numbers without padding, which `intf.h` asserts too, and
//! calls the three functions of libbpf that attach and replace programs by their descriptors, which its Rust binding lacks.

mod array_map;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapMut, OpenObject, ProgramAttachType, libbpf_sys as sys};
use plait_linux::libbpf;
use zeroize::Zeroizing;

pub(crate) use self::array_map::ArrayMap;
use crate::bindings::{
    plait_client, plait_close_reasons, plait_destination, plait_flag_settings, plait_lan_flow, plait_lan_syn,
    plait_negotiate_settings, plait_net_v4, plait_net_v6, plait_network, plait_outcome_event,
    plait_path_limit, plait_path_use, plait_ports, plait_redirect_settings, plait_router_settings,
    plait_scope, plait_selection, plait_syn, plait_trusted_settings, plait_verdict,
};

macro_rules! plain_numbers {
    ($($name:ty),+) => {$(
        // SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
        unsafe impl Zeroable for $name {}
        // SAFETY: as above.
        unsafe impl Pod for $name {}
    )+};
}

plain_numbers!(
    plait_client,
    plait_close_reasons,
    plait_destination,
    plait_flag_settings,
    plait_lan_flow,
    plait_lan_syn,
    plait_negotiate_settings,
    plait_net_v4,
    plait_net_v6,
    plait_network,
    plait_path_limit,
    plait_path_use,
    plait_ports,
    plait_redirect_settings,
    plait_router_settings,
    plait_scope,
    plait_selection,
    plait_outcome_event,
    plait_syn,
    plait_trusted_settings,
    plait_verdict
);

/// A BPF object could not be loaded, attached or read.
#[derive(Debug, thiserror::Error)]
#[error("BPF: cannot {action}: {reason} ({hint})")]
pub struct BpfError {
    action: String,
    reason: libbpf_rs::Error,
    hint: &'static str,
}

const HINT: &str = "needs root or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and a kernel with BTF; \
                    `plait doctor` lists what is missing";

impl BpfError {
    /// What the programs take of the kernel has failed.
    pub(crate) fn io(action: &str, reason: std::io::Error) -> BpfError {
        failed(action)(reason.into())
    }

    /// With another hint on what is missing.
    pub(crate) fn hint(self, hint: &'static str) -> BpfError {
        BpfError { hint, ..self }
    }
}

fn failed(action: impl Into<String>) -> impl FnOnce(libbpf_rs::Error) -> BpfError {
    move |reason| BpfError { action: action.into(), reason, hint: HINT }
}

/// The programs of a loaded object, attached for as long as this lives.
///
/// Held by their descriptors: a skeleton borrows the storage of its object, and so cannot outlive the function that
/// loads it. The loader takes the [`handle`]s of the maps that it needs from it.
pub(crate) struct Programs {
    programs: Vec<Program>,
    links: Vec<OwnedFd>,
}

struct Program {
    name: String,
    descriptor: OwnedFd,
    attach_type: u32,
}

/// Loads an object by its skeleton.
pub(crate) fn load<'o, B: SkelBuilder<'o>>(
    name: &str,
    skeleton: B,
    storage: &'o mut MaybeUninit<OpenObject>,
) -> Result<<B::Output as OpenSkel<'o>>::Output, BpfError> {
    load_prepared(name, skeleton, storage, |_| Ok(()))
}

/// As [`load`], of an object that is prepared first: it may use maps of others, or lack some of its own.
pub(crate) fn load_prepared<'o, B: SkelBuilder<'o>>(
    name: &str,
    skeleton: B,
    storage: &'o mut MaybeUninit<OpenObject>,
    prepare: impl FnOnce(&mut B::Output) -> Result<(), libbpf_rs::Error>,
) -> Result<<B::Output as OpenSkel<'o>>::Output, BpfError> {
    libbpf::log_messages();
    let loaded = skeleton.open(storage).and_then(|mut open| {
        prepare(&mut open)?;
        open.load()
    });
    loaded.map_err(failed(format!("load the programs of '{name}'")))
}

/// Loads an object that has no settings, and attaches its programs to a cgroup.
pub(crate) fn load_and_attach<B: for<'o> SkelBuilder<'o>>(
    name: &str,
    skeleton: B,
    cgroup: impl AsFd,
) -> Result<Programs, BpfError> {
    let mut storage = MaybeUninit::uninit();
    let skeleton = load(name, skeleton, &mut storage)?;
    let mut programs = Programs::of(&skeleton)?;
    programs.attach(cgroup)?;
    Ok(programs)
}

/// Writes an object's settings, which its programs read from then on.
pub(crate) fn write_settings(map: &impl MapCore, settings: &impl Pod) -> Result<(), BpfError> {
    map.update(&0u32.to_ne_bytes(), bytemuck::bytes_of(settings), MapFlags::ANY)
        .map_err(failed("write its settings"))
}

/// A handle of a map, which keeps it when the skeleton is dropped.
pub(crate) fn handle(map: &MapMut<'_>) -> Result<MapHandle, BpfError> {
    let name = map.name().to_string_lossy().into_owned();
    MapHandle::try_from(map).map_err(failed(format!("open the map '{name}'")))
}

impl Programs {
    /// All programs of an object that are for cgroups, not attached yet.
    pub(crate) fn of<'o>(skeleton: &impl Skel<'o>) -> Result<Programs, BpfError> {
        let program = |program: libbpf_rs::Program<'_>| {
            let name = program.name().to_string_lossy().into_owned();
            let attach_type = program.attach_type() as u32;
            let descriptor = program.as_fd().try_clone_to_owned();
            let descriptor =
                descriptor.map_err(|error| failed(format!("open the program '{name}'"))(error.into()))?;
            Ok(Program { name, descriptor, attach_type })
        };
        let programs = skeleton.object().progs().filter(is_for_cgroup).map(program);
        let programs = programs.collect::<Result<_, _>>()?;
        Ok(Programs { programs, links: Vec::new() })
    }

    /// Attaches every program to a cgroup, for as long as this value lives.
    pub(crate) fn attach(&mut self, cgroup: impl AsFd) -> Result<(), BpfError> {
        let cgroup = cgroup.as_fd().as_raw_fd();
        for program in &self.programs {
            let descriptor = program.descriptor.as_raw_fd();
            // SAFETY: takes numbers and no options; both descriptors are open for the length of the call.
            let result =
                unsafe { sys::bpf_link_create(descriptor, cgroup, program.attach_type, std::ptr::null()) };
            let link = check_attached(&program.name, result)?;
            // SAFETY: a descriptor that was opened just now, and that nothing else owns.
            self.links.push(unsafe { OwnedFd::from_raw_fd(link) });
        }
        Ok(())
    }

    /// What [`attach`](Self::attach) attached.
    pub(crate) fn links(&self) -> &[OwnedFd] {
        &self.links
    }

    /// What [`attach`](Self::attach) attached to one cgroup, by the names of the programs.
    pub(crate) fn named_links(&self) -> impl Iterator<Item = (&str, &OwnedFd)> {
        self.programs.iter().map(|program| &*program.name).zip(&self.links)
    }

    /// Puts every program in the place of the one of its name that another process has attached: no packet meets both, or none.
    pub(crate) fn replace(&self, attached: &[(String, OwnedFd)]) -> Result<(), BpfError> {
        for program in &self.programs {
            let missing = || std::io::Error::other("the other process has not attached one of this name");
            let action = format!("replace the program '{}'", program.name);
            let link = attached.iter().find(|(name, _)| *name == program.name).map(|(_, link)| link);
            let link = link.ok_or_else(|| BpfError::io(&action, missing()))?;
            let (link, new) = (link.as_raw_fd(), program.descriptor.as_raw_fd());
            // SAFETY: takes numbers and no options; both descriptors are open for the length of the call.
            let result = unsafe { sys::bpf_link_update(link, new, std::ptr::null()) };
            if result < 0 {
                return Err(failed(action)(libbpf_rs::Error::from_raw_os_error(-result)));
            }
        }
        Ok(())
    }

    /// Detaches the programs of these names.
    pub(crate) fn detach_some(&mut self, names: &[&str]) {
        let mut programs = self.programs.iter().cycle();
        self.links.retain(|_| !programs.next().is_some_and(|program| names.contains(&&*program.name)));
    }

    /// Detaches what [`attach`](Self::attach) attached; the maps remain.
    pub(crate) fn detach(&mut self) {
        self.links.clear();
    }
}

/// Attaches every program of an object that is for cgroups to one, for as long as the cgroup exists, even after this process has
/// ended.
pub(crate) fn attach_permanently<'o>(skeleton: &impl Skel<'o>, cgroup: impl AsFd) -> Result<(), BpfError> {
    let cgroup = cgroup.as_fd().as_raw_fd();
    // Their descriptors are not duplicated first: a process may be allowed few.
    skeleton.object().progs().filter(is_for_cgroup).try_for_each(|program| {
        let descriptor = program.as_fd().as_raw_fd();
        let attach_type = program.attach_type() as u32;
        // SAFETY: takes numbers only; both descriptors are open for the length of the call.
        let result = unsafe { sys::bpf_prog_attach(descriptor, cgroup, attach_type, sys::BPF_F_ALLOW_MULTI) };
        check_attached(&program.name().to_string_lossy(), result).map(|_| ())
    })
}

/// Whether a program was loaded, and is attached to a cgroup, not to the lookup of sockets.
fn is_for_cgroup(program: &libbpf_rs::Program<'_>) -> bool {
    program.autoload() && !matches!(program.attach_type(), ProgramAttachType::SkLookup)
}

/// The result of attaching a program: a negative error number is an error.
fn check_attached(program: &str, result: i32) -> Result<i32, BpfError> {
    if result < 0 {
        let error = libbpf_rs::Error::from_raw_os_error(-result);
        return Err(failed(format!("attach '{program}' to a cgroup"))(error));
    }
    Ok(result)
}

/// The kernel's id of a map.
pub(crate) fn id(map: &MapHandle) -> Result<u32, BpfError> {
    map.info().map(|info| info.info.id).map_err(failed("read a map's id"))
}

/// The value under a key, if there is one.
pub(crate) fn lookup<V: Pod>(map: &MapHandle, key: &[u8]) -> Result<Option<V>, BpfError> {
    let value = map.lookup(key, MapFlags::ANY).map_err(failed("read a map"))?;
    // It may contain keys.
    Ok(value.map(Zeroizing::new).map(|bytes| bytemuck::pod_read_unaligned(&bytes)))
}

/// Sets the value under a key.
pub(crate) fn update(map: &MapHandle, key: &[u8], value: &impl Pod) -> Result<(), BpfError> {
    map.update(key, bytemuck::bytes_of(value), MapFlags::ANY).map_err(failed("write to a map"))
}

/// Sets the socket with this number in a map of sockets, until it is closed.
pub(crate) fn set_socket(map: &MapHandle, number: u32, socket: BorrowedFd<'_>) -> Result<(), BpfError> {
    update(map, &number.to_ne_bytes(), &u64::from(socket.as_raw_fd().unsigned_abs()))
}
