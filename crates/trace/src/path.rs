use plait_wire::Role;

/// A path that a capture was taken on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// What the user calls it.
    pub name: String,
    /// Whether somebody may listen on it.
    pub role: Role,
}

/// A path by its place among the captures that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathId(pub(crate) usize);
