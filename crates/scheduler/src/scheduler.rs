//! The schedulers and their names.

use std::fmt;
use std::str::FromStr;

use libbpf_rs::Object;
use plait_congestion::{Error, KernelAlgorithm};
use serde::{Deserialize, Serialize, Serializer};

use crate::bindings::{
    PLAIT_SCHEDULER_ALL, PLAIT_SCHEDULER_CHEAPEST, PLAIT_SCHEDULER_ECF, PLAIT_SCHEDULER_FILE,
    PLAIT_SCHEDULER_LOWEST_RTT, PLAIT_SCHEDULER_OFF, PLAIT_SCHEDULER_TIERS, PLAIT_SCHEDULER_WEIGHTED,
};
use crate::object;

/// Which subflows of a connection carry data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum Scheduler {
    /// Earliest completion first (Lim et al., CoNEXT 2017): a subflow only if the fastest one would still be busy when its
    /// data arrives.
    Ecf,
    /// All but those whose round trip is longer by more than a second.
    All,
    /// The one whose least round-trip time is the lowest.
    LowestRtt,
    /// All, in proportion to the weights of their paths.
    Weighted,
    /// Those of the next tier only if those of the tiers before cannot carry everything.
    Tiers,
    /// More expensive ones only if the cheaper ones miss a rate or a round-trip time.
    CheapestFirst,
    /// As a user's program decides, which includes bpf/plait_scheduler.h.
    File,
    /// All, as without plait: for a control group in a namespace that uses another scheduler.
    Off,
}

impl Scheduler {
    /// All schedulers.
    pub const ALL: [Scheduler; 8] = [
        Scheduler::Ecf,
        Scheduler::All,
        Scheduler::LowestRtt,
        Scheduler::Weighted,
        Scheduler::Tiers,
        Scheduler::CheapestFirst,
        Scheduler::File,
        Scheduler::Off,
    ];

    /// The name on the command line, such as `lowest-rtt`.
    pub fn name(self) -> &'static str {
        match self {
            Scheduler::Ecf => "ecf",
            Scheduler::All => "all",
            Scheduler::LowestRtt => "lowest-rtt",
            Scheduler::Weighted => "weighted",
            Scheduler::Tiers => "tiers",
            Scheduler::CheapestFirst => "cheapest-first",
            Scheduler::File => "file",
            Scheduler::Off => "off",
        }
    }

    /// The name in the kernel, such as `plait_ecf`; at most 15 bytes.
    pub fn kernel_name(self) -> &'static str {
        match self {
            Scheduler::Ecf => "plait_ecf",
            Scheduler::All => "plait_all",
            Scheduler::LowestRtt => "plait_lowest",
            Scheduler::Weighted => "plait_weighted",
            Scheduler::Tiers => "plait_tiers",
            Scheduler::CheapestFirst => "plait_cheapest",
            Scheduler::File => "plait_file",
            Scheduler::Off => "plait_off",
        }
    }

    /// A short description.
    pub fn description(self) -> &'static str {
        match self {
            Scheduler::Ecf => {
                "a slow subflow carries data only if the fastest would still be busy when it arrives"
            }
            Scheduler::All => {
                "every subflow carries data unless its round trip is longer by more than a second"
            }
            Scheduler::LowestRtt => "the subflow with the lowest round-trip time carries everything",
            Scheduler::Weighted => "subflows carry data in proportion to the weights of their paths",
            Scheduler::Tiers => "the next tier carries data only if the tiers before are full or down",
            Scheduler::CheapestFirst => {
                "expensive paths carry only what cheap ones lack of a rate or round-trip time"
            }
            Scheduler::File => "as a program of one's own decides: load FILE.bpf.c",
            Scheduler::Off => "all subflows carry data, as without plait",
        }
    }

    /// The name in the kernel of the one that a process registers for itself, such as `plait_e4711`.
    pub(crate) fn kernel_name_of_process(self, pid: u32) -> String {
        format!("plait_{}{pid}", &self.name()[..1])
    }

    /// The one of this name in the kernel, as this process or another registered it.
    pub(crate) fn of_kernel_name(name: &str) -> Option<Scheduler> {
        let is_of_process = |scheduler: &Scheduler| {
            let prefix = &scheduler.kernel_name_of_process(0);
            name.strip_prefix(&prefix[..prefix.len() - 1]).is_some_and(|pid| pid.parse::<u32>().is_ok())
        };
        Scheduler::ALL
            .into_iter()
            .find(|scheduler| scheduler.kernel_name() == name)
            .or_else(|| Scheduler::ALL.into_iter().find(is_of_process))
    }

    /// Its value in bpf/intf.h.
    pub(crate) fn number(self) -> u32 {
        match self {
            Scheduler::Ecf => PLAIT_SCHEDULER_ECF,
            Scheduler::All => PLAIT_SCHEDULER_ALL,
            Scheduler::LowestRtt => PLAIT_SCHEDULER_LOWEST_RTT,
            Scheduler::Weighted => PLAIT_SCHEDULER_WEIGHTED,
            Scheduler::Tiers => PLAIT_SCHEDULER_TIERS,
            Scheduler::CheapestFirst => PLAIT_SCHEDULER_CHEAPEST,
            Scheduler::File => PLAIT_SCHEDULER_FILE,
            Scheduler::Off => PLAIT_SCHEDULER_OFF,
        }
    }
}

impl KernelAlgorithm for Scheduler {
    const ALL: &'static [Scheduler] = &Scheduler::ALL;
    const KIND: &'static str = "scheduler";
    const PARTS: &'static [&'static str] = &[object::PATH_OPTIONS, object::TARGETS, object::FILL];
    const EGRESS: Option<&'static str> = Some(object::FILL);

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
        object::load(&self.into(), self.kernel_name())
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is not that of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected ecf, lowest-rtt, weighted, tiers, cheapest-first, off or a file such as mine.bpf.c, got '{0}'"
)]
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

    #[test]
    fn recognises_schedulers_of_processes() {
        for scheduler in Scheduler::ALL {
            assert_eq!(Scheduler::of_kernel_name(scheduler.kernel_name()), Some(scheduler));
            let name = scheduler.kernel_name_of_process(4_194_304);
            assert!(name.len() < 16);
            assert_eq!(Scheduler::of_kernel_name(&name), Some(scheduler));
        }
        for other in ["plait_ewtcp", "plait_lia", "plait_olia", "cubic", "", "plait_e"] {
            assert_eq!(Scheduler::of_kernel_name(other), None, "{other}");
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
