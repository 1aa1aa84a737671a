//! The paths of a session, and how many of them have a witness.

use std::fmt;

/// A session has at most this many witnesses: one for each path but the main one.
pub const MAX_WITNESSES: u8 = 15;

/// A session has at most this many paths; an initiator that has more uses and counts this many.
pub const MAX_PATHS: u8 = MAX_WITNESSES + 1;

/// Path numbers or counts that no session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathsError {
    /// A number of configured paths out of range.
    #[error("expected 1 to {MAX_PATHS} configured paths, got {0}")]
    Configured(u8),
    /// As many witnesses as configured paths, or more: the main path has none.
    #[error("expected fewer witnesses than the {configured} configured paths, got {got}")]
    Witnesses {
        /// Configured paths.
        configured: u8,
        /// Witnesses.
        got: u8,
    },
    /// A path number out of range.
    #[error("expected a path number from 1 to {MAX_WITNESSES}, got {0}")]
    Number(u8),
    /// Path numbers out of order, or repeated.
    #[error("expected path numbers in ascending order, got {got} after {before}")]
    Order {
        /// The number before.
        before: u8,
        /// The number after it.
        got: u8,
    },
}

/// A path of a session other than the main one: 1 to [`MAX_WITNESSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(u8);

impl PathId {
    /// The path with this number.
    ///
    /// # Errors
    /// The number is not within 1 to [`MAX_WITNESSES`].
    pub fn new(number: u8) -> Result<PathId, PathsError> {
        if (1..=MAX_WITNESSES).contains(&number) {
            Ok(PathId(number))
        } else {
            Err(PathsError::Number(number))
        }
    }

    pub(super) fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of paths other than the main one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PathIds(u16);

impl PathIds {
    /// The paths with these numbers, which must be in ascending order.
    pub(super) fn ascending(numbers: &[u8]) -> Result<PathIds, PathsError> {
        let mut before = 0;
        let in_order = numbers.iter().map(|&number| {
            let path = PathId::new(number)?;
            if number <= before {
                return Err(PathsError::Order { before, got: number });
            }
            before = number;
            Ok(path)
        });
        in_order.collect()
    }

    /// Whether the path is one of them.
    #[must_use]
    pub fn contains(self, path: PathId) -> bool {
        self.0 & (1 << path.0) != 0
    }

    /// Their number, at most [`MAX_WITNESSES`].
    #[must_use]
    pub fn count(self) -> u8 {
        self.0.count_ones() as u8
    }

    /// In ascending order.
    pub(super) fn iter(self) -> impl Iterator<Item = PathId> {
        (1..=MAX_WITNESSES).map(PathId).filter(move |path| self.contains(*path))
    }
}

impl FromIterator<PathId> for PathIds {
    fn from_iter<I: IntoIterator<Item = PathId>>(paths: I) -> PathIds {
        PathIds(paths.into_iter().fold(0, |set, path| set | 1 << path.0))
    }
}

impl fmt::Debug for PathIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(PathId::number)).finish()
    }
}

/// The number of paths that the initiator is configured to use, the main one included, and those that have a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paths {
    configured: u8,
    witnesses: PathIds,
}

impl Paths {
    /// So many configured paths, and these witnesses.
    ///
    /// # Errors
    /// The number of configured paths is out of range, or not above that of witnesses.
    pub fn new(configured: u8, witnesses: PathIds) -> Result<Paths, PathsError> {
        if !(1..=MAX_PATHS).contains(&configured) {
            return Err(PathsError::Configured(configured));
        }
        if witnesses.count() >= configured {
            return Err(PathsError::Witnesses { configured, got: witnesses.count() });
        }
        Ok(Paths { configured, witnesses })
    }

    /// How many the initiator is configured to use.
    #[must_use]
    pub fn configured(self) -> u8 {
        self.configured
    }

    /// Those that have a witness.
    #[must_use]
    pub fn witnesses(self) -> PathIds {
        self.witnesses
    }

    /// These, with another witness.
    pub(super) fn with_witness(self, path: PathId) -> Result<Paths, PathsError> {
        Paths::new(self.configured, self.witnesses.iter().chain([path]).collect())
    }

    /// The level of a session whose witnesses all confirm.
    pub(super) fn level(self) -> Level {
        Level { reached: self.witnesses.count() + 1, configured: self.configured }
    }
}

/// On how many of the configured paths an attacker must be active to remain undetected: `2/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Paths that took part: the main one and the witnesses.
    pub reached: u8,
    /// Paths that the initiator is configured to use.
    pub configured: u8,
}

impl Level {
    /// Whether every configured path took part, and so confirmed the others. A single path has nothing to confirm it.
    #[must_use]
    pub fn is_full(self) -> bool {
        self.reached == self.configured && !self.is_single()
    }

    /// Whether only one path is configured: protection against listeners only.
    #[must_use]
    pub fn is_single(self) -> bool {
        self.configured == 1
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.reached, self.configured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_fewer_witnesses_than_configured_paths() {
        let ids = |numbers: &[u8]| PathIds::ascending(numbers).expect("path numbers");
        assert_eq!(Paths::new(3, ids(&[4, 9])).map(|paths| paths.level().to_string()), Ok("3/3".into()));
        assert_eq!(Paths::new(3, ids(&[9])).map(|paths| paths.level().is_full()), Ok(false));
        assert_eq!(Paths::new(1, ids(&[])).map(|paths| paths.level().to_string()), Ok("1/1".into()));
        assert_eq!(Paths::new(1, ids(&[])).map(|paths| paths.level().is_full()), Ok(false));
        assert_eq!(Paths::new(2, ids(&[1])).map(|paths| paths.level().is_full()), Ok(true));
        assert_eq!(Paths::new(0, ids(&[])), Err(PathsError::Configured(0)));
        assert_eq!(Paths::new(17, ids(&[])), Err(PathsError::Configured(17)));
        assert_eq!(Paths::new(2, ids(&[1, 2])), Err(PathsError::Witnesses { configured: 2, got: 2 }));
    }

    #[test]
    fn path_numbers_ascend_from_1_to_15() {
        let all: Vec<u8> = (1..=15).collect();
        let paths = PathIds::ascending(&all).expect("path numbers");
        assert!(paths.iter().map(PathId::number).eq(all));
        assert_eq!(paths.count(), 15);
        assert_eq!(PathIds::ascending(&[0]), Err(PathsError::Number(0)));
        assert_eq!(PathIds::ascending(&[3, 16]), Err(PathsError::Number(16)));
        assert_eq!(PathIds::ascending(&[3, 3]), Err(PathsError::Order { before: 3, got: 3 }));
        assert_eq!(PathIds::ascending(&[3, 5, 4]), Err(PathsError::Order { before: 5, got: 4 }));
    }
}
