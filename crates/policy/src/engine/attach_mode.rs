//! How programs can be attached to interfaces.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// How a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// XDP in the driver, before the kernel allocates anything for a packet.
    Native,
    /// XDP after the driver: works with all drivers, but is slower.
    Generic,
    /// A TC program attached by a BPF link (TCX).
    Tcx,
    /// A filter of the `clsact` queueing discipline.
    Clsact,
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AttachMode::Native => "native",
            AttachMode::Generic => "generic",
            AttachMode::Tcx => "tcx",
            AttachMode::Clsact => "clsact",
        })
    }
}

/// The modes that were tried, and why each failed.
#[derive(Debug)]
pub struct AttachFailures(pub(super) Vec<(AttachMode, io::Error)>);

impl fmt::Display for AttachFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (mode, error)) in self.0.iter().enumerate() {
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{mode}: {error}")?;
        }
        Ok(())
    }
}
