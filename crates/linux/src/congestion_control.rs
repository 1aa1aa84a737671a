//! The default congestion control of a network namespace.

use std::io;

use crate::sysctl;

/// The default of the calling thread's network namespace.
///
/// # Errors
/// The sysctl cannot be read.
pub fn default_congestion_control() -> io::Result<String> {
    sysctl::read("net/ipv4/tcp_congestion_control")
}

/// Whether it is a version of bbr, with which Linux's MPTCP was observed to deliver wrong bytes when paths are cut.
pub fn is_bbr(name: &str) -> bool {
    name.starts_with("bbr")
}
