//! Boolean formulas of tests, with constants folded.

use super::test::{Compare, Field, Test};

/// A formula.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Formula {
    /// True or false for all packets.
    Constant(bool),
    /// It depends on the packet.
    Varying(Question),
}

/// A formula that depends on the packet and has no constant part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Question {
    Test(Test),
    Not(Box<Question>),
    All(Vec<Question>),
    Any(Vec<Question>),
}

impl Formula {
    pub(super) fn all(parts: impl IntoIterator<Item = Formula>) -> Self {
        Self::join(parts, true, Question::All)
    }

    pub(super) fn any(parts: impl IntoIterator<Item = Formula>) -> Self {
        Self::join(parts, false, Question::Any)
    }

    /// `neutral` is the identity element; the other constant absorbs.
    fn join(
        parts: impl IntoIterator<Item = Formula>,
        neutral: bool,
        join: fn(Vec<Question>) -> Question,
    ) -> Self {
        let mut varying = Vec::new();
        for part in parts {
            match part {
                Self::Constant(value) if value == neutral => {}
                Self::Constant(value) => return Self::Constant(value),
                Self::Varying(question) => varying.push(question),
            }
        }
        match varying.len() {
            0 => Self::Constant(neutral),
            1 => Self::Varying(varying.remove(0)),
            _ => Self::Varying(join(varying)),
        }
    }

    pub(super) fn not(self) -> Self {
        match self {
            Self::Constant(value) => Self::Constant(!value),
            Self::Varying(Question::Not(inner)) => Self::Varying(*inner),
            Self::Varying(question) => Self::Varying(Question::Not(Box::new(question))),
        }
    }

    /// At least one of these bits is set.
    pub(super) fn any_of(field: Field, mask: u64) -> Self {
        match mask & field.max() {
            0 => Self::Constant(false),
            mask => Self::test(field, Compare::AnyOf(mask)),
        }
    }

    /// The bits under the mask equal the value.
    pub(super) fn masked(field: Field, mask: u64, value: u64) -> Self {
        if value & !mask != 0 {
            return Self::Constant(false);
        }
        match mask & field.max() {
            0 => Self::Constant(true),
            mask => Self::test(field, Compare::Masked { mask, value }),
        }
    }

    pub(super) fn equal(field: Field, value: u64) -> Self {
        Self::masked(field, field.max(), value)
    }

    /// The number is in the inclusive range, which may wrap around.
    pub(super) fn within(field: Field, first: u64, last: u64) -> Self {
        let span = last.wrapping_sub(first) & field.max();
        if span == field.max() {
            Self::Constant(true)
        } else if span == 0 {
            Self::equal(field, first)
        } else {
            Self::test(field, Compare::Within { first, span })
        }
    }

    fn test(field: Field, compare: Compare) -> Self {
        Self::Varying(Question::Test(Test { field, compare }))
    }
}
