//! This Linux host: what plait asks of the kernel, and what it changes there.
//!
//! Everything here speaks the kernel's own interfaces (socket options, netlink, cgroups, BPF) and is written for
//! kernels older and newer than the one it was developed on: what a kernel does not have is an error that says so
//! or a `None`, never a panic. Whatever is set or made has an owner that undoes it when dropped, and can be undone
//! by the next start if its owner was killed.

mod bytes;
pub mod cgroup;
pub mod interfaces;
mod leftovers;
pub mod mptcp;
pub mod netlink;
pub mod netns;
pub mod pm;
mod sockopt;

pub use leftovers::{clean_run_folder, run_folder};
