//! The programs and maps of a namespace's engine, which live in the kernel as long as they are pinned.
//!
//! They are opened by their pins for each operation, so that changes of other processes are seen. Programs are loaded
//! when an interface or a dry run needs them first, as the verifier takes a while for each.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

use bytemuck::Pod;
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder, OpenObject, ProgramHandle, libbpf_sys as sys};

use plait_linux::{bpf_link, libbpf};

use super::error::EngineError;
use crate::bindings::plait_settings;
use crate::compile::ProgramKind as Kind;

/// The program array for tail calls; XDP and TC programs need separate ones.
pub(super) fn steps(kind: Kind) -> &'static str {
    match kind {
        Kind::Xdp => "xdp_steps",
        Kind::Tc => "tc_steps",
    }
}

/// The programs and maps of an engine, by the names below.
#[derive(Debug)]
pub(super) struct Objects {
    maps: BTreeMap<&'static str, MapHandle>,
    programs: [OnceLock<ProgramHandle>; PROGRAMS.len()],
    /// The directory of their pins, if they are pinned.
    pins: Option<PathBuf>,
    /// Whether XDP programs accept multi-buffer packets.
    pub(super) frags: bool,
}

impl Objects {
    /// Creates new ones, which live as long as this value unless they are pinned or attached.
    pub(super) fn new() -> Result<Objects, EngineError> {
        libbpf::log_messages();
        let mut maps = BTreeMap::new();
        for bytes in [TC, XDP] {
            let object =
                without_programs(bytes, &maps)?.load().map_err(EngineError::kernel("make the maps"))?;
            for map in object.maps() {
                let Some(name) = MAPS.iter().find(|name| map.name() == **name) else { continue };
                let handle = MapHandle::try_from(&map).map_err(EngineError::kernel("keep a map"))?;
                maps.insert(*name, handle);
            }
        }
        Ok(Objects { maps, programs: Default::default(), pins: None, frags: supports_frags() })
    }

