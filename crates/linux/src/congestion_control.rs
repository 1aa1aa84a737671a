//! The default congestion control of a network namespace.

use std::fs;
use std::io;

const SETTING: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The default of the calling thread's network namespace.
///
/// # Errors
/// The sysctl cannot be read.
pub fn default_congestion_control() -> io::Result<String> {
    fs::read_to_string(SETTING).map(|name| name.trim().to_owned())
}

/// Whether it is a version of bbr, with which Linux's MPTCP was observed to deliver wrong bytes when paths are cut.
pub fn is_bbr(name: &str) -> bool {
    name.starts_with("bbr")
}
