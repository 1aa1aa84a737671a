//! A negotiation that two processes have in common: one that ends, and the next one, which takes over its sockets.
//!
//! The kernel applies the programs of `bpf/negotiate.bpf.c` to a socket by the control group in which it was created, and with a listening socket also
//! to all that it accepts. So the next process enters that control group, puts its own programs in the place of those attached, and
//! stores outcomes in the same maps: a connection that one of them has begun to negotiate can be accepted by the other.

use std::os::fd::OwnedFd;

/// What the next process needs.
#[derive(Debug)]
pub struct SharedNegotiation {
    /// The process that has negotiated so far.
    pub process: u32,
    /// Maps and links of its programs, by name.
    pub descriptors: Vec<(String, OwnedFd)>,
}

/// How the names of links begin; that of the program follows.
const LINK: &str = "link ";

/// The name of the link of a program.
pub(super) fn link_name(program: &str) -> String {
    format!("{LINK}{program}")
}

impl SharedNegotiation {
    /// Takes out what has this name.
    pub(super) fn take(&mut self, name: &str) -> std::io::Result<OwnedFd> {
        let found = self.descriptors.iter().position(|(found, _)| found == name);
        let missing = || std::io::Error::other(format!("expected '{name}' of the other process, got none"));
        found.map(|at| self.descriptors.swap_remove(at).1).ok_or_else(missing)
    }

    /// Takes out the links, by the names of their programs.
    pub(super) fn take_links(&mut self) -> Vec<(String, OwnedFd)> {
        let named = std::mem::take(&mut self.descriptors).into_iter();
        named.filter_map(|(name, link)| Some((name.strip_prefix(LINK)?.to_owned(), link))).collect()
    }
}
