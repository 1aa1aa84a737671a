//! `plait serve`: accepts connections of gateways and carries them to services, or, as an exit, to the destinations that clients
//! name.

use std::net::SocketAddr;

use anyhow::bail;
use plait_gateway::{
    Config, ExitClients, ExitSettings, Gateway, ProxyProtocol, ServiceAddress, ServiceName,
    warn_of_missing_interfaces,
};
use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;

use crate::exit::invited_clients;
use crate::gateway::{ConfigFile, Protection, address_and_port, block_on_gated, confine, until_stopped};

/// Arguments of `plait serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address and port to accept connections on; [::] accepts further subflows on every address of this host
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address_and_port,
          required_unless_present_any = ["exit", "config"])]
    listen: Option<SocketAddr>,
    /// Service that connections are carried to, by TCP or by a unix socket [default: those of [[services]] in the file of --config,
    /// of which each client asks for one]
    #[arg(long, value_name = "HOST:PORT|unix:PATH", requires = "listen")]
    to: Option<ServiceAddress>,
    /// Tell the service the client's address by the PROXY protocol, version 2, which nginx (`listen ... proxy_protocol`), HAProxy
    /// (`accept-proxy`) and others read
    #[arg(long, value_name = "v2", requires = "to")]
    proxy_protocol: Option<ProxyProtocol>,
    /// Accept connections on this address and port, and carry them to the destinations that clients name: for clients with
    /// `--exit`, as [exit] in the file of --config says [default: `listen` of [exit]]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address_and_port, conflicts_with_all = ["listen", "to"])]
    exit: Option<SocketAddr>,
    /// What clients may ask for in mode sealed, where it differs from the port of --listen, as behind a port forwarding; with
    /// a name, clients must use that name; may be repeated
    #[arg(long, value_name = "[NAME:]PORT")]
    service: Vec<ServiceName>,
    /// Connections from one peer at once, by its IPv4 address or /64 of IPv6; further ones are refused [default: a quarter
    /// of --max-connections]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections_per_peer: Option<u32>,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    file: ConfigFile,
}

impl Args {
    /// Fails if it would not be clear what is served, or part of it would be ignored.
    fn check(&self, config: &Config) -> anyhow::Result<()> {
        let (has_services, has_exit) = (!config.services.is_empty(), config.exit.listen.is_some());
        if self.to.is_some() && has_services {
            bail!("expected --to, or [[services]] in the file of --config, got both: remove one of them");
        }
        if self.listen.is_some() && self.to.is_none() && !has_services {
            bail!("expected --to, or [[services]] in the file of --config, with --listen, got neither");
        }
        if self.listen.is_none() && self.exit.is_none() && has_services {
            let exit = if has_exit { ", or --exit for the exit in it" } else { "" };
            bail!("expected --listen ADDRESS:PORT for [[services]] in the file of --config{exit}, got none");
        }
        match self.service.is_empty() {
            false if has_services => bail!(
                "expected --service, or [[services]] in the file of --config, got both: state `name` and `port` in [[services]]"
            ),
            false if has_exit && self.exit.is_none() => bail!(
                "expected --service, or an exit in the file of --config, got both: add --exit if the exit is meant, or remove \
                 [exit] from the file"
            ),
            _ => Ok(()),
        }
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.file.read()?;
    args.check(&config)?;
    // It uses none, but the file may be shared with a client, and have a mistake.
    warn_of_missing_interfaces(&config.roles);
    let Some(listen) = args.listen else { return serve_exit(args, &config) };
    let listed = config.services.iter().filter_map(|service| service.clients.as_ref());
    let listed = listed.count() > 0;
    let mut settings = args.protection.inbound("serve", args.service, config.clients.clone(), &config)?;
    if let Some(max) = args.max_connections_per_peer {
        settings.max_connections_per_peer = max as usize;
    }
    if listed && !settings.identities.has_key_pair() {
        bail!(
            "expected a key pair, with which clients authenticate this host, for `clients` in [[services]], got none: create one \
             by `plait identity`"
        );
    }
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let listener = gateway.bind(listen)?;
        confine(gate, gateway.sandbox_rules())?;
        let Some(to) = args.to else {
            return until_stopped(&gateway, gateway.serve_services(listener, &config.services)?).await;
        };
        until_stopped(&gateway, gateway.serve(listener, to, args.proxy_protocol)).await
    })
}

fn serve_exit(args: Args, config: &Config) -> anyhow::Result<()> {
    let Some(listen) = args.exit.or(config.exit.listen) else {
        bail!("expected --listen and --to, --exit, or `listen` in [exit] of the file, got none of them");
    };
    let exit = exit_settings(config)?;
    let clients = match &exit.clients {
        ExitClients::Any => None,
        ExitClients::Listed(clients) => Some(clients.clone()),
    };
    let listed = clients.is_some();
    let mut settings = args.protection.inbound("serve", args.service, clients, config)?;
    let key_file = args.protection.key_file(config);
    settings.identities = settings.identities.with_invited(invited_clients(key_file));
    if !settings.identities.has_key_pair() {
        bail!(
            "expected a key pair, by which clients recognize this exit, got none: create one by `plait exit init`"
        );
    }
    if !(settings.policy.requires() && settings.policy.mode() == Mode::Sealed) {
        bail!("expected mode 'sealed', required, for an exit: omit --mode and --require=false");
    }
    settings.max_connections_per_peer = match args.max_connections_per_peer {
        Some(max) => max as usize,
        // Its own limit of connections is that of a key.
        None if listed => settings.max_connections,
        None => settings.max_connections_per_peer,
    };
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let listener = gateway.bind_exit(listen)?;
        confine(gate, gateway.sandbox_rules())?;
        until_stopped(&gateway, gateway.serve_exit(listener, exit)).await
    })
}

/// What the exit of a configuration is. Who may use it must be said.
pub(crate) fn exit_settings(config: &Config) -> anyhow::Result<ExitSettings> {
    let listed = config.clients.clone().map(ExitClients::Listed);
    let Some(clients) = config.exit.clients.clone().or(listed) else {
        bail!(
            "expected `clients` in [exit] of the file (--config), got none: list the keys that `plait identity` prints at \
             the clients, or write clients = \"any\" to carry everybody's connections"
        );
    };
    let by_client = config.exit.by_client.clone();
    let is_listed = |key: &PublicKey| matches!(&clients, ExitClients::Listed(listed) if listed.contains(key));
    if let Some(key) = by_client.keys().find(|key| !is_listed(key)) {
        bail!(
            "expected the keys of [exit.client] to be listed in `clients` of [exit], got {key}, which is not"
        );
    }
    Ok(ExitSettings { clients, each: config.exit.each.clone(), by_client })
}
