//! The backends of a link.

use std::fmt;
use std::str::FromStr;

use plait_config::TextError;
use serde::{Deserialize, Serialize};

/// The implementation of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// plait's emulator in user space, between two TAP interfaces.
    Emu,
    /// The kernel's netem and tbf.
    Netem,
    /// A veth pair, without any emulation.
    None,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Emu => "emu",
            Self::Netem => "netem",
            Self::None => "none",
        })
    }
}

impl FromStr for Backend {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let known = [Self::Emu, Self::Netem, Self::None];
        let backend = known.into_iter().find(|backend| backend.to_string() == text);
        backend.ok_or_else(|| TextError::new("emu, netem or none", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_backends_round_trip() {
        for backend in [Backend::Emu, Backend::Netem, Backend::None] {
            assert_eq!(backend.to_string().parse::<Backend>().expect("its name"), backend);
        }
        let error = "mininet".parse::<Backend>().expect_err("no backend").to_string();
        assert_eq!(error, "expected emu, netem or none, got \"mininet\"");
    }
}
