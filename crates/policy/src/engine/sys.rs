//! System calls that libbpf-rs does not wrap, and one socket option.
//!
//! The `unsafe` code here passes pointers to values that outlive the call, with their lengths.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use libbpf_rs::libbpf_sys as sys;

use crate::bindings::{
    plait_actor, plait_chain, plait_connection, plait_counter, plait_event, plait_flow, plait_flow_dir,
    plait_flow_key, plait_packet, plait_parameters, plait_settings, plait_socket,
};

/// The result of a test run.
pub(super) struct ProgramRun {
    pub(super) packet: Vec<u8>,
    /// Average of the repetitions.
    pub(super) nanoseconds: u32,
}

/// Runs a program `repeat` times on a packet that is neither received nor sent. `context` is the beginning of `struct
/// xdp_md` or `struct __sk_buff`.
pub(super) fn run(
    program: BorrowedFd,
    packet: &[u8],
    context: &[u32],
    repeat: u32,
) -> io::Result<ProgramRun> {
    // Actors may lengthen the packet.
    let mut out = vec![0; packet.len() + 256];
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as _,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        // An empty context would say that the packet is empty.
        ctx_in: if context.is_empty() { std::ptr::null() } else { context.as_ptr().cast() },
        ctx_size_in: size_of_val(context) as u32,
        repeat: i32::try_from(repeat).map_err(io::Error::other)?,
        ..Default::default()
    };
    // SAFETY: all pointers are to values that live until the end of this function, with their lengths.
    let result = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    out.truncate(options.data_size_out as usize);
    Ok(ProgramRun { packet: out, nanoseconds: options.duration })
}

/// The unique cookie of the current network namespace (`SO_NETNS_COOKIE`, Linux 5.14).
pub(super) fn namespace_cookie() -> io::Result<u64> {
    let socket = UnixDatagram::unbound()?;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

/// `CLOCK_MONOTONIC`, the clock of the programs.
pub(super) fn now() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `now` alone.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

const SO_NETNS_COOKIE: i32 = 71;

/// Structures of integers without hidden padding, as intf.h asserts.
macro_rules! plain {
    ($($name:ty),*) => {$(
        // SAFETY: integers only, and intf.h asserts that the size is the sum of the fields' sizes.
        unsafe impl Zeroable for $name {}
        // SAFETY: as above.
        unsafe impl Pod for $name {}
    )*};
}

plain!(
    plait_actor,
    plait_chain,
    plait_connection,
    plait_counter,
    plait_event,
    plait_flow,
    plait_flow_key,
    plait_flow_dir,
    plait_packet,
    plait_parameters,
    plait_settings,
    plait_socket
);
