//! Probes BPF programs by loading each and attaching it to an empty cgroup.

use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{Object, ObjectBuilder};

use super::Finding;

pub(super) fn load_and_attach() -> Finding {
    attempt(&["nothing"])
}

pub(super) fn header_options() -> Finding {
    attempt(&["header_option"])
}

pub(super) fn socket_storage() -> Finding {
    attempt(&["socket_storage"])
}

pub(super) fn mptcp_sockets() -> Finding {
    attempt(&["mptcp_socket"])
}

pub(super) fn redirect() -> Finding {
    attempt(&["connect4", "connect6", "getpeername4", "getpeername6"])
}

/// Loads and attaches these programs of `probe.bpf.c`.
fn attempt(names: &[&str]) -> Finding {
    let object = load(names)?;
    let cgroup = super::kernel::empty_cgroup()?;
    for program in object.progs_mut().filter(|program| names.iter().any(|name| program.name() == *name)) {
        let link = program.attach_cgroup(cgroup.as_fd().as_raw_fd());
        drop(link.map_err(|error| format!("the programs were loaded but cannot be attached: {error}"))?);
    }
    Ok(if names.len() == 1 { "loaded and attached" } else { "all loaded and attached" }.into())
}

/// Loads only these programs of `probe.bpf.c`.
///
/// Selected by name: a skeleton would need each selection twice, for the opened and the loaded object.
pub(super) fn load(names: &[&str]) -> Result<Object, String> {
    let mut object = ObjectBuilder::default().open_memory(PROBE).map_err(|error| error.to_string())?;
    for mut program in object.progs_mut() {
        let wanted = names.iter().any(|name| program.name() == *name);
        program.set_autoload(wanted);
    }
    object.load().map_err(|error| format!("the kernel rejects the programs: {error}"))
}

const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/probe.bpf.o"));
