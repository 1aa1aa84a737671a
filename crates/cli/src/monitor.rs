//! `plait monitor`: keeps what only root can do for a gateway that is not. Only gateways start it.

use std::env;
use std::ffi::OsString;
use std::path::{self, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::Context;
use plait_gateway::{Monitor, MonitorTasks, Settings, run_monitor};

/// Arguments of `plait monitor`, which only gateways start.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of the keys of peers that are trusted on first use
    #[arg(long, value_name = "FILE")]
    known_peers: Option<PathBuf>,

    /// File of the clients that this exit has invited
    #[arg(long, value_name = "FILE")]
    invited_clients: Option<PathBuf>,

    /// Close subflows on silent paths for the gateway
    #[arg(long)]
    close_subflows: bool,

    /// Configuration file to read for the gateway
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Remove the kill switch in the end
    #[arg(long)]
    release_kill_switch: bool,

    /// Remove this file in the run directory in the end
    #[arg(long, value_name = "FILE")]
    host_lock: Option<PathBuf>,

    /// The process whose control group the gateway enters
    #[arg(long, value_name = "PID")]
    predecessor: Option<u32>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    Ok(run_monitor(MonitorTasks {
        known_peers: args.known_peers,
        invited_clients: args.invited_clients,
        close_subflows: args.close_subflows,
        config: args.config,
        release_kill_switch: args.release_kill_switch,
        host_lock: args.host_lock,
        predecessor: args.predecessor,
    })?)
}

/// Runs this executable as the monitor of this process.
pub(crate) fn start(settings: &Settings, further: &[OsString]) -> anyhow::Result<Arc<Monitor>> {
    let mut command = Command::new(env::current_exe().context("cannot find this executable")?);
    command.arg("monitor").args(further);
    if let Some(file) = settings.identities.known_peers() {
        let file = path::absolute(file).context("cannot find the file of known peers")?;
        command.arg("--known-peers").arg(file);
    }
    if let Some(invited) = settings.identities.invited() {
        let file = path::absolute(invited.file()).context("cannot find the file of invited clients")?;
        command.arg("--invited-clients").arg(file);
    }
    // The others keep the capability that it takes.
    if settings.command == "serve" {
        command.arg("--close-subflows");
    }
    let monitor = Monitor::start(command).context("cannot start the monitor of this gateway")?;
    plait_linux::leave_run_directory_lock_to_monitor();
    Ok(monitor)
}
