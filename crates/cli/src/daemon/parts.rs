//! What the daemon runs, and how it changes while connections live.
//!
//! A part that changes gets a new gateway on the sockets of the old one, which accepts no further connections and ends when its last
//! one does. So no connection is cut, and none is refused.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use plait_gateway::{
    ExitListener, Gateway, Gateways, Host, HostSettings, MetricsConfig, Outbound, ProxyAccess, ProxyConfig,
    Roles, Router, Settings,
};
use tokio::task::JoinHandle;

use super::handover::Descriptor;
use super::passed_sockets::PassedSockets;
use super::plan::{OutboundPlan, Plan, ServicePlan, ServiceRole, access};

/// Everything that runs.
pub(super) struct Parts {
    gateways: Arc<Gateways>,
    /// What the settings of all gateways have in common.
    shared: Settings,
    passed: PassedSockets,
    /// The sockets that are listened on.
    sockets: HashMap<SocketAddr, TcpListener>,
    /// Those of the datagrams of exits. A new gateway goes on with the one of the gateway before.
    datagrams: HashMap<SocketAddr, UdpSocket>,
    outbound: Option<OutboundPart>,
    services: Vec<ServicePart>,
    proxy: Option<ProxyPart>,
    host: Option<HostPart>,
    router: Option<Router>,
    metrics: Option<MetricsPart>,
}

/// Opens the connections.
struct OutboundPart {
    plan: OutboundPlan,
    gateway: Arc<Gateway>,
    outbound: Arc<Outbound>,
}

/// Accepts connections for a service.
struct ServicePart {
    plan: ServicePlan,
    gateway: Arc<Gateway>,
}

struct ProxyPart {
    config: ProxyConfig,
    access: ProxyAccess,
    _task: Task,
}

struct HostPart {
    host: Arc<Host>,
    /// Keeps the excluded networks up to date.
    watch: Option<Task>,
}

struct MetricsPart {
    config: MetricsConfig,
    roles: Roles,
    _task: Task,
}

/// A task that ends when this is dropped.
struct Task(JoinHandle<()>);

