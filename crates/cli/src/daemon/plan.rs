//! What a configuration file has the daemon do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;
use plait_gateway::{
    Config, Credentials, DatagramScheduler, ExitClients, ExitSettings, ExitUrl, HostConfig, Identities,
    MetricsConfig, PeerName, ProxyAccess, ProxyConfig, ProxyProtocol, Requirement, Roles, Route,
    RouterSettings, ServiceAddress, ServiceSettings, Settings, Trust,
};
use plait_proto::codec::records::Padding;
use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;

use crate::exit::invited_clients;
use crate::gateway::Protection;
use crate::router::{self, router_settings};
use crate::serve::exit_settings;

/// What a file says, checked as a whole.
pub(super) struct Plan {
    config: Config,
    /// Where connections go, and how; absent if nothing opens any.
    pub(super) outbound: Option<OutboundPlan>,
    pub(super) services: Vec<ServicePlan>,
    pub(super) proxy: Option<ProxyConfig>,
    pub(super) host: Option<HostConfig>,
    pub(super) router: Option<RouterSettings>,
    pub(super) metrics: Option<MetricsConfig>,
}

/// What a gateway that opens connections depends on.
#[derive(Clone, PartialEq)]
pub(super) struct OutboundPlan {
    exit: Option<ExitUrl>,
    pub(super) early_data: bool,
    pub(super) roles: Roles,
    trust: Option<Trust>,
    pins: BTreeMap<PeerName, PublicKey>,
    hybrid: Option<bool>,
    padding: Option<Padding>,
    rekey_after: Option<Duration>,
    pub(super) datagram_scheduler: DatagramScheduler,
}

/// What a gateway that accepts connections depends on.
#[derive(Clone, PartialEq)]
pub(super) struct ServicePlan {
    pub(super) listen: SocketAddr,
    pub(super) role: ServiceRole,
    clients: Option<Vec<PublicKey>>,
    padding: Option<Padding>,
}

/// What connections are carried to.
#[derive(Clone, PartialEq)]
pub(super) enum ServiceRole {
    /// A service.
    Service(ServiceAddress, Option<ProxyProtocol>),
    /// The services of which clients name one.
    Services(Vec<ServiceSettings>),
    /// The destinations that clients name.
    Exit(ExitSettings),
}

impl Plan {
    /// Fails if the parts do not fit together.
    pub(super) fn new(mut config: Config) -> anyhow::Result<Plan> {
        let router = config.router.is_some().then(|| router_settings(&[], &[], &mut config)).transpose()?;
        let opens = config.proxy.is_some() || config.host.is_some() || router.is_some();
        let outbound = opens.then(|| OutboundPlan::of(&config));
        let mut services = Vec::new();
        for inbound in &config.inbound {
            services.push(ServicePlan {
                listen: inbound.listen,
                role: match &inbound.to {
                    Some(to) => ServiceRole::Service(to.clone(), inbound.proxy),
                    None => ServiceRole::Services(config.services.clone()),
                },
                clients: config.clients.clone(),
                padding: config.pad,
            });
        }
        if let Some(listen) = config.exit.listen {
            let settings = exit_settings(&config)?;
            let clients = match &settings.clients {
                ExitClients::Any => None,
                ExitClients::Listed(clients) => Some(clients.clone()),
            };
            services.push(ServicePlan {
                listen,
                role: ServiceRole::Exit(settings),
                clients,
                padding: config.pad,
            });
        }
        if !opens && services.is_empty() && config.metrics.is_none() {
            bail!(
                "expected something to do in the file, got nothing: add [host], [router] or [proxy], [[inbound]], or `listen` in [exit]"
            );
        }
        let (proxy, host, metrics) = (config.proxy.clone(), config.host.clone(), config.metrics.clone());
        let listen = services.iter().map(|service| service.listen);
        let clients =
            proxy.iter().map(|proxy| proxy.listen).chain(metrics.iter().map(|metrics| metrics.listen));
        let mut addresses = BTreeSet::new();
        for address in listen.chain(clients) {
            if !addresses.insert(address) {
                bail!("expected one thing on each address, got {address} twice in the file");
            }
        }
        Ok(Plan { config, outbound, services, proxy, host, router, metrics })
    }

    /// The roles of interfaces.
    pub(super) fn roles(&self) -> &Roles {
        &self.config.roles
    }

    /// The settings of what the gateways share. Reads the key pair.
    pub(super) fn first_settings(&self) -> anyhow::Result<Settings> {
        let config = &self.config;
        let has_exit = self.outbound.as_ref().is_some_and(|outbound| outbound.exit.is_some());
        let required = has_exit || !self.services.is_empty();
        let key_file = config.identity.as_deref();
        let identities = Identities::new(key_file, config.trust, config.pins.clone(), None)?;
        // Also without an exit, which may be added to the file while the daemon runs.
        let identities = identities.with_invited(invited_clients(key_file));
        let is_exit = self.services.iter().any(|service| matches!(service.role, ServiceRole::Exit(_)));
        let default = required.then_some(Requirement::Mode);
        let mut settings = Protection::of_file().settings("daemon", identities, config, default)?;
        settings.opens_connections = self.outbound.is_some();
        if is_exit && !settings.identities.has_key_pair() {
            bail!(
                "expected a key pair, by which clients recognize this exit, got none: create one by `plait exit init`"
            );
        }
        if (is_exit || has_exit) && !(settings.policy.requires() && settings.policy.mode() == Mode::Sealed) {
            bail!("expected mode 'sealed', required, with an exit: omit `mode` and `require = false`");
        }
        let names_clients = |service: &ServicePlan| match &service.role {
            ServiceRole::Services(services) => services.iter().any(|service| service.clients.is_some()),
            _ => false,
        };
        if self.services.iter().any(names_clients) && !settings.identities.has_key_pair() {
            bail!(
                "expected a key pair, with which clients authenticate this host, for `clients` in [[services]], got none: create \
                 one by `plait identity`"
            );
        }
        if self.router.is_some() {
            settings.max_connections = router::MAX_CONNECTIONS;
        }
        // Theirs are those of each gateway.
        settings.padding = None;
        Ok(settings)
    }

