//! Opens and loads the compiled program.

use std::io;

use libbpf_rs::{MapType, Object, OpenObject};
use plait_congestion::Error;

use crate::{Scheduler, requirements};

/// Checks whether this kernel has what the schedulers need and accepts their program, by loading it without registering
/// it.
///
/// # Errors
/// [`Error::Missing`], or [`Error::Kernel`] with the kernel's reason.
pub fn probe() -> Result<(), Error> {
    load(Scheduler::Ecf, Scheduler::Ecf.kernel_name()).map(|_| ())
}

pub(crate) fn load(scheduler: Scheduler, kernel_name: &str) -> Result<Object, Error> {
    requirements::check()?;
    let mut object = open(scheduler, kernel_name)?;
    // Used only by tests.
    if let Some(mut answer) = object.progs_mut().find(|program| program.name() == "answer") {
        answer.set_autoload(false);
    }
    object.load().map_err(Error::kernel("load the program of the scheduler"))
}

/// Opens the program, with its constant and its name in the kernel, of at most 15 bytes, set.
pub(crate) fn open(scheduler: Scheduler, kernel_name: &str) -> Result<OpenObject, Error> {
    let mut object = plait_congestion::open(PROGRAM)?;
    for mut map in object.maps_mut() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            map.set_initial_value(&scheduler.number().to_ne_bytes())
                .map_err(Error::kernel("choose the scheduler"))?;
        }
        if map.map_type() == MapType::StructOps {
            let renamed = map.initial_value_mut().and_then(|value| rename(value, kernel_name));
            renamed.ok_or_else(not_found)?;
        }
    }
    Ok(object)
}

/// The program is not as this crate expects it.
pub(crate) fn not_found() -> Error {
    Error::kernel("find the scheduler")(io::Error::from(io::ErrorKind::NotFound).into())
}

/// Replaces the name in the initial value of the `struct_ops`.
fn rename(value: &mut [u8], name: &str) -> Option<()> {
    let at = value.windows(PLACEHOLDER.len()).position(|part| part == PLACEHOLDER)?;
    value[at..at + PLACEHOLDER.len()].fill(0);
    value[at..at + name.len()].copy_from_slice(name.as_bytes());
    Some(())
}

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scheduler.bpf.o"));
/// The name in bpf/scheduler.bpf.c, which is as long as the kernel allows.
const PLACEHOLDER: &[u8] = b"plait_scheduler";
