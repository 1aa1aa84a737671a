//! BPF links to interfaces, and pins: what libbpf-rs has no function for.
//!
//! The `unsafe` code here passes pointers to values that outlive the call.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;

use crate::interfaces::interfaces;

/// Attaches a program to an interface of the current network namespace by a link, which detaches it when its last
/// descriptor or pin goes. `place` is an attach type, such as `BPF_TCX_EGRESS`.
///
/// # Errors
/// The kernel's reason.
pub fn attach(program: BorrowedFd<'_>, if_index: u32, place: u32, flags: u32) -> io::Result<OwnedFd> {
    link(program, i32::try_from(if_index).map_err(io::Error::other)?, place, flags)
}

/// Attaches a program of sk_lookup to a network namespace, likewise.
///
/// # Errors
/// The kernel's reason.
pub fn attach_to_namespace(program: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    link(program, namespace.as_raw_fd(), sys::BPF_SK_LOOKUP, 0)
}

fn link(program: BorrowedFd<'_>, target: i32, place: u32, flags: u32) -> io::Result<OwnedFd> {
    let options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as _,
        flags,
        ..Default::default()
    };
    // SAFETY: the options live until the call returns.
    let result = unsafe { sys::bpf_link_create(program.as_raw_fd(), target, place, &options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Attaches a program to every interface of the current network namespace except loopback. Returns the links with the
/// indices of their interfaces.
///
/// # Errors
/// The kernel's reason. An interface that is removed meanwhile is not one.
pub fn attach_to_all(program: BorrowedFd<'_>, place: u32) -> io::Result<Vec<(u32, OwnedFd)>> {
    let mut links = Vec::new();
    let interfaces = interfaces().map_err(io::Error::other)?;
    for interface in interfaces.iter().filter(|interface| !interface.loopback) {
        match attach(program, interface.index, place, 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            link => links.push((interface.index, link?)),
        }
    }
    Ok(links)
}

/// Pins a map, program or link in a BPF file system.
///
/// # Errors
/// The kernel's reason.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path lives until the call returns.
    let result = unsafe { sys::bpf_obj_pin(object.as_raw_fd(), path.as_ptr()) };
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}
