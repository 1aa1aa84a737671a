//! `plait daemon`: everything that plait does on a host, from one file, in one process.

pub(crate) mod background;
mod handover;
mod host_lock;
mod notify;
mod parts;
mod passed_sockets;
mod plan;

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{self, Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use plait_config::Source;
use plait_gateway::{Config, Gateways, KillSwitch, Monitor, Settings, SharedNegotiation};
use plait_linux::sandbox::Rules;
use plait_linux::signal::StopSignal;
use rustix::process::{Pid, Signal};

use crate::gateway::{block_on_gated_with, confine, stop_signal};
use handover::{Descriptor, HandoverSocket, Inherited, NextDaemon, Ready, RunningDaemon};
pub(crate) use host_lock::{HostLock, LOCK, host_file, remove_files};
use notify::ServiceManager;
use parts::Parts;
use passed_sockets::PassedSockets;
use plan::Plan;

/// Arguments of `plait daemon`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File with everything that the daemon does; SIGHUP has it read again
    #[arg(long, value_name = "FILE", default_value = "/etc/plait/plait.toml")]
    config: PathBuf,
    /// Take the place of the running daemon with this file without refusing a connection: it hands over its sockets, and ends with
    /// its last connection
    #[arg(long)]
    replace: bool,
    /// How long connections of the replaced daemon may take to end
    #[arg(long, value_name = "SECONDS", default_value_t = REPLACED_DRAIN, requires = "replace")]
    drain: u64,
    /// Fail unless the exit can be reached, if there is one: for a daemon in the background
    #[arg(long, hide = true)]
    check_exit: bool,
}

/// Long enough for most downloads.
const REPLACED_DRAIN: u64 = 600;

/// What hosts behind this one have begun to open has been accepted when nothing was for this time, unless a destination hardly answers.
/// Programs of this host are waited for.
const ACCEPT_TIME: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT; a second one skips the drain.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let file = path::absolute(&args.config).context("cannot find the configuration file")?;
    let plan = Plan::new(Config::from_file(&file)?)?;
    let mut predecessor = args.replace.then(|| RunningDaemon::to_replace(&file)).transpose()?;
    let inherited = predecessor.as_mut().map(RunningDaemon::take_over).transpose()?.unwrap_or_default();
    let Inherited { sockets, negotiation, host_lock, service_manager, watchdog } = inherited;
    let manager = ServiceManager::connect().or_inherited(service_manager, watchdog);
    let sockets = if args.replace { sockets } else { PassedSockets::of_service_manager()? };
    let lock = match (&plan.host, host_lock) {
        (None, _) => None,
        (Some(_), Some(inherited)) => Some(HostLock::inherit(inherited)),
        (Some(_), None) => Some(HostLock::acquire()?),
    };
    // Until the monitor has removed its file.
    let lock = RefCell::new(lock);
    let settings = plan.first_settings()?;
    let monitor = monitor_arguments(&plan, &file, negotiation.as_ref())?;
    block_on_gated_with(settings, &monitor, async |settings: Settings, gate| {
        let monitor = settings.monitor.clone();
        let keep_host = |keep| monitor.iter().for_each(|monitor| monitor.keep_host(keep));
        keep_host(args.replace);
        let mut stop = stop_signal()?;
        let mut hang_up = StopSignal::listen_for(&[Signal::HUP]).context("cannot listen for signals")?;
        let gateways = Gateways::start(settings.clone(), negotiation)?;
        let mut parts = Parts::new(Arc::clone(&gateways), settings, sockets);
        parts.start(&plan).await?;
        gateways.replace_programs()?;
        let handover = HandoverSocket::listen(&file)?;
        let attaches = plan.router.is_some();
        confine(gate, gateways.sandbox_rules().map(|rules| Rules { attaches, ..rules }))?;
        if args.check_exit {
            tokio::select! {
                reached = parts.check_exit() => reached?,
                _ = stop.next() => return Ok(()),
            }
        }
        if let Some(predecessor) = predecessor {
            let ready = Ready { process: process::id(), host: plan.host.is_some(), drain: args.drain };
            predecessor.replace(ready)?;
            keep_host(false);
            if let Some(lock) = &*lock.borrow() {
                lock.name_process()?;
            }
        }
        manager.ready();
        let mut daemon =
            Daemon { file, monitor: monitor.clone(), plan, parts, lock: &lock, manager: &manager };
        let replaced = tokio::select! {
            () = manager.feed_watchdog() => None,
            ready = daemon.serve(&mut hang_up, &handover) => Some(ready),
            _ = stop.next() => None,
        };
        match replaced {
            Some(Ready { process, drain, .. }) => {
                tracing::info!("process {process} is the daemon now; connections have {drain} s to end");
                // Programs on this host, and hosts behind it, connect to sockets that the next daemon does not have.
                let takes = daemon.plan.host.is_some() || daemon.plan.router.is_some();
                let accept_time = if takes { ACCEPT_TIME } else { Duration::ZERO };
                tokio::select! {
                    () = gateways.drain(accept_time, || daemon.parts.has_pending_connections()) => {}
                    () = tokio::time::sleep(Duration::from_secs(drain)) => {}
                    _ = stop.next() => {}
                }
            }
            None => manager.stopping(),
        }
        // New connections are the kernel's from now on, or the kill switch's, or the next daemon's.
        daemon.parts.stop();
        tokio::select! {
            () = gateways.shut_down() => {}
            _ = stop.next() => {}
        }
        Ok(())
    })
}

