//! Negotiation by a flag of MP_CAPABLE, as the papers propose it: what a gateway attaches to interfaces for that.
//!
//! `bpf/negotiate.bpf.c` negotiates as ever; `bpf/capable_flag.bpf.c` turns its option into the flag in packets that leave,
//! and back in those that arrive.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;
use plait_linux::bpf_link::attach_to_all;
use rustix::fs::fstat;

use crate::bindings::plait_flag_settings;
use crate::bpf::{self, BpfError};
use crate::skeleton::capable_flag::CapableFlagSkelBuilder;

const HINT: &str = "--negotiate flag needs Linux 6.6, whose interfaces take programs by links (tcx)";

/// The programs at the interfaces that there were at the start, for as long as this lives.
pub(super) struct CapableFlag {
    _links: Vec<(u32, OwnedFd)>,
}

impl CapableFlag {
    /// Sets the flag for the sockets of a cgroup, and takes it from packets to them.
    pub(super) fn attach(cgroup: impl AsFd) -> Result<CapableFlag, BpfError> {
        let mut storage = MaybeUninit::uninit();
        let skeleton = bpf::load("capable_flag", CapableFlagSkelBuilder::default(), &mut storage);
        let skeleton = skeleton.map_err(|error| error.hint(HINT))?;
        // The number of its inode.
        let cgroup =
            fstat(cgroup).map_err(|error| BpfError::io("find the id of a cgroup", error.into()))?.st_ino;
        bpf::write_settings(&skeleton.maps.settings, &plait_flag_settings { cgroup })?;
        let failed = |error: io::Error| BpfError::io("attach to interfaces", error).hint(HINT);
        let programs = &skeleton.progs;
        let mut links = attach_to_all(programs.set_flag.as_fd(), sys::BPF_TCX_EGRESS).map_err(failed)?;
        links.extend(attach_to_all(programs.take_flag.as_fd(), sys::BPF_TCX_INGRESS).map_err(failed)?);
        Ok(CapableFlag { _links: links })
    }
}
