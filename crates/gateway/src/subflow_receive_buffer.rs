//! Gives new subflows the receive buffer of their connection when they are established, by `bpf/subflow_receive_buffer.bpf.c`. A gateway
//! that may not load it does so soon afterwards ([`crate::paths`]).

use std::io;
use std::os::fd::AsFd;

use plait_linux::sysctl;
use rustix::process::{Resource, getrlimit};

use crate::bpf::{self, BpfError};
use crate::capacity::is_low;
use crate::skeleton::subflow_receive_buffer::SubflowReceiveBufferSkelBuilder;

/// The least value of `net.core.rmem_max` that is of use, in bytes: 4 MiB are the default since Linux 6.16, 208 KiB before. TCP does
/// not adapt a subflow's buffer once it was set.
const MIN_RMEM_MAX: u64 = 1 << 20;

/// Gives the subflows of a cgroup's MPTCP connections their receive buffers until dropped.
pub(crate) struct SubflowReceiveBuffer {
    _programs: bpf::Programs,
}

impl SubflowReceiveBuffer {
    /// Attaches to a cgroup that holds only the gateway, for subflows established from then on.
    ///
    /// # Errors
    /// The kernel rejects the program, or `net.core.rmem_max` or the limit of open files is too small.
    pub(crate) fn attach(cgroup: impl AsFd) -> Result<SubflowReceiveBuffer, BpfError> {
        check_resource_limits().map_err(|reason| BpfError::io("size receive buffers", reason))?;
        let builder = SubflowReceiveBufferSkelBuilder::default();
        let programs = bpf::load_and_attach("subflow_receive_buffer", builder, cgroup)?;
        Ok(SubflowReceiveBuffer { _programs: programs })
    }
}

fn check_resource_limits() -> io::Result<()> {
    if is_low(getrlimit(Resource::Nofile)) {
        return Err(io::Error::other("connections need the descriptors"));
    }
    match sysctl::read("net/core/rmem_max")?.parse::<u64>() {
        Ok(most) if most < MIN_RMEM_MAX => Err(io::Error::other(format!("net.core.rmem_max is {most}"))),
        _ => Ok(()),
    }
}
