//! Opens, loads and registers the compiled programs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Link, MapCore as _, MapType, Object, ObjectBuilder, OpenObject, PrintLevel};

use crate::skeleton::cgroup::CgroupSkelBuilder;
use crate::{Algorithm, Error};

/// Checks whether this kernel accepts the programs by loading those of LIA, without registering them.
///
/// # Errors
/// [`Error::Kernel`] with the kernel's reason.
pub fn probe() -> Result<(), Error> {
    load(Algorithm::Lia).map(|_| ())
}

/// Registers an algorithm until the result is dropped, or unpinned if it was pinned.
pub(crate) fn register(algorithm: Algorithm) -> Result<Link, Error> {
    attach(&mut load(algorithm)?, algorithm)
}

fn load(algorithm: Algorithm) -> Result<Object, Error> {
    let mut object = open(program_of(algorithm))?;
    // Used only by tests.
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
        libbpf_rs::ErrorKind::AlreadyExists => Error::NameTaken(algorithm),
        _ => Error::kernel("register the algorithm")(error),
    })
}

/// Enables an algorithm for the sockets of a control group until the result is dropped, or unpinned if it was pinned.
pub(crate) fn attach_to_cgroup(algorithm: Algorithm, cgroup: BorrowedFd<'_>) -> Result<Link, Error> {
    redirect_messages();
    let mut storage = MaybeUninit::uninit();
    let mut program =
        CgroupSkelBuilder::default().open(&mut storage).map_err(Error::kernel("read the programs"))?;
    if let Some(constants) = &mut program.maps.rodata_data {
        for (byte, letter) in constants.algorithm.iter_mut().zip(algorithm.kernel_name().bytes()) {
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

/// Opens an object.
pub(crate) fn open(bytes: &[u8]) -> Result<OpenObject, Error> {
    redirect_messages();
    ObjectBuilder::default().open_memory(bytes).map_err(Error::kernel("read the programs"))
}

/// Redirects messages of libbpf, such as the long verifier log of a rejected program, to the debug log.
fn redirect_messages() {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
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
