//! Probes the packet hooks on one end of a virtual link in a temporary network namespace.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use libbpf_rs::{TC_EGRESS, TcHookBuilder, libbpf_sys as sys};
use rustix::mount::{FsOpenFlags, fsconfig_create, fsopen};

use super::Finding;
use super::kernel::{in_new_namespace, run};
use super::programs::load;
use crate::bpf_link;
use crate::interfaces::interfaces;

pub(super) fn xdp() -> Finding {
    with_program("xdp_pass", |program, if_index| {
        let attach = |flags| bpf_link::attach(program, if_index, sys::BPF_XDP, flags);
        let Err(native) = attach(sys::XDP_FLAGS_DRV_MODE) else {
            return Ok("attached in native mode to a virtual link".into());
        };
        attach(sys::XDP_FLAGS_SKB_MODE)
            .map(|_| format!("attached in generic mode to a virtual link; native mode: {native}"))
            .map_err(|generic| format!("native mode: {native}; generic mode: {generic}"))
    })
}

pub(super) fn tcx() -> Finding {
    with_program("tc_pass", |program, if_index| {
        let link = bpf_link::attach(program, if_index, sys::BPF_TCX_EGRESS, 0);
        link.map_err(|error| error.to_string())?;
        Ok("attached to a virtual link".into())
    })
}

pub(super) fn clsact() -> Finding {
    with_program("tc_pass", |program, if_index| {
        let if_index = i32::try_from(if_index).map_err(|error| error.to_string())?;
        let mut filter = TcHookBuilder::new(program).ifindex(if_index).handle(1).priority(1).hook(TC_EGRESS);
        let attached = filter.create().and_then(|mut filter| filter.attach());
        attached.map_err(|error| error.to_string())?;
        Ok("attached to a virtual link".into())
    })
}

/// A detached mount, which is removed when its descriptor is closed.
pub(super) fn file_system() -> Finding {
    let make = || fsconfig_create(fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC)?);
    make().map_err(|error| io::Error::from(error).to_string())?;
    Ok("created and removed".into())
}

/// Loads a program of `probe.bpf.c`, and calls `work` with it and the index of an interface to attach it to.
fn with_program(name: &str, work: impl FnOnce(BorrowedFd<'_>, u32) -> Finding + Send) -> Finding {
    in_new_namespace(|| {
        run("ip", "link add plait0 type veth peer name plait1")?;
        let interfaces = interfaces().map_err(|error| error.to_string())?;
        let end = interfaces.iter().find(|interface| interface.name == "plait0");
        let if_index = end.map(|end| end.index).ok_or("expected the new virtual link plait0, got none")?;
        let object = load(&[name])?;
        let program = object.progs().find(|program| program.name() == name);
        let program = program.ok_or_else(|| format!("expected a program {name} in probe.bpf.c, got none"))?;
        work(program.as_fd(), if_index)
    })?
}
