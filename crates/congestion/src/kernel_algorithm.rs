//! What the registry needs to know of the algorithms that it manages.

use std::fmt::Display;

use libbpf_rs::Object;

use crate::Error;

/// Congestion control algorithms that plait registers with the kernel: coupled ones, and those that steer the kernel's
/// scheduler.
pub trait KernelAlgorithm: Copy + Ord + Display + Send + Sync + 'static {
    /// All of them. No name occurs in two kinds of algorithms.
    const ALL: &'static [Self];
    /// What one is called in messages, such as `algorithm`.
    const KIND: &'static str;

    /// The maps and programs of its object that others use while it is loaded.
    const PARTS: &'static [&'static str] = &[];
    /// The one of [`PARTS`](KernelAlgorithm::PARTS) that processes the packets that leave by an interface, if one does.
    const EGRESS: Option<&'static str> = None;

    /// The name on the command line, such as `lia`.
    fn name(self) -> &'static str;

    /// The name in the kernel, such as `plait_lia`: [`PREFIX`] and at most 9 bytes.
    fn kernel_name(self) -> &'static str;

    /// A short description.
    fn description(self) -> &'static str;

    /// Loads its programs, with the one `struct_ops` that is to be registered.
    ///
    /// # Errors
    /// [`Error::Kernel`], or [`Error::Missing`].
    fn load(self) -> Result<Object, Error>;

    /// The one of this name, on the command line or in the kernel.
    fn named(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| [one.name(), one.kernel_name()].contains(&text))
    }
}

/// The prefix of kernel names.
pub(crate) const PREFIX: &str = "plait_";
