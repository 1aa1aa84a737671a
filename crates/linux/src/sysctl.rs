//! Settings of the kernel below `/proc/sys`, of the network namespace of the calling thread.

use std::fs;
use std::io;

/// The value of a setting, named with slashes, as interfaces' names may contain dots: `net/ipv4/conf/eth0.5/rp_filter`.
///
/// # Errors
/// The kernel does not have it, or `/proc/sys` cannot be read.
pub fn read(name: &str) -> io::Result<String> {
    let path = format!("/proc/sys/{name}");
    let text = fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot read {path}: {error}")))?;
    Ok(text.trim().to_owned())
}
