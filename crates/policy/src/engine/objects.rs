//! The programs and maps of a namespace's engine, which live in the kernel as long as they are pinned.
//!
//! They are opened by their pins whenever they are needed: what another command has changed meanwhile is seen.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::LazyLock;

use bytemuck::Pod;
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramHandle,
    libbpf_sys as sys,
};

use super::{Error, sys as raw};
use crate::bindings::plait_settings;
use crate::compile::ProgramKind as Kind;

/// The map of programs that are called for a packet: those of XDP and of TC cannot be mixed.
pub(super) fn steps(kind: Kind) -> &'static str {
    match kind {
        Kind::Xdp => "xdp_steps",
        Kind::Tc => "tc_steps",
    }
}

/// The programs and maps of an engine, by their names below.
#[derive(Debug)]
pub(super) struct Objects {
    maps: BTreeMap<&'static str, MapHandle>,
    programs: BTreeMap<&'static str, ProgramHandle>,
    /// XDP gets packets in several buffers, too.
    pub(super) frags: bool,
}

impl Objects {
    /// Loads them: new ones, that live as long as this unless they are pinned or attached.
    pub(super) fn load() -> Result<Objects, Error> {
        quiet();
        let tc = open(TC)?.load().map_err(Error::kernel("load the programs for TC"))?;
        let (xdp, frags) = match open_xdp(&tc, sys::BPF_F_XDP_HAS_FRAGS)?.load() {
            Ok(xdp) => (xdp, true),
            Err(_) => (open_xdp(&tc, 0)?.load().map_err(Error::kernel("load the programs for XDP"))?, false),
        };
        let mut objects = Objects { maps: BTreeMap::new(), programs: BTreeMap::new(), frags };
        for name in MAPS {
            let found = tc.maps().chain(xdp.maps()).find(|map| map.name() == *name);
            let found = found.ok_or_else(|| Error::missing("map", name))?;
            let handle = MapHandle::try_from(&found).map_err(Error::kernel("keep a map"))?;
            objects.maps.insert(name, handle);
        }
        for (kind, name, whole_name) in PROGRAMS {
            let object = if *kind == Kind::Xdp { &xdp } else { &tc };
            let found = object.progs_mut().find(|program| program.name() == *name);
            let found = found.ok_or_else(|| Error::missing("program", whole_name))?;
            let handle = ProgramHandle::try_from(&found).map_err(Error::kernel("keep a program"))?;
            objects.programs.insert(whole_name, handle);
        }
        Ok(objects)
    }

    /// Those that are pinned in a folder; `None` if that is not all of them.
    pub(super) fn open(folder: &Path, frags: bool) -> Option<Objects> {
        quiet();
        let mut objects = Objects { maps: BTreeMap::new(), programs: BTreeMap::new(), frags };
        for name in MAPS {
            objects.maps.insert(name, MapHandle::from_pinned_path(folder.join("maps").join(name)).ok()?);
        }
        for (_, _, name) in PROGRAMS {
            let path = folder.join("programs").join(name);
            objects.programs.insert(name, ProgramHandle::from_pinned_path(path).ok()?);
        }
        Some(objects)
    }

    /// Pins them all in a folder.
    pub(super) fn pin(&self, folder: &Path) -> Result<(), Error> {
        let maps = self.maps.iter().map(|(name, map)| (folder.join("maps").join(name), map.as_fd()));
        let programs =
            self.programs.iter().map(|(name, program)| (folder.join("programs").join(name), program.as_fd()));
        for (path, object) in maps.chain(programs) {
            raw::pin(object, &path).map_err(Error::folder("pin", &path))?;
        }
        Ok(())
    }

    /// A map: one of [`MAPS`].
    pub(super) fn map(&self, name: &'static str) -> Result<&MapHandle, Error> {
        self.maps.get(name).ok_or_else(|| Error::missing("map", name))
    }

    /// A map that programs of the user's own may share, by name.
    pub(super) fn shared(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.maps.get(name).map(AsFd::as_fd)
    }

    /// A program: one of [`PROGRAMS`].
    pub(super) fn program(&self, name: &'static str) -> Result<&ProgramHandle, Error> {
        self.programs.get(name).ok_or_else(|| Error::missing("program", name))
    }

