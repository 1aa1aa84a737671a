//! The schedulers and their names.

use std::fmt;
use std::str::FromStr;

use libbpf_rs::Object;
use plait_congestion::{Error, KernelAlgorithm};
use serde::{Deserialize, Serialize, Serializer};

use crate::bindings::{PLAIT_SCHEDULER_ECF, PLAIT_SCHEDULER_LOWEST_RTT, PLAIT_SCHEDULER_OFF};
use crate::object;

/// Which subflows of a connection carry data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Scheduler {
    /// Earliest completion first (Lim et al., CoNEXT 2017): a subflow only if the fastest one would still be busy when its
    /// data arrives.
    Ecf,
    /// The one whose least round-trip time is the lowest.
    LowestRtt,
    /// All, as without plait: for a control group in a namespace that uses another scheduler.
    Off,
}

impl Scheduler {
    /// All schedulers.
    pub const ALL: [Scheduler; 3] = [Scheduler::Ecf, Scheduler::LowestRtt, Scheduler::Off];

    /// The name on the command line, such as `lowest-rtt`.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::Ecf => "ecf",
            Scheduler::LowestRtt => "lowest-rtt",
            Scheduler::Off => "off",
        }
    }

    /// The name in the kernel, such as `plait_ecf`; at most 15 bytes.
    pub fn kernel_name(self) -> &'static str {
        match self {
            Scheduler::Ecf => "plait_ecf",
            Scheduler::LowestRtt => "plait_lowest",
            Scheduler::Off => "plait_off",
        }
    }

    /// A short description.
    pub fn description(self) -> &'static str {
        match self {
            Scheduler::Ecf => {
                "a slow subflow carries data only if the fastest would still be busy when it arrives"
            }
            Scheduler::LowestRtt => "the subflow with the lowest round-trip time carries everything",
            Scheduler::Off => "all subflows carry data, as without plait",
        }
    }

    /// Its value in bpf/intf.h.
    pub(crate) fn number(self) -> u32 {
        match self {
            Scheduler::Ecf => PLAIT_SCHEDULER_ECF,
            Scheduler::LowestRtt => PLAIT_SCHEDULER_LOWEST_RTT,
            Scheduler::Off => PLAIT_SCHEDULER_OFF,
        }
    }
}

impl KernelAlgorithm for Scheduler {
    const ALL: &'static [Scheduler] = &Scheduler::ALL;
    const KIND: &'static str = "scheduler";

    fn name(self) -> &'static str {
        self.name()
    }

    fn kernel_name(self) -> &'static str {
        self.kernel_name()
    }

    fn description(self) -> &'static str {
        self.description()
    }

    fn load(self) -> Result<Object, Error> {
        object::load(self, self.kernel_name())
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not that of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected ecf, lowest-rtt or off, got '{0}'")]
pub struct UnknownScheduler(String);

impl FromStr for Scheduler {
    type Err = UnknownScheduler;

    fn from_str(text: &str) -> Result<Scheduler, UnknownScheduler> {
        Scheduler::named(text).ok_or_else(|| UnknownScheduler(text.into()))
    }
}

impl TryFrom<String> for Scheduler {
    type Error = UnknownScheduler;

    fn try_from(text: String) -> Result<Scheduler, UnknownScheduler> {
        text.parse()
    }
}

impl Serialize for Scheduler {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use plait_congestion::Algorithm;

    use super::*;

    #[test]
    fn parses_only_names_of_schedulers() {
        for scheduler in Scheduler::ALL {
            assert_eq!(scheduler.name().parse(), Ok(scheduler));
            assert_eq!(scheduler.kernel_name().parse(), Ok(scheduler));
            assert!(scheduler.kernel_name().len() < 16 && scheduler.kernel_name().starts_with("plait_"));
        }
        for wrong in ["", "plait_", "cubic", "ECF", "ecf "] {
            assert!(wrong.parse::<Scheduler>().is_err(), "{wrong}");
        }
    }

    /// Both are pinned in one directory.
    #[test]
    fn no_scheduler_has_the_name_of_a_coupled_algorithm() {
        for scheduler in Scheduler::ALL {
            assert!(scheduler.name().parse::<Algorithm>().is_err());
            assert!(scheduler.kernel_name().parse::<Algorithm>().is_err());
        }
    }
}
