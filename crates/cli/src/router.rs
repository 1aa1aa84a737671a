//! `plait router`: carries the connections and datagrams of the hosts behind an interface.

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::bail;
use ipnet::IpNet;
use plait_gateway::{Config, Gateway, Outbound, RouterSettings};

use crate::gateway::{Datagrams, Paths, Peers, Protection, block_on_gated, confine, until_stopped};

/// Connections carried at once, unless the command line says: of a thousand hosts, twenty each.
pub(crate) const MAX_CONNECTIONS: usize = 20_000;

/// Arguments of `plait router`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Interface behind which the hosts are (may be repeated); it is no path [default: `interfaces` of [router]]
    #[arg(long, value_name = "IFACE")]
    interface: Vec<String>,
    /// Network that is not carried, but forwarded by the kernel (may be repeated); this host and the networks of the interfaces
    /// are not, in any case [default: `exclude` of [router]]
    #[arg(long, value_name = "NET", value_parser = network)]
    exclude: Vec<IpNet>,
    #[command(flatten)]
    datagrams: Datagrams,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    paths: Paths,
}

/// What the router carries, with the interfaces and networks that are given in place of the file's. These interfaces are no paths.
pub(crate) fn router_settings(
    interfaces: &[String],
    exclude: &[IpNet],
    config: &mut Config,
) -> anyhow::Result<RouterSettings> {
    let written = config.router.clone().unwrap_or_default();
    let interfaces = if interfaces.is_empty() { written.interfaces } else { interfaces.to_vec() };
    let exclude = if exclude.is_empty() { written.exclude } else { exclude.to_vec() };
    for interface in &interfaces {
        if config.roles.role_of_name(interface).is_some() {
            bail!(
                "expected {interface} to be a path or an interface of the router, got both: hosts are behind the one, \
                 peers behind the other"
            );
        }
        config.roles.exclude(interface);
    }
    Ok(RouterSettings { interfaces, exclude })
}

/// A network in prefix notation, or an address.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse::<IpAddr>().map(IpNet::from).ok();
    let expected = || format!("expected a network such as 10.0.0.0/8, or an address, got '{text}'");
    text.parse().ok().or_else(address).ok_or_else(expected)
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut config = args.paths.config()?;
    let carried = router_settings(&args.interface, &args.exclude, &mut config)?;
    let mut settings = args.protection.outbound("router", &args.peers, &config)?;
    if args.protection.max_connections.is_none() {
        settings.max_connections = MAX_CONNECTIONS;
    }
    let (route, datagrams) = (args.peers.route(&config), args.datagrams.scheduler(&config));
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let outbound = Outbound::start(&gateway, config.roles)?.with_route(route)?;
        let outbound = outbound.with_early_data(config.exit.early_data);
        let outbound = Arc::new(outbound.with_datagram_scheduler(datagrams));
        let router = outbound.start_router(&carried)?;
        confine(gate, outbound.router_sandbox_rules())?;
        tracing::info!("router of the hosts behind {}", carried.interfaces.join(", "));
        let done = until_stopped(&gateway, pending()).await;
        drop(router);
        done
    })
}