impl Task {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Task {
        Task(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Parts {
    /// Nothing runs yet.
    pub(super) fn new(gateways: Arc<Gateways>, shared: Settings, passed: PassedSockets) -> Parts {
        Parts {
            gateways,
            shared,
            passed,
            sockets: HashMap::new(),
            datagrams: HashMap::new(),
            outbound: None,
            services: Vec::new(),
            proxy: None,
            host: None,
            router: None,
            metrics: None,
        }
    }

    /// Starts everything, while the process still has its privileges.
    pub(super) async fn start(&mut self, plan: &Plan) -> anyhow::Result<()> {
        self.listen(plan).await?;
        if let Some(wanted) = &plan.outbound {
            let outbound = self.open_outbound(wanted)?;
            if let Some(config) = &plan.host {
                if let Err(error) = outbound.outbound.remember_exit() {
                    tracing::warn!("cannot find the address of the exit: {error}");
                }
                let first = self.gateways.first();
                let forward = plan.router.iter().flat_map(|router| router.exclude.clone()).collect();
                let scope = HostSettings { forward, ..config.scope.clone() };
                let host = Host::prepare(first, &wanted.route(), scope, config.kill_switch).await?;
                host.carry(&outbound.outbound)?;
                host.attach()?;
                let host = Arc::new(host);
                let watching = Arc::clone(&host);
                let watch = Task::spawn(async move {
                    if let Err(error) = watching.watch().await {
                        tracing::warn!("cannot follow the changes of interfaces: {error}");
                    }
                });
                self.host = Some(HostPart { host, watch: Some(watch) });
            }
            if let Some(settings) = &plan.router {
                self.router = Some(outbound.outbound.start_router(settings)?);
            }
            self.outbound = Some(outbound);
        }
        if let Some(config) = &plan.proxy {
            self.start_proxy(config, access(config)?)?;
        }
        for service in &plan.services {
            let part = self.start_service(service)?;
            self.services.push(part);
        }
        self.start_metrics(plan)?;
        // Nothing accepts what connects to the others.
        self.passed = PassedSockets::default();
        Ok(())
    }

    /// Changes what differs, or nothing if a socket or a gateway cannot be had.
    pub(super) async fn change(&mut self, running: &Plan, wanted: &Plan) -> anyhow::Result<()> {
        let changed = self.try_change(running, wanted).await;
        self.close_unused(if changed.is_ok() { wanted } else { running });
        changed
    }

    /// Stops listening on what a plan does not use.
    fn close_unused(&mut self, plan: &Plan) {
        let addresses = addresses(plan);
        let is_used = |address: &SocketAddr| addresses.iter().any(|(used, _)| used == address);
        self.sockets.retain(|address, _| is_used(address));
        self.datagrams.retain(|address, _| is_used(address));
    }

    async fn try_change(&mut self, running: &Plan, wanted: &Plan) -> anyhow::Result<()> {
        self.listen(wanted).await?;
        // Credentials are those that were read at the start.
        let access = match (&wanted.proxy, &self.proxy) {
            (Some(new), Some(now)) if new.credentials == now.config.credentials => {
                Some(ProxyAccess { local_destinations: new.allow_local, ..now.access.clone() })
            }
            (Some(new), _) => Some(access(new)?),
            (None, _) => None,
        };
        let outbound = match &wanted.outbound {
            Some(plan) if self.outbound.as_ref().is_none_or(|now| now.plan != *plan) => {
                Some(self.open_outbound(plan)?)
            }
            _ => None,
        };
        if let (Some(part), Some(config)) = (&self.host, &wanted.host) {
            part.host.exclude(config.scope.exclude.clone(), config.scope.lan)?;
        }
        let is_running = |plan: &&ServicePlan| self.services.iter().any(|now| now.plan == **plan);
        let new: Vec<_> = wanted.services.iter().filter(|plan| !is_running(plan)).collect();
        let started: Vec<_> =
            new.into_iter().map(|plan| self.start_service(plan)).collect::<Result<_, _>>()?;
        // From here on nothing fails.
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.services)
            .into_iter()
            .partition(|now| wanted.services.contains(&now.plan));
        gone.into_iter().for_each(|part| self.gateways.retire(part.gateway));
        self.services = kept.into_iter().chain(started).collect();
        let changed = outbound.is_some();
        let retired = match outbound {
            Some(outbound) => {
                if let Some(part) = &self.host {
                    self.remember_exit(&outbound).await;
                    part.host.carry(&outbound.outbound)?;
                }
                self.outbound.replace(outbound)
            }
            None if wanted.outbound.is_none() => self.outbound.take(),
            None => None,
        };
        let proxy_changes = changed || wanted.proxy != running.proxy;
        if proxy_changes {
            self.proxy = None;
            if let (Some(config), Some(access)) = (&wanted.proxy, access) {
                self.start_proxy(config, access)?;
            }
        }
        if let Some(part) = retired {
            self.gateways.retire(part.gateway);
        }
        self.start_metrics(wanted)
    }

    /// Whether connections reach the exit.
    pub(super) async fn check_exit(&self) -> anyhow::Result<()> {
        match &self.outbound {
            Some(part) => Ok(part.outbound.check_exit().await?),
            None => Ok(()),
        }
    }

    /// The sockets, for the next daemon.
    pub(super) fn share(&self, plan: &Plan) -> anyhow::Result<Vec<(Descriptor, OwnedFd)>> {
        let negotiation = self.gateways.share_negotiation()?;
        let mut shared = Vec::new();
        for (address, kind) in addresses(plan) {
            let Some(socket) = self.sockets.get(&address) else { continue };
            let descriptor = match kind {
                // Without the negotiation, what they accept would be unprotected.
                SocketKind::Peers if negotiation.is_none() => continue,
                SocketKind::Peers => Descriptor::Peers(address),
                SocketKind::Clients => Descriptor::Clients(address),
            };
            shared.push((descriptor, socket.try_clone()?.into()));
        }
        for (address, socket) in &self.datagrams {
            shared.push((Descriptor::Datagrams(*address), socket.try_clone()?.into()));
        }
        let named = negotiation.into_iter().flat_map(|negotiation| negotiation.descriptors);
        shared.extend(named.map(|(name, file)| (Descriptor::Negotiation(name), file)));
        Ok(shared)
    }

    /// Whether programs have begun to open connections here that are not accepted yet.
    pub(super) fn has_pending_connections(&self) -> bool {
        self.host.as_ref().is_some_and(|part| part.host.has_pending_connections())
    }

    /// Leaves new connections to the next daemon. What programs have begun to open here is still accepted.
    pub(super) fn hand_over(&mut self) {
        if let Some(part) = &mut self.host {
            part.host.stop_redirecting();
            part.watch = None;
        }
        if let Some(router) = &self.router {
            router.hand_over();
        }
        self.proxy = None;
        self.metrics = None;
        self.sockets.clear();
        self.datagrams.clear();
        self.services.drain(..).for_each(|part| self.gateways.retire(part.gateway));
    }

    /// Redirects and accepts nothing any longer; connections live on.
    pub(super) fn stop(&mut self) {
        self.host = None;
        self.router = None;
        self.proxy = None;
        self.metrics = None;
        self.sockets.clear();
    }

    /// Listens on all addresses of a plan.
    async fn listen(&mut self, plan: &Plan) -> anyhow::Result<()> {
        for (address, kind) in addresses(plan) {
            if self.sockets.contains_key(&address) {
                continue;
            }
            let listener = match kind {
                SocketKind::Peers => match self.passed.peers.remove(&address) {
                    Some(listener) => listener,
                    None => self.gateways.first().bind(address)?.into_std()?,
                },
                SocketKind::Clients => match self.passed.clients.remove(&address) {
                    Some(listener) => listener,
                    None => Outbound::proxy_listener(address)?.into_std()?,
                },
            };
            self.sockets.insert(address, listener);
        }
        Ok(())
    }

    /// What the clients of an exit connect to, and send datagrams to.
    fn exit_listener(&mut self, address: SocketAddr) -> anyhow::Result<ExitListener> {
        if !self.datagrams.contains_key(&address) {
            let passed = self.passed.datagrams.remove(&address);
            self.datagrams.extend(
                passed.or_else(|| ExitListener::bind_datagrams(address)).map(|socket| (address, socket)),
            );
        }
        let datagrams = self.datagrams.get(&address).map(UdpSocket::try_clone).transpose()?;
        Ok(ExitListener::new(self.listener(address)?, datagrams)?)
    }

    /// A further descriptor of the socket on an address.
    fn listener(&self, address: SocketAddr) -> anyhow::Result<tokio::net::TcpListener> {
        let socket = self.sockets.get(&address).with_context(|| format!("expected a socket on {address}"))?;
        Ok(tokio::net::TcpListener::from_std(socket.try_clone()?)?)
    }

    fn open_outbound(&self, plan: &OutboundPlan) -> anyhow::Result<OutboundPart> {
        let gateway = self.gateways.add(plan.settings(&self.shared))?;
        let outbound = Outbound::start(&gateway, plan.roles.clone())?.with_route(plan.route())?;
        let outbound = outbound.with_datagram_scheduler(plan.datagram_scheduler);
        let outbound = outbound.with_early_data(plan.early_data);
        Ok(OutboundPart { plan: plan.clone(), gateway, outbound: Arc::new(outbound) })
    }

    /// Looks up the exit of a new gateway, while names are still resolved by the one before.
    async fn remember_exit(&self, part: &OutboundPart) {
        let outbound = Arc::clone(&part.outbound);
        let remembered = tokio::task::spawn_blocking(move || outbound.remember_exit()).await;
        if let Ok(Err(error)) = remembered {
            tracing::warn!("cannot find the address of the exit: {error}");
        }
    }

    fn start_service(&mut self, plan: &ServicePlan) -> anyhow::Result<ServicePart> {
        let gateway = self.gateways.add(plan.settings(&self.shared))?;
        // The tasks end when the gateway stops.
        match plan.role.clone() {
            ServiceRole::Service(to, proxy) => {
                tokio::spawn(gateway.serve(self.listener(plan.listen)?, to, proxy));
            }
            ServiceRole::Services(services) => {
                tokio::spawn(gateway.serve_services(self.listener(plan.listen)?, &services)?);
            }
            ServiceRole::Exit(settings) => {
                tokio::spawn(gateway.serve_exit(self.exit_listener(plan.listen)?, settings));
            }
        }
        Ok(ServicePart { plan: plan.clone(), gateway })
    }

    fn start_proxy(&mut self, config: &ProxyConfig, access: ProxyAccess) -> anyhow::Result<()> {
        let Some(part) = &self.outbound else { return Ok(()) };
        let (outbound, listener) = (Arc::clone(&part.outbound), self.listener(config.listen)?);
        let clients = access.clone();
        let task = Task::spawn(async move { outbound.proxy(listener, clients).await });
        self.proxy = Some(ProxyPart { config: config.clone(), access, _task: task });
        Ok(())
    }

    /// Starts, keeps or stops the exporter.
    fn start_metrics(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let Some(config) = &plan.metrics else {
            self.metrics = None;
            return Ok(());
        };
        if self.metrics.as_ref().is_some_and(|now| now.config == *config && now.roles == *plan.roles()) {
            return Ok(());
        }
        self.metrics = None;
        let listener = self.listener(config.listen)?;
        let (gateways, roles) = (Arc::clone(&self.gateways), plan.roles().clone());
        let task = Task::spawn(async move {
            if let Err(error) = crate::metrics::serve(listener, roles, move || gateways.report()).await {
                tracing::warn!("no metrics: {error:#}");
            }
        });
        self.metrics = Some(MetricsPart { config: config.clone(), roles: plan.roles().clone(), _task: task });
        Ok(())
    }
}

/// Who connects to a socket.
#[derive(Clone, Copy)]
enum SocketKind {
    /// Peers, by MPTCP.
    Peers,
    /// Programs of this host or its network.
    Clients,
}

/// What a plan listens on.
fn addresses(plan: &Plan) -> Vec<(SocketAddr, SocketKind)> {
    let services = plan.services.iter().map(|service| (service.listen, SocketKind::Peers));
    let proxy = plan.proxy.iter().map(|proxy| (proxy.listen, SocketKind::Clients));
    let metrics = plan.metrics.iter().map(|metrics| (metrics.listen, SocketKind::Clients));
    services.chain(proxy).chain(metrics).collect()
}
