//! Socket options that no library supports, as bytes.
//!
//! `unsafe` is used only because `getsockopt` and `setsockopt` take raw pointers; both functions here are safe.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Reads the value of an option into `buffer`. Returns the number of bytes written.
///
/// The initial content of `buffer` is passed to the kernel, as some options require. Must not be used for options whose
/// value contains pointers, through which the kernel would write.
pub(crate) fn get(fd: impl AsFd, level: i32, name: i32, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(buffer.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the pointer and the length describe `buffer`, which outlives the call.
    let result = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, name, buffer.as_mut_ptr().cast(), &raw mut length)
    };
    if result == 0 { Ok((length as usize).min(buffer.len())) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option.
pub(crate) fn set(fd: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let result =
        unsafe { libc::setsockopt(fd.as_fd().as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
