//! The compiled programs: opening, loading, registering.

use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;

use libbpf_rs::{Link, MapCore as _, MapType, Object, ObjectBuilder, OpenObject, PrintLevel};

use crate::{Algorithm, Error};

/// Finds out whether this kernel takes the programs, by loading those of LIA; nothing is registered.
///
/// # Errors
/// [`Error::Kernel`] with what the kernel said.
pub fn probe() -> Result<(), Error> {
    load(Algorithm::Lia).map(|_| ())
}

/// Registers an algorithm, as long as the result lives or is pinned.
pub(crate) fn register(algorithm: Algorithm) -> Result<Link, Error> {
    attach(&mut load(algorithm)?, algorithm)
}

fn load(algorithm: Algorithm) -> Result<Object, Error> {
    let mut object = open(program_of(algorithm))?;
    // What only tests need.
    if let Some(mut steps) = object.maps_mut().find(|map| map.name() == "steps") {
        steps.set_autocreate(false).map_err(Error::kernel("read the programs"))?;
    }
    if let Some(mut calculate) = object.progs_mut().find(|program| program.name() == "calculate") {
        calculate.set_autoload(false);
    }
    object.load().map_err(Error::kernel("load the programs of the algorithm"))
}

pub(crate) fn attach(object: &mut Object, algorithm: Algorithm) -> Result<Link, Error> {
    let mut map = object.maps_mut().find(|map| map.map_type() == MapType::StructOps).ok_or_else(|| {
        Error::kernel("find the algorithm")(io::Error::from(io::ErrorKind::NotFound).into())
    })?;
    map.attach_struct_ops().map_err(|error| match error.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => Error::Taken(algorithm),
        _ => Error::kernel("register the algorithm")(error),
    })
}

/// Makes the sockets of a control group use an algorithm, as long as the result lives or is pinned.
pub(crate) fn attach_to_group(algorithm: Algorithm, group: BorrowedFd<'_>) -> Result<Link, Error> {
    let mut name = [0; NAME];
    name[..algorithm.kernel_name().len()].copy_from_slice(algorithm.kernel_name().as_bytes());
    let mut object = open(USE)?;
    for mut map in object.maps_mut() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            map.set_initial_value(&name).map_err(Error::kernel("name the algorithm"))?;
        }
    }
    let object = object.load().map_err(Error::kernel("load the program for a control group"))?;
    let program = object.progs_mut().next();
    let program = program
        .ok_or_else(|| Error::kernel("find the program")(io::Error::from(io::ErrorKind::NotFound).into()))?;
    program.attach_cgroup(group.as_raw_fd()).map_err(Error::kernel("attach to the control group"))
}

/// Opens an object, whose long texts on failure go to who looks for them.
pub(crate) fn open(bytes: &[u8]) -> Result<OpenObject, Error> {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
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

const USE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/use.bpf.o"));
/// `PLAIT_ALGORITHM_NAME`.
const NAME: usize = crate::bindings::PLAIT_ALGORITHM_NAME as usize;
