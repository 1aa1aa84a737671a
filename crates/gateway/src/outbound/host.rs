//! Redirects the connections of a whole host, or of its slices, users or programs.
//!
//! As for one program ([`super::run`]), but the programs of `bpf/redirect.bpf.c` are attached to the root of the control groups, or
//! to slices, for as long as the gateway lives. They leave out its own traffic, that of other network namespaces, and what goes to
//! excluded networks.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use libbpf_rs::btf::{Btf, types};
use plait_linux::diag::Sockets;
use plait_linux::{cgroup, netns};
use plait_proto::option::Mode;
use tokio::net::TcpListener;
use tracing::{debug, warn};

use super::dns::DnsSockets;
use super::held_syn::LoopbackSender;
use super::open::Outbound;
use super::redirect::{Listeners, LoadedRedirect, Redirect, RedirectOptions, Scope};
use super::redirected::RedirectedConnections;
use super::redirected_datagrams::{DatagramSockets, RedirectedDatagrams};
use super::route::Route;
use crate::bindings::PLAIT_MARK_HOST;
use crate::bpf::{BpfError, Programs};
use crate::gateway::Gateway;
use crate::kill_switch::{Exclusions, KillSwitch, KillSwitchError};
use crate::networks::{connected, on_interface_changes};
use crate::socket::tcp_listener;

/// Whose connections are redirected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// The control groups, from the root of the hierarchy; without any, all.
    pub slices: Vec<PathBuf>,
    /// The users, by their ids; without any, all.
    pub users: Vec<u32>,
    /// The programs, by the names of their processes, of which the first 15 bytes count; without any, all.
    pub programs: Vec<String>,
    /// Networks that are reached without plait.
    pub exclude: Vec<IpNet>,
    /// Whether what the interfaces are connected to is one of these.
    pub lan: bool,
    /// Further networks to which packets of other hosts are forwarded while there is a kill switch.
    pub forward: Vec<IpNet>,
}

impl HostSettings {
    /// The networks that are reached without plait, now.
    fn exclusions(&self) -> Exclusions {
        let own: BTreeSet<_> =
            connected(self.lan).into_iter().chain(self.exclude.iter().map(IpNet::trunc)).collect();
        let forwarded = own.iter().copied().chain(self.forward.iter().map(IpNet::trunc)).collect();
        Exclusions { own, forwarded }
    }
}

