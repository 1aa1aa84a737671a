//! Which interfaces a chain or a selector refers to.

use std::fmt;

use plait_config::Role;

use super::names::is_word;

/// One or more interfaces of this host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Interface {
    /// The interface with this name; it may not exist yet.
    Named(String),
    /// All interfaces with this role.
    Role(Role),
    /// `*`: all interfaces except loopback.
    All,
}

/// The kernel's limit without the terminating NUL (`IFNAMSIZ`).
const MAX_NAME_LENGTH: usize = 15;

impl Interface {
    pub(crate) const EXPECTED: &str = "an interface name, \"trusted\", \"untrusted\" or \"*\"";

    /// Reads a name, a role, or `*`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "*" => Some(Self::All),
            "trusted" => Some(Self::Role(Role::Trusted)),
            "untrusted" => Some(Self::Role(Role::Untrusted)),
            name => is_interface_name(name).then(|| Self::Named(name.into())),
        }
    }
}

/// Whether an interface can have this name, and a policy can refer to it.
pub(super) fn is_interface_name(name: &str) -> bool {
    name.len() <= MAX_NAME_LENGTH
        && is_word(name)
        && !name.contains(['/', ':', '*'])
        && !name.contains(char::is_control)
        && ![".", "..", "trusted", "untrusted"].contains(&name)
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Role(role) => role.fmt(f),
            Self::All => f.write_str("*"),
        }
    }
}
