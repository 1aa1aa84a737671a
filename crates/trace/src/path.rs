//! Network paths and their captures.

use plait_config::Role;

/// A network path and its capture's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Its name for the user.
    pub name: String,
    /// Whether it is trusted.
    pub role: Role,
}

/// Index of a path among the captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathId(pub(crate) usize);