    /// Opens those that are pinned in a directory; `None` if a map is missing.
    pub(super) fn open(directory: &Path, frags: bool) -> Option<Objects> {
        libbpf::log_messages();
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

    /// Pins all in a directory, including programs that are loaded later.
    pub(super) fn pin(&mut self, directory: &Path) -> Result<(), EngineError> {
        for (name, map) in &self.maps {
            let path = directory.join("maps").join(name);
            bpf_link::pin(map.as_fd(), &path).map_err(EngineError::directory("pin", &path))?;
        }
        for ((_, _, name), program) in PROGRAMS.iter().zip(&self.programs) {
            program.get().map_or(Ok(()), |program| pin_program(program, directory, name))?;
        }
        self.pins = Some(directory.to_owned());
        Ok(())
    }

    /// The map with one of the names in [`MAPS`].
    pub(super) fn map(&self, name: &'static str) -> Result<&MapHandle, EngineError> {
        self.maps.get(name).ok_or_else(|| EngineError::missing("map", name))
    }

    /// A map that custom programs may share, by name.
    pub(super) fn shared(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.maps.get(name).map(AsFd::as_fd)
    }

    /// The program with one of the names in [`PROGRAMS`], loaded if it was not yet.
    pub(super) fn program(&self, name: &'static str) -> Result<&ProgramHandle, EngineError> {
        let index = PROGRAMS.iter().position(|(_, _, other)| *other == name);
        let index = index.ok_or_else(|| EngineError::missing("program", name))?;
        if let Some(program) = self.programs[index].get() {
            return Ok(program);
        }
        let program = self.load(&PROGRAMS[index])?;
        Ok(self.programs[index].get_or_init(|| program))
    }

    /// Loads all programs that are not loaded yet.
    pub(super) fn load_all(&self) -> Result<(), EngineError> {
        PROGRAMS.iter().try_for_each(|(_, _, name)| self.program(name).map(|_| ()))
    }

    /// A program, if it is loaded.
    pub(super) fn loaded(&self, name: &'static str) -> Option<&ProgramHandle> {
        let index = PROGRAMS.iter().position(|(_, _, other)| *other == name)?;
        self.programs[index].get()
    }

    fn load(
        &self,
        (kind, name, pin_name): &(Kind, &str, &'static str),
    ) -> Result<ProgramHandle, EngineError> {
        let bytes = if *kind == Kind::Xdp { XDP } else { TC };
        let mut object = without_programs(bytes, &self.maps)?;
        let found = object.progs_mut().find(|program| program.name() == *name);
        let mut program = found.ok_or_else(|| EngineError::missing("program", pin_name))?;
        program.set_autoload(true);
        if *kind == Kind::Xdp && self.frags {
            program.set_flags(sys::BPF_F_XDP_HAS_FRAGS);
        }
        let object = object.load().map_err(EngineError::kernel("load a program"))?;
        let found = object.progs_mut().find(|program| program.name() == *name);
        let found = found.ok_or_else(|| EngineError::missing("program", pin_name))?;
        let program = ProgramHandle::try_from(&found).map_err(EngineError::kernel("keep a program"))?;
        self.pins.as_ref().map_or(Ok(()), |directory| pin_program(&program, directory, pin_name))?;
        Ok(program)
    }

    /// Sets an entry of the program array.
    pub(super) fn set_step(&self, kind: Kind, step: u32, program: BorrowedFd) -> Result<(), EngineError> {
        let value = program.as_raw_fd().to_ne_bytes();
        let map = self.map(steps(kind))?;
        map.update(&step.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(EngineError::kernel("change a program of the chain"))
    }

    /// Removes an entry of the program array, if it is set.
    pub(super) fn clear_step(&self, kind: Kind, step: u32) -> Result<(), EngineError> {
        match self.map(steps(kind))?.delete(&step.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(EngineError::kernel("remove a program of the chain")(error))
            }
            _ => Ok(()),
        }
    }

    /// An entry of the program array, if it is set.
    pub(super) fn step(&self, kind: Kind, step: u32) -> Result<Option<OwnedFd>, EngineError> {
        let failed = EngineError::kernel("look up a program of the chain");
        let Some(id) = self.read::<u32>(steps(kind), step)? else { return Ok(None) };
        libbpf_rs::Program::fd_from_id(id).map(Some).map_err(failed)
    }

    /// Reads an entry of an array map.
    pub(super) fn read<T: Pod>(&self, map: &'static str, key: u32) -> Result<Option<T>, EngineError> {
        let value = match self.map(map)?.lookup(&key.to_ne_bytes(), MapFlags::ANY) {
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(EngineError::kernel("read a map"))?,
        };
        Ok(value.and_then(|bytes| bytemuck::try_pod_read_unaligned(&bytes).ok()))
    }

    /// Writes an entry of an array map.
    pub(super) fn write<T: Pod>(&self, map: &'static str, key: u32, value: &T) -> Result<(), EngineError> {
        let map = self.map(map)?;
        map.update(&key.to_ne_bytes(), bytemuck::bytes_of(value), MapFlags::ANY)
            .map_err(EngineError::kernel("write a map"))
    }

    /// The settings of the programs.
    pub(super) fn settings(&self) -> Result<plait_settings, EngineError> {
        self.read("settings", 0)?.ok_or_else(|| EngineError::missing("map", "settings"))
    }

    pub(super) fn set_settings(&self, settings: &plait_settings) -> Result<(), EngineError> {
        self.write("settings", 0, settings)
    }
}

fn open(object: &[u8]) -> Result<OpenObject, EngineError> {
    ObjectBuilder::default().open_memory(object).map_err(EngineError::kernel("read the programs"))
}

/// Opens an object with no program to load yet, sharing existing maps.
fn without_programs(
    bytes: &[u8],
    maps: &BTreeMap<&'static str, MapHandle>,
) -> Result<OpenObject, EngineError> {
    let mut object = open(bytes)?;
    for mut map in object.maps_mut() {
        let shared = maps.iter().find(|(name, _)| map.name() == **name);
        if let Some((_, shared)) = shared {
            map.reuse_fd(shared.as_fd()).map_err(EngineError::kernel("share a map"))?;
        }
    }
    for mut program in object.progs_mut() {
        program.set_autoload(false);
    }
    Ok(object)
}

fn pin_program(program: &ProgramHandle, directory: &Path, name: &str) -> Result<(), EngineError> {
    let path = directory.join("programs").join(name);
    bpf_link::pin(program.as_fd(), &path).map_err(EngineError::directory("pin", &path))
}

/// Whether XDP programs may accept multi-buffer packets (Linux 5.18).
fn supports_frags() -> bool {
    let Ok(mut idle) = open(IDLE) else { return false };
    for mut program in idle.progs_mut() {
        program.set_flags(sys::BPF_F_XDP_HAS_FRAGS);
    }
    idle.load().is_ok()
}

/// A program that passes every packet.
pub(super) const IDLE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pass.bpf.o"));
const TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tc.bpf.o"));
const XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xdp.bpf.o"));

/// Identifies the interface between the programs and this crate: programs that another version of plait loaded may
/// use another one.
pub(super) static CONTRACT: LazyLock<u64> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    include_str!("../../bpf/intf.h").hash(&mut hasher);
    hasher.finish()
});

/// The maps of both objects.
const MAPS: &[&str] = &[
    "packets",
    "chains",
    "counters",
    "skipped",
    "settings",
    "flows",
    "connections",
    "events",
    "known",
    "leases",
    "parameters",
    "shared_storage",
    "xdp_steps",
    "tc_steps",
];

/// The programs: kind, name in its object, and name of its pin.
const PROGRAMS: [(Kind, &str, &str); 5] = [
    (Kind::Xdp, "ingress", "xdp_ingress"),
    (Kind::Tc, "ingress", "tc_ingress"),
    (Kind::Tc, "egress", "tc_egress"),
    (Kind::Tc, "ingress_ip", "tc_ingress_ip"),
    (Kind::Tc, "egress_ip", "tc_egress_ip"),
];
