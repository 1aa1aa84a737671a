//! What the commands share that serve HTTP: a runtime, and a socket to listen on.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// A runtime of one thread beside the calling one.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.context("cannot start the runtime")
}

/// Listens on an address. Returns the actual one as well, whose port was chosen if `address` has none.
pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await;
    let listener = listener
        .with_context(|| format!("cannot listen on {address}: choose another address with --listen"))?;
    let address = listener.local_addr().context("cannot read the listening address")?;
    Ok((listener, address))
}
