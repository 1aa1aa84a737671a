//! Which interfaces a chain or a selector means.

use std::fmt;

use plait_wire::Role;

use crate::selector::is_word;

/// An interface of this host, or several.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Interface {
    /// The one of this name, which need not be there yet.
    Named(String),
    /// Those with this role.
    Role(Role),
    /// `*`: every one but the loopback interface.
    All,
}

/// The kernel's limit, without the final zero.
const LONGEST: usize = 15;

impl Interface {
    pub(crate) const EXPECTED: &str = "an interface's name, \"trusted\", \"untrusted\" or \"*\"";

    /// Reads a name, a role, or `*`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        match text {
            "*" => Some(Self::All),
            "trusted" => Some(Self::Role(Role::Trusted)),
            "untrusted" => Some(Self::Role(Role::Untrusted)),
            name => is_name(name).then(|| Self::Named(name.into())),
        }
    }
}

/// Whether an interface can have this name.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= LONGEST
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
