//! `plait web`: a page on the paths, connections and failovers of this host, which a browser shows as they are now.

mod access;
mod captures;
mod events;
mod exposure;
mod sampler;
mod server;
mod update;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::gateway::{Paths, address_and_port, stop_signal};
use crate::listener::{listen, runtime};
use crate::stdout::print_text;
use crate::top::interval;
use access::Access;
use captures::Captures;
use sampler::Sampler;

/// Arguments of `plait web`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port to serve the page on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9465", value_parser = address_and_port)]
    listen: SocketAddr,
    /// Time between samples, such as 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Directory for the captures that are started on the page; created if missing [default: a temporary directory, which is
    /// removed in the end]
    #[arg(long, value_name = "DIR")]
    captures: Option<PathBuf>,
    #[command(flatten)]
    paths: Paths,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let roles = args.paths.config()?.roles;
    let captures = Arc::new(Captures::new(args.captures)?);
    let sampler = Sampler::start(roles, args.interval, Arc::clone(&captures))?;
    let access = Access::new()?;
    runtime()?.block_on(async {
        let mut stop = stop_signal()?;
        let (listener, address) = listen(args.listen).await?;
        print_text(&format!("serving http://{address}/#{}\n", access.token()))?;
        tokio::select! {
            _ = stop.next() => {}
            served = server::serve(listener, access, sampler, Arc::clone(&captures)) => served?,
        }
        captures.stop().await;
        Ok(())
    })
}
