//! Names of paths.

use std::fmt;
use std::net::IpAddr;

use plait_linux::interfaces::Interface;

/// How a path is named: by its interface, or by an address that the interface has, now or later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathName {
    /// The name of the interface.
    Interface(String),
    /// An address of the interface, from which connections to the same family start.
    Address(IpAddr),
}

impl PathName {
    /// Whether it names this interface, which may change when the interface's addresses do.
    pub fn is_of(&self, interface: &Interface) -> bool {
        match self {
            PathName::Interface(name) => interface.name == *name,
            PathName::Address(ip) => interface.has_address(*ip),
        }
    }
}

impl From<&str> for PathName {
    /// What looks like an IPv4 or IPv6 address is one.
    fn from(text: &str) -> PathName {
        match text.parse::<IpAddr>() {
            Ok(address) => PathName::Address(address.to_canonical()),
            Err(_) => PathName::Interface(text.to_owned()),
        }
    }
}

impl fmt::Display for PathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathName::Interface(name) => f.write_str(name),
            PathName::Address(address) => address.fmt(f),
        }
    }
}
