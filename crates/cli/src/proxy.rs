//! `plait proxy`: a SOCKS5 and HTTP proxy whose connections a gateway carries.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use plait_gateway::{Credentials, Gateway, Outbound, ProxyAccess};

use crate::gateway::{
    Datagrams, Paths, Peers, Protection, address_and_port, block_on_gated, confine, until_stopped,
};

/// Arguments of `plait proxy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port to accept clients on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1080", value_parser = address_and_port)]
    listen: SocketAddr,
    /// File with one line USER:PASSWORD that clients must present; required unless --listen is a loopback address
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// Also connect to loopback and link-local addresses of this host
    #[arg(long)]
    allow_local: bool,
    #[command(flatten)]
    datagrams: Datagrams,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    paths: Paths,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.paths.config()?;
    let settings = args.protection.outbound("proxy", &args.peers, &config)?;
    let (route, datagrams) = (args.peers.route(&config), args.datagrams.scheduler(&config));
    let credentials = args.credentials.as_deref().map(Credentials::from_file).transpose()?;
    if credentials.is_none() && !args.listen.ip().to_canonical().is_loopback() {
        bail!(
            "expected --credentials with --listen {}, because other hosts can reach this address: add --credentials FILE, \
             or listen on 127.0.0.1 or [::1]",
            args.listen
        );
    }
    let access = ProxyAccess { credentials, local_destinations: args.allow_local };
    block_on_gated(settings, async |settings, gate| {
        let listener = Outbound::proxy_listener(args.listen)?;
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let outbound = Outbound::start(&gateway, config.roles)?.with_route(route)?;
        let outbound = outbound.with_early_data(config.exit.early_data);
        let outbound = Arc::new(outbound.with_datagram_scheduler(datagrams));
        confine(gate, outbound.sandbox_rules(None))?;
        until_stopped(&gateway, outbound.proxy(listener, access)).await
    })
}
