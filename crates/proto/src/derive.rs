//! Implementations that several types share: names of an enum's values, and a `Debug` that hides secrets.

/// A text is not the name of any value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {what} ({}), got '{got}'", .names.join(", "))]
pub struct ParseNameError {
    pub(crate) what: &'static str,
    pub(crate) names: &'static [&'static str],
    pub(crate) got: String,
}

/// Adds `ALL`, `name`, `Display` and `FromStr` to an enum: `named! { Mode, "a mode" { Off = "off" } }`.
macro_rules! named {
    ($type:ident, $what:literal { $($value:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::ParseNameError;

            fn from_str(got: &str) -> Result<Self, Self::Err> {
                let (what, names) = ($what, &[$($name),+]);
                let named = Self::ALL.into_iter().find(|value| value.name() == got);
                named.ok_or_else(|| $crate::ParseNameError { what, names, got: got.to_owned() })
            }
        }
    };
}

/// A `Debug` that shows the name of the type alone.
macro_rules! opaque_debug {
    ($($type:ident),+) => {$(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($type)).finish_non_exhaustive()
            }
        }
    )+};
}

pub(crate) use {named, opaque_debug};