/// The process of the daemon of this network namespace with this file, if one runs.
pub(crate) fn running(file: &Path) -> anyhow::Result<Option<Pid>> {
    let file = path::absolute(file).context("cannot find the configuration file")?;
    let running = RunningDaemon::find(&file)?;
    Ok(running.and_then(|daemon| Pid::from_raw(daemon.process.cast_signed())))
}

/// What the monitor does for this daemon.
fn monitor_arguments(
    plan: &Plan,
    file: &Path,
    negotiation: Option<&SharedNegotiation>,
) -> anyhow::Result<Vec<OsString>> {
    let mut arguments: Vec<OsString> = vec!["--close-subflows".into(), "--config".into(), file.into()];
    if let Some(host) = &plan.host {
        arguments.extend(["--host-lock".into(), HostLock::path()?.into()]);
        if host.kill_switch && host.release_on_stop {
            KillSwitch::mount()?;
            arguments.push("--release-kill-switch".into());
        }
    }
    if let Some(negotiation) = negotiation {
        arguments.extend(["--predecessor".into(), negotiation.process.to_string().into()]);
    }
    Ok(arguments)
}

/// A running daemon.
struct Daemon<'a> {
    file: PathBuf,
    monitor: Option<Arc<Monitor>>,
    plan: Plan,
    parts: Parts,
    lock: &'a RefCell<Option<HostLock>>,
    manager: &'a ServiceManager,
}

impl Daemon<'_> {
    /// Reloads the file whenever that is asked for, until another daemon has taken over.
    async fn serve(&mut self, hang_up: &mut StopSignal, handover: &HandoverSocket) -> Ready {
        loop {
            tokio::select! {
                _ = hang_up.next() => {}
                mut next = handover.next() => match self.hand_over(&mut next).await {
                    Ok(ready) => {
                        next.done().await;
                        return ready;
                    }
                    Err(error) => {
                        tracing::error!("another daemon wanted to replace this one, which goes on: {error:#}");
                        continue;
                    }
                }
            }
            self.manager.reloading();
            match self.reload().await {
                Ok(()) => tracing::info!("{} is in force", self.file.display()),
                Err(error) => {
                    tracing::error!(
                        "{} is not in force, and what was before remains: {error:#}",
                        self.file.display()
                    );
                }
            }
            self.manager.ready();
        }
    }

    /// Hands everything over to another daemon, once that is ready.
    async fn hand_over(&mut self, next: &mut NextDaemon) -> anyhow::Result<Ready> {
        let mut passed = self.parts.share(&self.plan)?;
        let lock = self.lock.borrow().as_ref().map(HostLock::share).transpose()?;
        passed.extend(lock.map(|lock| (Descriptor::HostLock, lock)));
        passed.extend(self.manager.share()?.map(|socket| (Descriptor::ServiceManager, socket)));
        let ready = next.pass(&passed, self.manager.watchdog()).await?;
        self.parts.hand_over();
        if ready.host {
            self.lock.take();
            if let Some(monitor) = &self.monitor {
                monitor.keep_host(true);
            }
        }
        self.manager.replaced_by(ready.process);
        Ok(ready)
    }

    /// Puts the file in force, or nothing of it.
    async fn reload(&mut self) -> anyhow::Result<()> {
        let text = match &self.monitor {
            // This process may not be able to read it any longer.
            Some(monitor) => monitor.read_config().context("cannot read the file")?,
            None => std::fs::read_to_string(&self.file).context("cannot read the file")?,
        };
        let source = Source::new(&self.file.display().to_string(), &text);
        let mut wanted = Plan::new(Config::parse(&source)?)?;
        let fixed = wanted.keep_fixed(&self.plan);
        if !fixed.is_empty() {
            tracing::warn!("these keys take effect at the next start of the daemon: {}", fixed.join(", "));
        }
        self.parts.change(&self.plan, &wanted).await?;
        self.plan = wanted;
        Ok(())
    }
}
