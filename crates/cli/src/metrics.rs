//! `plait metrics`: a Prometheus exporter for connections, paths, kernel counters and gateways of this host.

mod exporter;
mod gateways;
mod http;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;

use crate::gateway::{address_and_port, stop_signal};
use crate::stdout::print_text;
use crate::top::interval;
use exporter::Exporter;

/// Arguments of `plait metrics`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port to serve /metrics on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464", value_parser = address_and_port)]
    listen: SocketAddr,
    /// Time between samples; each scrape also takes one
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Maximum number of paths with series of their own; further ones count as path "other"
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    max_paths: u32,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let exporter = Arc::new(Mutex::new(Exporter::new(args.max_paths as usize)?));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut stop = stop_signal()?;
        let listener = TcpListener::bind(args.listen).await.with_context(|| {
            format!("cannot listen on {}: choose another address with --listen", args.listen)
        })?;
        let address = listener.local_addr().context("cannot read the listening address")?;
        print_text(&format!("serving http://{address}/metrics\n"))?;
        tokio::spawn(sample(Arc::clone(&exporter), args.interval));
        tokio::select! {
            _ = stop.next() => {}
            () = http::serve(listener, move || scrape(Arc::clone(&exporter))) => {}
        }
        Ok(())
    })
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

/// The text of /metrics, from a sample taken now or very recently.
async fn scrape(exporter: Arc<Mutex<Exporter>>) -> anyhow::Result<String> {
    let work = move || {
        let mut exporter = lock(&exporter);
        if !exporter.is_fresh() {
            exporter.sample()?;
        }
        exporter.text()
    };
    tokio::task::spawn_blocking(work).await.context("sampling failed")?
}

fn lock(exporter: &Mutex<Exporter>) -> std::sync::MutexGuard<'_, Exporter> {
    exporter.lock().unwrap_or_else(PoisonError::into_inner)
}
