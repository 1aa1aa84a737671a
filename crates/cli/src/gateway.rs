//! What the commands that run gateways share: their options, and the life of a gateway from its start to its end.

mod options;

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use plait_gateway::{Gateway, Settings};
use plait_linux::sandbox::{Rules, Sandbox, ThreadGate};
use plait_linux::signal::StopSignal;
use rustix::process::{Signal, geteuid};
use tokio::runtime::{Builder, Runtime};

pub(crate) use options::{ConfigFile, Datagrams, Paths, Peers, Protection, address_and_port};

use crate::monitor;

/// How long tasks and threads may take to end after a gateway has. A running name lookup cannot be cancelled.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    done
}

/// SIGTERM and SIGINT; SIGHUP ends a gateway at once.
pub(crate) fn stop_signal() -> anyhow::Result<StopSignal> {
    StopSignal::listen_for(&[Signal::TERM, Signal::INT]).context("cannot listen for signals")
}

/// Runs a gateway, whose threads wait until it confines itself through the gate, once it is set up. If this is root, a monitor
/// keeps what only root can do.
pub(crate) fn block_on_gated<T>(
    settings: Settings,
    work: impl AsyncFnOnce(Settings, &ThreadGate) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    block_on_gated_with(settings, &[], work)
}

/// The same, with further arguments for the monitor.
pub(crate) fn block_on_gated_with<T>(
    mut settings: Settings,
    further: &[OsString],
    work: impl AsyncFnOnce(Settings, &ThreadGate) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let monitor = geteuid().is_root().then(|| monitor::start(&settings, further)).transpose()?;
    settings.monitor = monitor.clone();
    let gate = Arc::new(ThreadGate::default());
    let of_threads = Arc::clone(&gate);
    let runtime = Builder::new_multi_thread().enable_all().on_thread_start(move || of_threads.pass()).build();
    let runtime = runtime.context("cannot start the runtime")?;
    let done = runtime.block_on(work(settings, &gate));
    // If it failed before, its threads have to end.
    gate.open();
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    if let Some(monitor) = monitor {
        monitor.clean_up();
    }
    done
}

/// Gives up all privileges that the rules do not name.
pub(crate) fn confine(gate: &ThreadGate, rules: io::Result<Rules>) -> anyhow::Result<()> {
    let rules = rules.context("cannot prepare to give up privileges")?;
    let missing = gate.confine(Sandbox::new(rules)?)?;
    for feature in missing {
        tracing::warn!("this gateway keeps more access than it needs, because this host lacks {feature}");
    }
    Ok(())
}

/// Runs a service until SIGTERM or SIGINT; a second one skips the drain.
pub(crate) async fn until_stopped<F>(gateway: &Arc<Gateway>, service: F) -> anyhow::Result<()>
where
    F: Future<Output = ()>,
{
    let mut stop = stop_signal()?;
    tokio::select! {
        () = service => {}
        _ = stop.next() => {}
    }
    tokio::select! {
        () = gateway.shut_down() => {}
        _ = stop.next() => {}
    }
    Ok(())
}