    /// Makes a program one of those that are called.
    pub(super) fn set_step(&self, kind: Kind, step: u32, program: BorrowedFd) -> Result<(), Error> {
        let value = program.as_raw_fd().to_ne_bytes();
        let map = self.map(steps(kind))?;
        map.update(&step.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(Error::kernel("change a program of the chain"))
    }

    /// Takes a program, if there is one, from those that are called.
    pub(super) fn clear_step(&self, kind: Kind, step: u32) -> Result<(), Error> {
        match self.map(steps(kind))?.delete(&step.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::kernel("remove a program of the chain")(error))
            }
            _ => Ok(()),
        }
    }

    /// The program of a step, if there is one.
    pub(super) fn step(&self, kind: Kind, step: u32) -> Result<Option<OwnedFd>, Error> {
        let failed = Error::kernel("look up a program of the chain");
        let Some(id) = self.read::<u32>(steps(kind), step)? else { return Ok(None) };
        libbpf_rs::Program::fd_from_id(id).map(Some).map_err(failed)
    }

    /// An entry of a map of numbers and structures of them.
    pub(super) fn read<T: Pod>(&self, map: &'static str, key: u32) -> Result<Option<T>, Error> {
        let value = match self.map(map)?.lookup(&key.to_ne_bytes(), MapFlags::ANY) {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(Error::kernel("read a map"))?,
        };
        Ok(value.and_then(|bytes| bytemuck::try_pod_read_unaligned(&bytes).ok()))
    }

    /// Writes an entry of a map.
    pub(super) fn write<T: Pod>(&self, map: &'static str, key: u32, value: &T) -> Result<(), Error> {
        let map = self.map(map)?;
        map.update(&key.to_ne_bytes(), bytemuck::bytes_of(value), MapFlags::ANY)
            .map_err(Error::kernel("write a map"))
    }

    /// What the programs are asked to do.
    pub(super) fn settings(&self) -> Result<plait_settings, Error> {
        self.read("settings", 0)?.ok_or_else(|| Error::missing("map", "settings"))
    }

    pub(super) fn set_settings(&self, settings: &plait_settings) -> Result<(), Error> {
        self.write("settings", 0, settings)
    }
}

/// What libbpf says, to who looks for it: a program that the kernel refuses comes with a long text.
fn quiet() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
}

fn open(object: &[u8]) -> Result<OpenObject, Error> {
    ObjectBuilder::default().open_memory(object).map_err(Error::kernel("read the programs"))
}

/// The programs for XDP with the maps that those for TC have.
fn open_xdp(tc: &Object, flags: u32) -> Result<OpenObject, Error> {
    let mut xdp = open(XDP)?;
    for mut map in xdp.maps_mut() {
        let shared = tc.maps().find(|shared| shared.name() == map.name());
        if let Some(shared) = shared.filter(|shared| !shared.name().to_string_lossy().contains('.')) {
            map.reuse_fd(shared.as_fd()).map_err(Error::kernel("share a map"))?;
        }
    }
    for mut program in xdp.progs_mut() {
        program.set_flags(flags);
    }
    Ok(xdp)
}

const TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tc.bpf.o"));
const XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp.bpf.o"));

/// A number for what the programs and Rust exchange: another version of this program, which loaded programs that are
/// still there, may have another.
pub(super) static CONTRACT: LazyLock<u64> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    include_str!("../bindings.rs").hash(&mut hasher);
    hasher.finish()
});

/// The maps of both objects.
const MAPS: &[&str] = &[
    "packets",
    "chains",
    "counters",
    "left_alone",
    "settings",
    "flows",
    "connections",
    "events",
    "known",
    "leases",
    "xdp_steps",
    "tc_steps",
];

/// The programs, their names in their objects, and those of their pins.
const PROGRAMS: &[(Kind, &str, &str)] = &[
    (Kind::Xdp, "ingress", "xdp_ingress"),
    (Kind::Tc, "ingress", "tc_ingress"),
    (Kind::Tc, "egress", "tc_egress"),
    (Kind::Tc, "ingress_ip", "tc_ingress_ip"),
    (Kind::Tc, "egress_ip", "tc_egress_ip"),
];
