//! Opens, loads and registers the compiled programs.

use std::io::{self, ErrorKind, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Iter, Link, MapCore as _, MapType, Object, ObjectBuilder, OpenObject};
use plait_linux::libbpf;

use crate::skeleton::cgroup::CgroupSkelBuilder;
use crate::{Algorithm, Error, KernelAlgorithm};

/// Checks whether this kernel accepts the programs by loading those of LIA, without registering them.
///
/// # Errors
/// [`Error::Kernel`] with the kernel's reason.
pub fn probe() -> Result<(), Error> {
    Algorithm::Lia.load().map(|_| ())
}

/// Loads an object without the maps and programs of these names, which only tests use.
pub(crate) fn load(bytes: &[u8], maps: &[&str], programs: &[&str]) -> Result<Object, Error> {
    let mut object = open(bytes)?;
    for mut map in
        object.maps_mut().filter(|map| map.name().to_str().is_some_and(|name| maps.contains(&name)))
    {
        map.set_autocreate(false).map_err(Error::kernel("read the programs"))?;
    }
    for mut program in object
        .progs_mut()
        .filter(|program| program.name().to_str().is_some_and(|name| programs.contains(&name)))
    {
        program.set_autoload(false);
    }
    object.load().map_err(Error::kernel("load the programs of the algorithm"))
}

/// Registers the algorithm of an object until the result is dropped, or unpinned if it was pinned.
pub(crate) fn register(object: &mut Object, kernel_name: &'static str) -> Result<Link, Error> {
    let mut map = object.maps_mut().find(|map| map.map_type() == MapType::StructOps).ok_or_else(|| {
        Error::kernel("find the algorithm")(io::Error::from(io::ErrorKind::NotFound).into())
    })?;
    map.attach_struct_ops().map_err(|error| match error.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => Error::NameTaken(kernel_name),
        _ => Error::kernel("register the algorithm")(error),
    })
}

/// A descriptor of the map or program of this name in a loaded object.
///
/// # Errors
/// [`Error::Kernel`]: there is none, or this process has too many descriptors.
pub fn part(object: &Object, name: &str) -> Result<OwnedFd, Error> {
    let maps = object.maps().filter(|map| map.name() == name).map(|map| map.as_fd().try_clone_to_owned());
    let programs = object.progs().filter(|program| program.name() == name);
    let mut found = maps.chain(programs.map(|program| program.as_fd().try_clone_to_owned()));
    let found = found.next().unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
    found.map_err(|error| Error::kernel("find a part of the algorithm")(error.into()))
}

/// Enables an algorithm for the sockets of a control group until the result is dropped, or unpinned if it was pinned.
pub(crate) fn attach_to_cgroup(kernel_name: &str, cgroup: BorrowedFd<'_>) -> Result<Link, Error> {
    libbpf::log_messages();
    let mut storage = MaybeUninit::uninit();
    let mut program =
        CgroupSkelBuilder::default().open(&mut storage).map_err(Error::kernel("read the programs"))?;
    if let Some(constants) = &mut program.maps.rodata_data {
        for (byte, letter) in constants.algorithm.iter_mut().zip(kernel_name.bytes()) {
            *byte = letter.cast_signed();
        }
    }
    let program = program.load().map_err(Error::kernel("load the program for a control group"))?;
    program
        .progs
        .assign
        .attach_cgroup(cgroup.as_raw_fd())
        .map_err(Error::kernel("attach to the control group"))
}

/// All that a program that iterates (`iter/tcp`) writes.
///
/// # Errors
/// The kernel's reason.
pub fn iterate(program: &Link) -> libbpf_rs::Result<Vec<u8>> {
    let mut iterator = Iter::new(program)?;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 15]);
    loop {
        match iterator.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend_from_slice(&buffer[..length]),
            // The kernel interrupts the iteration after a million sockets without output.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens an object. Messages of libbpf become debug messages.
///
/// # Errors
/// [`Error::Kernel`].
pub fn open(bytes: &[u8]) -> Result<OpenObject, Error> {
    libbpf::log_messages();
    ObjectBuilder::default().open_memory(bytes).map_err(Error::kernel("read the programs"))
}

pub(crate) fn program_of(algorithm: Algorithm) -> &'static [u8] {
    match algorithm {
        Algorithm::Ewtcp => include_bytes!(concat!(env!("OUT_DIR"), "/ewtcp.bpf.o")),
        Algorithm::Coupled => include_bytes!(concat!(env!("OUT_DIR"), "/coupled.bpf.o")),
        Algorithm::Lia => include_bytes!(concat!(env!("OUT_DIR"), "/lia.bpf.o")),
        Algorithm::Olia => include_bytes!(concat!(env!("OUT_DIR"), "/olia.bpf.o")),
        Algorithm::Balia => include_bytes!(concat!(env!("OUT_DIR"), "/balia.bpf.o")),
    }
}
