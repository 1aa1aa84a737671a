//! `plait sched`: which subflows of MPTCP connections carry data.

use plait_congestion::Registry;
use plait_scheduler::{Scheduler, SchedulerConfig};

use crate::kernel_algorithms::{self, Target};

/// Arguments of `plait sched`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// List the schedulers, which are loaded, and what they are enabled for
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Register a scheduler with the kernel, until it is unloaded
    Load {
        /// ecf, all, lowest-rtt, weighted, tiers, cheapest-first or off, with options as in weighted:wlan0=3,lte0=1
        #[arg(value_name = "NAME[:OPTIONS]")]
        scheduler: SchedulerConfig,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Enable a scheduler for what new connections of a network namespace or a control group send
    Use {
        /// As for `load`; loaded if it is not yet, otherwise its options are replaced
        #[arg(value_name = "NAME[:OPTIONS]")]
        scheduler: SchedulerConfig,
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Undo `use`; existing connections keep their scheduler
    Disable {
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Disable a scheduler everywhere and unregister it; existing connections keep it until they are closed
    Unload {
        /// The name of a scheduler, such as ecf
        #[arg(value_name = "NAME", required_unless_present = "all")]
        scheduler: Option<Scheduler>,
        /// Unload all schedulers
        #[arg(long, conflicts_with = "scheduler")]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args {
        Args::List { json } => kernel_algorithms::list::<Scheduler>("schedulers", json),
        Args::Load { scheduler, json } => {
            let is_new = plait_scheduler::load(&Registry::find()?, &scheduler)?;
            kernel_algorithms::print_loaded(scheduler.scheduler(), is_new, json)
        }
        Args::Use { scheduler, target, json } => {
            plait_scheduler::load(&Registry::find()?, &scheduler)?;
            kernel_algorithms::enable(scheduler.scheduler(), &target, json)
        }
        Args::Disable { target, json } => kernel_algorithms::disable::<Scheduler>(&target, json),
        Args::Unload { scheduler, json, .. } => kernel_algorithms::unload(scheduler, json),
    }
}
