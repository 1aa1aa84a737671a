//! The programs and maps of a namespace's engine, which live in the kernel as long as they are pinned.
//!
//! They are opened by their pins whenever they are needed: what another command has changed meanwhile is seen. For a
//! trial a program is loaded when it is needed, as it takes the kernel a while to verify one.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

use bytemuck::Pod;
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, ObjectBuilder, OpenObject, PrintLevel, ProgramHandle, libbpf_sys as sys,
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
    programs: [OnceLock<ProgramHandle>; PROGRAMS.len()],
    /// Where they are pinned, if they are.
    pins: Option<PathBuf>,
    /// XDP gets packets in several buffers, too.
    pub(super) frags: bool,
}

impl Objects {
    /// New ones, that live as long as this unless they are pinned or attached.
    pub(super) fn new() -> Result<Objects, Error> {
        quiet();
        let mut maps = BTreeMap::new();
        for bytes in [TC, XDP] {
            let object = without_programs(bytes, &maps)?.load().map_err(Error::kernel("make the maps"))?;
            for map in object.maps() {
                let Some(name) = MAPS.iter().find(|name| map.name() == **name) else { continue };
                let handle = MapHandle::try_from(&map).map_err(Error::kernel("keep a map"))?;
                maps.insert(*name, handle);
            }
        }
        Ok(Objects { maps, programs: Default::default(), pins: None, frags: takes_frags() })
    }

    /// Those that are pinned in a directory; `None` if a map is not.
    pub(super) fn open(directory: &Path, frags: bool) -> Option<Objects> {
        quiet();
        let mut maps = BTreeMap::new();
        for name in MAPS {
            maps.insert(*name, MapHandle::from_pinned_path(directory.join("maps").join(name)).ok()?);
        }
        let programs = PROGRAMS.map(|(_, _, name)| {
            let pinned = ProgramHandle::from_pinned_path(directory.join("programs").join(name));
            pinned.map_or_else(|_| OnceLock::new(), OnceLock::from)
        });
        Some(Objects { maps, programs, pins: Some(directory.to_owned()), frags })
    }

    /// Pins them all in a directory, also programs that are loaded later.
    pub(super) fn pin(&mut self, directory: &Path) -> Result<(), Error> {
        for (name, map) in &self.maps {
            let path = directory.join("maps").join(name);
            raw::pin(map.as_fd(), &path).map_err(Error::directory("pin", &path))?;
        }
        for ((_, _, name), program) in PROGRAMS.iter().zip(&self.programs) {
            program.get().map_or(Ok(()), |program| pin_program(program, directory, name))?;
        }
        self.pins = Some(directory.to_owned());
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

    /// A program: one of [`PROGRAMS`]. Loads it if that was not done before.
    pub(super) fn program(&self, name: &'static str) -> Result<&ProgramHandle, Error> {
        let place = PROGRAMS.iter().position(|(_, _, other)| *other == name);
        let place = place.ok_or_else(|| Error::missing("program", name))?;
        if let Some(program) = self.programs[place].get() {
            return Ok(program);
        }
        let program = self.load(&PROGRAMS[place])?;
        Ok(self.programs[place].get_or_init(|| program))
    }

    /// Loads what was not needed yet.
    pub(super) fn load_all(&self) -> Result<(), Error> {
        PROGRAMS.iter().try_for_each(|(_, _, name)| self.program(name).map(|_| ()))
    }

    /// A program, if it is loaded.
    pub(super) fn loaded(&self, name: &'static str) -> Option<&ProgramHandle> {
        let place = PROGRAMS.iter().position(|(_, _, other)| *other == name)?;
        self.programs[place].get()
    }

    fn load(&self, (kind, name, whole_name): &(Kind, &str, &'static str)) -> Result<ProgramHandle, Error> {
        let bytes = if *kind == Kind::Xdp { XDP } else { TC };
        let mut object = without_programs(bytes, &self.maps)?;
        let wanted = object.progs_mut().find(|program| program.name() == *name);
        let mut wanted = wanted.ok_or_else(|| Error::missing("program", whole_name))?;
        wanted.set_autoload(true);
        if *kind == Kind::Xdp && self.frags {
            wanted.set_flags(sys::BPF_F_XDP_HAS_FRAGS);
        }
        let object = object.load().map_err(Error::kernel("load a program"))?;
        let found = object.progs_mut().find(|program| program.name() == *name);
        let found = found.ok_or_else(|| Error::missing("program", whole_name))?;
        let program = ProgramHandle::try_from(&found).map_err(Error::kernel("keep a program"))?;
        self.pins.as_ref().map_or(Ok(()), |directory| pin_program(&program, directory, whole_name))?;
        Ok(program)
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

/// An object of which no program is to be loaded, and that shares the maps that there are.
fn without_programs(bytes: &[u8], maps: &BTreeMap<&'static str, MapHandle>) -> Result<OpenObject, Error> {
    let mut object = open(bytes)?;
    for mut map in object.maps_mut() {
        let shared = maps.iter().find(|(name, _)| map.name() == **name);
        if let Some((_, shared)) = shared {
            map.reuse_fd(shared.as_fd()).map_err(Error::kernel("share a map"))?;
        }
    }
    for mut program in object.progs_mut() {
        program.set_autoload(false);
    }
    Ok(object)
}

fn pin_program(program: &ProgramHandle, directory: &Path, name: &str) -> Result<(), Error> {
    let path = directory.join("programs").join(name);
    raw::pin(program.as_fd(), &path).map_err(Error::directory("pin", &path))
}

/// Whether programs for XDP may get packets in several buffers (kernel 5.18).
fn takes_frags() -> bool {
    let Ok(mut idle) = open(IDLE) else { return false };
    for mut program in idle.progs_mut() {
        program.set_flags(sys::BPF_F_XDP_HAS_FRAGS);
    }
    idle.load().is_ok()
}

/// Lets every packet pass.
pub(super) const IDLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pass.bpf.o"));
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
const PROGRAMS: [(Kind, &str, &str); 5] = [
    (Kind::Xdp, "ingress", "xdp_ingress"),
    (Kind::Tc, "ingress", "tc_ingress"),
    (Kind::Tc, "egress", "tc_egress"),
    (Kind::Tc, "ingress_ip", "tc_ingress_ip"),
    (Kind::Tc, "egress_ip", "tc_egress_ip"),
];
