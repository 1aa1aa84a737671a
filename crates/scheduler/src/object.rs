//! Opens and loads the compiled program.

use std::io;

use libbpf_rs::{MapType, Object, OpenObject};
use plait_congestion::Error;
use plait_linux::bpf_source::{SourceError, object_of};

use crate::{Scheduler, SchedulerConfig, requirements};

/// Checks whether this kernel has what the schedulers need and accepts their program, by loading it without registering
/// it.
///
/// # Errors
/// [`Error::Missing`], or [`Error::Kernel`] with the kernel's reason.
pub fn probe() -> Result<(), Error> {
    load(&Scheduler::Ecf.into(), Scheduler::Ecf.kernel_name()).map(|_| ())
}

pub(crate) fn load(config: &SchedulerConfig, kernel_name: &str) -> Result<Object, Error> {
    requirements::check()?;
    let mut object = match (&config.file, config.scheduler()) {
        (Some(file), _) => open(&object_of(file, HEADERS)?, Scheduler::File, kernel_name),
        (None, Scheduler::File) => Err(SourceError::Kind(Scheduler::File.name().into()).into()),
        (None, scheduler) => open(PROGRAM, scheduler, kernel_name),
    }?;
    // Used only by tests.
    if let Some(mut answer) = object.progs_mut().find(|program| program.name() == "answer") {
        answer.set_autoload(false);
    }
    object.load().map_err(Error::kernel("load the program of the scheduler"))
}

/// Opens the program, with its constant and its name in the kernel, of at most 15 bytes, set.
pub(crate) fn open(program: &[u8], scheduler: Scheduler, kernel_name: &str) -> Result<OpenObject, Error> {
    let mut object = plait_congestion::open(program)?;
    for mut map in object.maps_mut() {
        if map.name().to_string_lossy().ends_with(".rodata") {
            set_scheduler(map.initial_value_mut(), scheduler).ok_or_else(not_found)?;
        }
        if map.map_type() == MapType::StructOps {
            let renamed = map.initial_value_mut().and_then(|value| rename(value, kernel_name));
            renamed.ok_or_else(not_found)?;
        }
    }
    Ok(object)
}

/// The first constant of the program.
fn set_scheduler(constants: Option<&mut [u8]>, scheduler: Scheduler) -> Option<()> {
    let number = scheduler.number().to_ne_bytes();
    constants?.get_mut(..number.len())?.copy_from_slice(&number);
    Some(())
}

/// What users want of paths: the maps of bpf/options.h.
pub(crate) const PATH_OPTIONS: &str = "path_options";
pub(crate) const TARGETS: &str = "targets";
/// The program of bpf/fill.h, for the packets that leave by an interface.
pub(crate) const FILL: &str = "fill";

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

pub(crate) const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/scheduler.bpf.o"));
/// The name in bpf/scheduler.bpf.c, which is as long as the kernel allows.
const PLACEHOLDER: &[u8] = b"plait_scheduler";
/// What a user's program includes.
const HEADERS: &[(&str, &[u8])] = &[
    ("plait_scheduler.h", include_bytes!("../bpf/plait_scheduler.h")),
    ("scheduler.bpf.c", include_bytes!("../bpf/scheduler.bpf.c")),
    ("decision.h", include_bytes!("../bpf/decision.h")),
    ("fill.h", include_bytes!("../bpf/fill.h")),
    ("gate.h", include_bytes!("../bpf/gate.h")),
    ("intf.h", include_bytes!("../bpf/intf.h")),
    ("known_paths.h", include_bytes!("../bpf/known_paths.h")),
    ("options.h", include_bytes!("../bpf/options.h")),
    ("probe.h", include_bytes!("../bpf/probe.h")),
    ("rate.h", include_bytes!("../bpf/rate.h")),
    ("send_buffer.h", include_bytes!("../bpf/send_buffer.h")),
    ("siblings.h", include_bytes!("../bpf/siblings.h")),
    ("subflow_state.h", include_bytes!("../bpf/subflow_state.h")),
    ("addresses.h", include_bytes!("../../../bpf/include/addresses.h")),
    ("constants.h", include_bytes!("../../../bpf/include/constants.h")),
    ("kernel.h", include_bytes!("../../../bpf/include/kernel.h")),
    ("repair.h", include_bytes!("../../../bpf/include/repair.h")),
    ("subflows.h", include_bytes!("../../../bpf/include/subflows.h")),
    ("unsent.h", include_bytes!("../../../bpf/include/unsent.h")),
];
