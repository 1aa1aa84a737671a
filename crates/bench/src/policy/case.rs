//! A case of the benchmark, and its result.

use serde::Serialize;

/// Something to measure.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) group: Group,
    /// Loads the policies.
    pub(super) prepare: Box<dyn Fn() -> anyhow::Result<Turn>>,
}

/// A set of cases that are selected by one name and share a reference.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Compared with the empty program.
    Cost,
    /// Compared with a policy that matches none of the packets.
    Operators,
    /// Compared with a policy that matches none of the packets.
    Subflows,
}

/// Runs a loaded case once.
pub(super) type Turn = Box<dyn FnMut() -> anyhow::Result<Sample>>;

/// The time per packet in one turn.
pub(super) struct Sample {
    pub(super) ns: f64,
    /// The time that the reference took.
    pub(super) reference_ns: f64,
    /// The time of a read from as much memory as the case uses, if it uses much.
    pub(super) memory_ns: Option<f64>,
}

/// The result of a case.
#[derive(Serialize)]
pub(super) struct Measurement {
    pub(super) case: String,
    pub(super) ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) above_empty_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) above_no_match_ns: Option<f64>,
    /// A read from as much memory as the case uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_ns: Option<f64>,
    /// Times by round.
    #[serde(skip)]
    pub(super) turns: Vec<f64>,
}

impl Case {
    /// Whether `name` is the case's, its group's, or `all`.
    pub(super) fn is_selected_by(&self, name: &str) -> bool {
        name == "all" || name == self.group.name() || name == self.name
    }
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Group::Cost => "cost",
            Group::Operators => "operators",
            Group::Subflows => "subflows",
        }
    }
}
