//! `plait metrics`: a Prometheus exporter for connections, paths, kernel counters and gateways of this host.

mod exporter;
mod format;
mod gateways;
mod http;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use plait_gateway::{GatewayStatus, Report, Roles};
use tokio::net::TcpListener;

use crate::gateway::{Paths, address_and_port, stop_signal};
use crate::listener::{listen, runtime};
use crate::stdout::print_text;
use crate::top::interval;
use exporter::{Exporter, PathOptions};

/// Paths with series of their own by default.
const MAX_PATHS: u32 = 1000;

/// Between samples, by default.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `plait metrics`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port to serve /metrics on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464", value_parser = address_and_port)]
    listen: SocketAddr,
    /// Time between samples; each scrape also takes one
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Maximum number of paths with series of their own; further ones count as one, labelled "other"
    #[arg(long, value_name = "N", default_value_t = MAX_PATHS, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_paths: u32,
    /// Label paths with the peer's address as well, which every user of this host can read then
    #[arg(long)]
    by_remote: bool,
    #[command(flatten)]
    paths: Paths,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let roles = args.paths.config()?.roles;
    let paths = PathOptions { max: args.max_paths as usize, by_remote: args.by_remote, roles };
    let exporter = Arc::new(Mutex::new(Exporter::new(
        paths,
        Box::new(|| GatewayStatus::query().unwrap_or_default().reports),
    )?));
    runtime()?.block_on(async {
        let mut stop = stop_signal()?;
        let (listener, address) = listen(args.listen).await?;
        print_text(&format!("serving http://{address}/metrics\n"))?;
        tokio::spawn(sample(Arc::clone(&exporter), args.interval));
        tokio::select! {
            _ = stop.next() => {}
            () = http::serve(listener, move || scrape(Arc::clone(&exporter))) => {}
        }
        Ok(())
    })
}

/// Serves the metrics of the daemon that this process is, whose gateways `report` describes, until dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    roles: Roles,
    report: impl Fn() -> Report + Send + 'static,
) -> anyhow::Result<()> {
    let paths = PathOptions { max: MAX_PATHS as usize, by_remote: false, roles };
    let exporter = Arc::new(Mutex::new(Exporter::new(paths, Box::new(move || vec![report()]))?));
    tokio::select! {
        () = sample(Arc::clone(&exporter), SAMPLE_INTERVAL) => {}
        () = http::serve(listener, {
            let exporter = Arc::clone(&exporter);
            move || scrape(Arc::clone(&exporter))
        }) => {}
    }
    Ok(())
}

async fn sample(exporter: Arc<Mutex<Exporter>>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let exporter = Arc::clone(&exporter);
        let done = tokio::task::spawn_blocking(move || lock(&exporter).sample()).await;
        if let Ok(Err(error)) = done {
            tracing::warn!("{error:#}");
        }
    }
}

/// The metrics as OpenMetrics, from a sample taken now or very recently.
async fn scrape(exporter: Arc<Mutex<Exporter>>) -> anyhow::Result<String> {
    let work = move || {
        let mut exporter = lock(&exporter);
        if !exporter.is_fresh() {
            exporter.sample()?;
        }
        exporter.open_metrics()
    };
    tokio::task::spawn_blocking(work).await.context("sampling failed")?
}

fn lock(exporter: &Mutex<Exporter>) -> std::sync::MutexGuard<'_, Exporter> {
    exporter.lock().unwrap_or_else(PoisonError::into_inner)
}