/// The connections of a host cannot be redirected.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Protection is off.
    #[error("expected a mode that protects for a whole host, got 'off': omit `mode`")]
    Off,
    /// The kernel has no function for the programs.
    #[error("this kernel cannot redirect the connections of a whole host: it lacks {0}")]
    Kernel(&'static str),
    /// No control group.
    #[error(transparent)]
    Cgroup(#[from] cgroup::Error),
    /// BPF programs.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The kill switch.
    #[error(transparent)]
    KillSwitch(#[from] KillSwitchError),
    /// Sockets.
    #[error("cannot redirect the connections of this host: {0}")]
    Io(#[from] io::Error),
}

/// The redirection of a host's connections, until it is dropped.
pub struct Host {
    namespace: u64,
    gateway: u64,
    redirect: Arc<Redirect>,
    programs: Mutex<Programs>,
    scope: Scope,
    listeners: Vec<std::net::TcpListener>,
    sender: Option<Arc<LoopbackSender>>,
    dns: Option<DnsSockets>,
    /// `None` also once another process carries them.
    datagrams: Mutex<Option<RedirectedDatagrams>>,
    settings: Mutex<HostSettings>,
    kill_switch: Option<KillSwitch>,
}

impl Host {
    /// Prepares the redirection, which is not in force before [`attach`](Self::attach). With `kill_switch`, nothing leaves this host
    /// outside of plait from now on, not even after this process has ended; nor without it if there is one already.
    ///
    /// # Errors
    /// See [`HostError`].
    pub async fn prepare(
        gateway: &Gateway,
        route: &Route,
        settings: HostSettings,
        kill_switch: bool,
    ) -> Result<Host, HostError> {
        let namespace =
            netns::cookie().map_err(|_| HostError::Kernel("cookies of network namespaces (Linux 5.14)"))?;
        if !has_context_cast() {
            return Err(HostError::Kernel("bpf_cast_to_kern_ctx (Linux 6.2)"));
        }
        if gateway.policy().mode() == Mode::Off {
            return Err(HostError::Off);
        }
        let own = gateway.negotiation().cgroup().ok_or(HostError::Off)?;
        let own = rustix::fs::fstat(own).map_err(io::Error::from)?.st_ino;
        let exclusions = settings.exclusions();
        // First, so that there is no moment in which something could leave.
        let kill_switch = match kill_switch {
            true => Some(KillSwitch::engage(namespace, own, &exclusions)?),
            false => KillSwitch::adopt(namespace, own, &exclusions)?.inspect(|_| {
                warn!("the kill switch of an earlier daemon remains in force: `plait down` removes it");
            }),
        };
        let v4 = tcp_listener((Ipv4Addr::LOCALHOST, 0).into()).ok();
        let v6 = tcp_listener((Ipv6Addr::LOCALHOST, 0).into()).ok();
        let port = |listener: &TcpListener| listener.local_addr().ok().map(|address| address.port());
        let listeners = Listeners { v4: v4.as_ref().and_then(port), v6: v6.as_ref().and_then(port) };
        let sender = LoopbackSender::open()
            .inspect_err(|error| {
                debug!("connect() succeeds before the destination has answered: no raw sockets: {error}");
            })
            .ok();
        let dns = match route {
            Route::Direct => None,
            Route::Exit(_) => Some(DnsSockets::bind().await),
        };
        let queries = dns.as_ref().map(DnsSockets::listeners);
        let entry = DatagramSockets::open(route, PLAIT_MARK_HOST);
        let options = RedirectOptions {
            listeners,
            dns: queries,
            require: gateway.policy().requires(),
            hold: sender.is_some(),
            mark: entry.as_ref().map(|entry| entry.mark),
        };
        let LoadedRedirect { redirect, programs, scope, datagrams } = LoadedRedirect::load(&options)?;
        let datagrams = entry.zip(datagrams).map(|(entry, hooks)| entry.attach(hooks)).transpose()?;
        let listeners = v4.into_iter().chain(v6).map(TcpListener::into_std).collect::<Result<_, _>>()?;
        let host = Host {
            namespace,
            gateway: own,
            redirect: Arc::new(redirect),
            programs: Mutex::new(programs),
            scope,
            listeners,
            sender: sender.map(Arc::new),
            dns,
            datagrams: Mutex::new(datagrams),
            settings: Mutex::new(settings),
            kill_switch,
        };
        host.apply()?;
        Ok(host)
    }

    /// Redirects the connections that programs open from now on.
    ///
    /// # Errors
    /// A slice does not exist, or the kernel's reason.
    pub fn attach(&self) -> Result<(), HostError> {
        let slices = self.settings().slices.clone();
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if slices.is_empty() {
            programs.attach(cgroup::open_root()?)?;
        }
        for slice in slices {
            let (_, directory) = cgroup::open(&slice)?;
            programs.attach(directory)?;
        }
        Ok(())
    }

    /// Leaves what programs open from now on to another process, which redirects it already. What they have opened before is still
    /// accepted, and has the same address for them.
    pub fn stop_redirecting(&self) {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.detach_some(&[
            "redirect_connect4",
            "redirect_connect6",
            "redirect_sendmsg4",
            "redirect_sendmsg6",
            "redirect_socket",
            "redirect_bind4",
            "redirect_bind6",
        ]);
        *self.datagrams() = None;
    }

    /// Whether programs have begun to open connections here that are not accepted yet.
    #[must_use]
    pub fn has_pending_connections(&self) -> bool {
        let mut ports = self.listeners.iter().filter_map(|listener| Some(listener.local_addr().ok()?.port()));
        let found = Sockets::open().and_then(|mut sockets| {
            ports.try_fold(0, |pending, port| Ok(pending + sockets.pending_connections(port)?))
        });
        found
            .inspect_err(|error| debug!("cannot list the sockets of programs: {error}"))
            .is_ok_and(|pending| pending > 0)
    }

    /// Carries the connections, until the gateway of `outbound` stops.
    ///
    /// # Errors
    /// A socket cannot be used.
    pub fn carry(&self, outbound: &Arc<Outbound>) -> Result<(), HostError> {
        let gateway = outbound.gateway();
        let connections = RedirectedConnections::new(Arc::clone(outbound), Arc::clone(&self.redirect));
        if let Some(sender) = &self.sender {
            let held = self.redirect.held_syns()?;
            gateway.spawn_until_stopped(Arc::clone(&connections).open_held(held, Arc::clone(sender)));
        }
        if let Some(datagrams) = &*self.datagrams() {
            datagrams.carry(outbound)?;
        }
        if let Some(dns) = self.dns.as_ref().and_then(|dns| dns.forwarder(outbound.route())) {
            dns.spawn(outbound);
        }
        for listener in &self.listeners {
            // The next gateway listens on the same sockets.
            let listener = TcpListener::from_std(listener.try_clone()?)?;
            tokio::spawn(Arc::clone(&connections).accept(listener));
        }
        Ok(())
    }

    /// Changes the excluded networks.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn exclude(&self, exclude: Vec<IpNet>, lan: bool) -> Result<(), HostError> {
        let mut settings = self.settings();
        (settings.exclude, settings.lan) = (exclude, lan);
        drop(settings);
        self.exclude_now()
    }

    /// Follows the changes of interfaces.
    ///
    /// # Errors
    /// They cannot be watched.
    pub async fn watch(&self) -> io::Result<()> {
        on_interface_changes(|| self.exclude_now().map_err(io::Error::other)).await
    }

    fn apply(&self) -> Result<(), HostError> {
        self.exclude_now()?;
        let settings = self.settings();
        Ok(self.scope.set(self.namespace, self.gateway, &settings.users, &settings.programs)?)
    }

    fn exclude_now(&self) -> Result<(), HostError> {
        let exclusions = self.settings().exclusions();
        self.scope.excluded.set(&exclusions.own)?;
        if let Some(datagrams) = &*self.datagrams() {
            datagrams.update(&exclusions.own)?;
        }
        if let Some(kill_switch) = &self.kill_switch {
            kill_switch.exclude(&exclusions)?;
        }
        Ok(())
    }

    fn datagrams(&self) -> MutexGuard<'_, Option<RedirectedDatagrams>> {
        self.datagrams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settings(&self) -> MutexGuard<'_, HostSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether BPF programs can read the network namespace of a packet.
fn has_context_cast() -> bool {
    let btf = Btf::from_vmlinux().ok();
    btf.is_some_and(|btf| btf.type_by_name::<types::Func<'_>>("bpf_cast_to_kern_ctx").is_some())
}