    /// Replaces what cannot change while the daemon runs by what is in force. Returns the keys that differ.
    pub(super) fn keep_fixed(&mut self, running: &Plan) -> Vec<&'static str> {
        let (now, new) = (&running.config, &mut self.config);
        let mut fixed = Vec::new();
        let mut keep = |differs: bool, key: &'static str| {
            if differs {
                fixed.push(key);
            }
        };
        keep(new.mode != now.mode, "mode");
        keep(new.require != now.require, "require");
        keep(new.negotiate != now.negotiate, "negotiate");
        keep(new.congestion_control != now.congestion_control, "congestion_control");
        keep(new.scheduler != now.scheduler, "scheduler");
        keep(new.redundant != now.redundant, "redundant");
        keep(new.identity != now.identity, "file in [identity]");
        keep(new.trust != now.trust, "peers in [identity]");
        let credentials =
            |proxy: &Option<ProxyConfig>| proxy.as_ref().and_then(|proxy| proxy.credentials.clone());
        let other_credentials =
            credentials(&self.proxy) != credentials(&running.proxy) && credentials(&self.proxy).is_some();
        keep(other_credentials, "credentials in [proxy]");
        let of_host = |host: &Option<HostConfig>| {
            host.as_ref().map(|host| {
                let HostConfig { scope, kill_switch, release_on_stop } = host;
                let scope = (scope.slices.clone(), scope.users.clone(), scope.programs.clone());
                (scope, *kill_switch, *release_on_stop)
            })
        };
        let other_host = of_host(&self.host) != of_host(&running.host);
        keep(other_host, "[host], but for `exclude` and `lan`");
        let route_changes = running.host.is_some()
            && self.outbound.as_ref().is_some_and(|new| {
                running.outbound.as_ref().is_some_and(|now| new.exit.is_some() != now.exit.is_some())
            });
        keep(route_changes, "exit, where [host] had none");
        // The router carries by the gateway that it was started with.
        let other_router =
            self.router != running.router || running.router.is_some() && self.outbound != running.outbound;
        keep(other_router, "[router], and with it all of connections that are opened");
        if other_router {
            self.router.clone_from(&running.router);
            self.outbound.clone_from(&running.outbound);
        }
        if other_credentials {
            self.proxy.clone_from(&running.proxy);
        }
        if other_host {
            self.host.clone_from(&running.host);
        }
        if route_changes {
            self.outbound.clone_from(&running.outbound);
        }
        if self.host.is_some() && self.outbound.is_none() {
            self.outbound.clone_from(&running.outbound);
        }
        let config = &mut self.config;
        config.mode = now.mode;
        config.require = now.require;
        config.negotiate = now.negotiate;
        config.congestion_control.clone_from(&now.congestion_control);
        config.scheduler.clone_from(&now.scheduler);
        config.redundant = now.redundant;
        config.identity.clone_from(&now.identity);
        config.trust = now.trust;
        fixed
    }
}

impl OutboundPlan {
    fn of(config: &Config) -> OutboundPlan {
        OutboundPlan {
            exit: config.exit.url.clone(),
            early_data: config.exit.early_data,
            roles: config.roles.clone(),
            trust: config.trust,
            pins: config.pins.clone(),
            hybrid: config.hybrid,
            padding: config.pad,
            rekey_after: config.rekey,
            datagram_scheduler: config.datagram_scheduler.unwrap_or_default(),
        }
    }

    pub(super) fn route(&self) -> Route {
        self.exit.clone().map_or(Route::Direct, Route::Exit)
    }

    /// The settings of its gateway, of those that all share.
    pub(super) fn settings(&self, shared: &Settings) -> Settings {
        let mut pins = self.pins.clone();
        if let Some(exit) = &self.exit {
            pins.insert(exit.peer().clone(), exit.key());
        }
        Settings {
            identities: shared.identities.with(self.trust, pins, None),
            hybrid: self.hybrid.unwrap_or(true),
            padding: self.padding,
            rekey_after: self.rekey_after,
            ..shared.clone()
        }
    }
}

impl ServicePlan {
    /// As [`OutboundPlan::settings`].
    pub(super) fn settings(&self, shared: &Settings) -> Settings {
        let is_exit = matches!(self.role, ServiceRole::Exit(_));
        let invited = shared.identities.invited().filter(|_| is_exit).cloned();
        let identities = shared.identities.with(Some(Trust::Any), BTreeMap::new(), self.clients.clone());
        // The limit of connections of a listed client of an exit is that of its key.
        let by_key = is_exit && self.clients.is_some();
        let max_connections_per_peer =
            if by_key { shared.max_connections } else { shared.max_connections_per_peer };
        let identities = identities.with_invited(invited);
        Settings { identities, padding: self.padding, max_connections_per_peer, ..shared.clone() }
    }
}

/// Who may use a proxy. Reads the file of credentials.
pub(super) fn access(proxy: &ProxyConfig) -> anyhow::Result<ProxyAccess> {
    let credentials = proxy.credentials.as_deref().map(Credentials::from_file).transpose()?;
    Ok(ProxyAccess { credentials, local_destinations: proxy.allow_local })
}
