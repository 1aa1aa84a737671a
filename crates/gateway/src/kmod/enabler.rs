//! Runs the userspace part of the kernel module for the programs of one cgroup, from start to an orderly end.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use libbpf_rs::MapHandle;
use plait_linux::cgroup;
use plait_linux::diag;
use plait_linux::interfaces::interfaces;
use plait_linux::mptcp::Token;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::module::{Module, ModuleError};
use super::observed_connection::{ObservedConnection, SocketLists};
use super::options::{ModuleMode, Options};
use super::record::{Enabled, Lock, Record, namespace_of};
use crate::bindings::{
    PLAIT_OUTCOME_FALLBACK, PLAIT_OUTCOME_NEGOTIATED, PLAIT_OUTCOME_NO_COMMON_MODE, PLAIT_OUTCOME_PLAIN,
    plait_negotiate_settings, plait_outcome_event, plait_trusted_settings,
};
use crate::bpf::{self, BpfError, lookup};
use crate::handshake::Negotiator;
use crate::paths::{Blackholes, PathGate, PathName, PathWatch, Subflows};
use crate::protection::{PlainReason, Refusal};
use crate::ring_events::RingEvents;
use crate::skeleton::trusted::TrustedSkelBuilder;
use crate::socket::has_mptcp;
use crate::status::gateway_pids;
use crate::warn_once::WarnOnce;

/// Between two checks for unprotected connections, and for blackholes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Between detaching the negotiator and removing the rule, for connections that have negotiated but are not accepted yet.
const GRACE_PERIOD: Duration = Duration::from_millis(500);

/// An enabler could not start.
#[derive(Debug, thiserror::Error)]
pub enum EnableError {
    /// The module is not loaded, or rejected the rule.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// Another enabler is running.
    #[error(
        "`plait kmod enable` is already running in this network namespace{}: `plait kmod disable` stops it",
        .0.as_ref().map(|enabled| format!(" (process {}, for {})", enabled.pid, enabled.cgroup)).unwrap_or_default()
    )]
    AlreadyEnabled(Option<Box<Enabled>>),
    /// The cgroup does not exist.
    #[error("{0} (mkdir creates one below /sys/fs/cgroup; `/` is that of all programs)")]
    Cgroup(#[from] cgroup::Error),
    /// The cgroup's path cannot be part of a rule.
    #[error("expected the path of a cgroup without white space, got '{}'", .0.display())]
    WhiteSpace(PathBuf),
    /// The sockets of a gateway would be protected twice.
    #[error(
        "a gateway (process {0}) runs in this cgroup, and its connections would be protected twice: stop it, start it \
         outside of the cgroup, or choose another cgroup"
    )]
    Gateway(u32),
    /// An interface with a configured role does not exist.
    #[error(
        "expected an interface or one of its addresses, got {0}, which no interface has: `plait paths` lists them"
    )]
    NoSuchInterface(String),
    /// No MPTCP.
    #[error("the kernel has no MPTCP, or it is disabled: sysctl -w net.mptcp.enabled=1 (see `plait doctor`)")]
    Mptcp,
    /// No BPF programs.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// Other programs' connections cannot be listed.
    #[error(transparent)]
    Sockets(#[from] diag::Error),
    /// Paths cannot be managed, or there is no run directory.
    #[error("{0} (needs root, or CAP_NET_ADMIN; see `plait doctor`)")]
    Host(#[from] io::Error),
}

/// Protects the programs of one cgroup until dropped, preferably by [`stop`](Enabler::stop).
///
/// Fields are dropped in this order: nothing negotiates any more when the rule is removed.
pub struct Enabler {
    enabled: Enabled,
    options: Options,
    warn_once: WarnOnce,
    /// The tasks that manage the paths of outgoing connections.
    paths: JoinSet<()>,
    subflows: Arc<Subflows>,
    lists: Arc<SocketLists>,
    events: RingEvents<plait_outcome_event>,
    trusted: bpf::Programs,
    /// Counts programs that connect in a way that the module cannot protect.
    unprotected: MapHandle,
    warned_of_unprotected: bool,
    blackholes: Blackholes,
    negotiator: Negotiator,
    _rules: Rules,
    _record: Record,
}

impl Enabler {
    /// Protects sockets created from now on. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// See [`EnableError`]. Nothing is left behind then.
    pub fn start(options: Options) -> Result<Enabler, EnableError> {
        if !Module::is_loaded() {
            return Err(ModuleError::NotLoaded.into());
        }
        if !has_mptcp() {
            return Err(EnableError::Mptcp);
        }
        let (path, group) = cgroup::open(&options.cgroup)?;
        let cgroup = path.to_str().filter(|path| !path.contains(char::is_whitespace));
        let cgroup = cgroup.ok_or_else(|| EnableError::WhiteSpace(path.clone()))?;
        let namespace = plait_linux::netns::NetNs::current()?.identity()?.inode;
        if let Some(pid) = gateway_in(cgroup, namespace) {
            return Err(EnableError::Gateway(pid));
        }
        let known = interfaces().map_err(io::Error::other)?;
        let absent = |name: &PathName| !known.iter().any(|interface| name.is_of(interface));
        if let Some(name) = options.roles.names().find(absent) {
            return Err(EnableError::NoSuchInterface(name.to_string()));
        }
        let trusted_interface = options.roles.trusted().next();
        let trusted_interface = trusted_interface
            .and_then(|name| known.iter().find(|interface| name.is_of(interface)))
            .map(|interface| interface.name.as_str());
        let (mut record, left) = match Record::lock()? {
            Lock::Acquired(record, left) => (record, left),
            Lock::Held(who) => return Err(EnableError::AlreadyEnabled(who.map(Box::new))),
        };
        let lists = Arc::new(SocketLists::open()?);
        let subflows = Subflows::start(Arc::new(PathGate::unlimited(options.roles.clone())), Arc::default())?;
        let blackholes = Blackholes::watch()?;

        let selection = options.selection();
        let mut negotiator = Negotiator::load(&plait_negotiate_settings {
            modes: options.mode.offer(),
            required: options.require.into(),
            give_reasons: 0,
            report_outcomes: 1,
            selection,
            by_flag: 0,
        })?;
        let mut storage = MaybeUninit::uninit();
        let skeleton = bpf::load("trusted", TrustedSkelBuilder::default(), &mut storage)?;
        let settings = plait_trusted_settings {
            interface: name_of(trusted_interface.unwrap_or_default()),
            require: options.require.into(),
            selection,
        };
        bpf::write_settings(&skeleton.maps.settings, &settings)?;
        let unprotected = bpf::handle(&skeleton.maps.unprotected)?;
        let mut trusted = bpf::Programs::of(&skeleton)?;
        let events = RingEvents::open(negotiator.outcomes())?;

        let verdicts = negotiator.verdicts_id()?;
        let mut enabled = Enabled {
            pid: process::id(),
            namespace,
            cgroup: cgroup.to_owned(),
            mode: options.mode.to_string(),
            require: options.require,
            trusted: trusted_interface.map(str::to_owned),
            rule: options.rule(verdicts, cgroup),
            verdicts: left.iter().flat_map(|left| left.verdicts.clone()).chain([verdicts]).collect(),
        };
        record.write(&enabled)?;
        // From here on the module takes sockets, and then some of them negotiate; never in the other order.
        let rules = Rules::add(&enabled)?;
        record.discard_leftovers();
        // The rules of a killed enabler are removed after the new one was added: in between, connections are refused.
        for old in enabled.verdicts.drain(..enabled.verdicts.len() - 1) {
            Module::clear(old)?;
        }
        record.write(&enabled)?;
        trusted.attach(&group)?;
        negotiator.attach_to(&group)?;
        warn_of_running_processes(&enabled.cgroup, &group);
        Ok(Enabler {
            enabled,
            options,
            warn_once: WarnOnce::default(),
            paths: JoinSet::new(),
            subflows,
            lists,
            events,
            trusted,
            unprotected,
            warned_of_unprotected: false,
            blackholes,
            negotiator,
            _rules: rules,
            _record: record,
        })
    }

    /// Its description.
    pub fn describe(&self) -> &Enabled {
        &self.enabled
    }

    /// Manages the paths of connections, and warns of unprotected ones, for as long as it is polled.
    ///
    /// # Errors
    /// The negotiator's events cannot be read any more.
    pub async fn run(&mut self) -> io::Result<()> {
        let mut tick = tokio::time::interval(CHECK_INTERVAL);
        loop {
            tokio::select! {
                ready = self.events.ready() => ready?,
                _ = tick.tick() => {
                    self.check_unprotected();
                    self.blackholes.check();
                }
            }
            for event in self.events.take()? {
                self.manage_paths(&event);
            }
            while self.paths.try_join_next().is_some() {}
        }
    }

    /// Stops: new connections are not protected, and existing ones stay protected on the subflows they have.
    pub async fn stop(mut self) {
        self.trusted.detach();
        self.negotiator.detach();
        tokio::time::sleep(GRACE_PERIOD).await;
    }

    /// Manages the paths of a new connection.
    fn manage_paths(&mut self, event: &plait_outcome_event) {
        let (local, remote) = addresses(event);
        if !self.is_carried(u32::from(event.outcome), remote) || event.initiator == 0 || event.token == 0 {
            return;
        }
        if self.enabled.trusted.is_none() {
            self.warn_once.no_trusted_path();
        }
        let connection = ObservedConnection {
            token: Token(event.token),
            local,
            remote,
            if_index: self.if_index(),
            lists: Arc::clone(&self.lists),
        };
        let subflows = Arc::clone(&self.subflows);
        self.paths.spawn(async move {
            let watch = PathWatch::new(&subflows, connection.token, connection.remote, connection.if_index);
            tokio::select! {
                error = watch.run(connection.first_flight(), &connection) => debug!("{remote}: {error}"),
                () = connection.ended() => {}
            }
        });
    }

    /// Whether the module carries a connection; warns if it carries it plain, or refuses it.
    fn is_carried(&self, outcome: u32, peer: SocketAddr) -> bool {
        let reason = match outcome {
            PLAIT_OUTCOME_NEGOTIATED => {
                self.warn_once.protected(peer.ip());
                return true;
            }
            PLAIT_OUTCOME_PLAIN => PlainReason::NotNegotiated,
            PLAIT_OUTCOME_NO_COMMON_MODE => PlainReason::NoCommonMode(None),
            PLAIT_OUTCOME_FALLBACK => PlainReason::Fallback,
            _ => {
                self.warn_refused(peer, &Refusal::Unconfirmed);
                return false;
            }
        };
        if reason == PlainReason::NoCommonMode(None) && self.options.mode == ModuleMode::Stream {
            self.warn_once.stream_of_module();
        }
        match self.options.policy().judge_plain(reason) {
            Ok(_) => self.warn_once.plain(peer.ip(), self.options.policy().mode(), reason),
            Err(refusal) => self.warn_refused(peer, &refusal),
        }
        !self.options.require
    }

    fn warn_refused(&self, peer: SocketAddr, refusal: &Refusal) {
        self.warn_once.handshake_failure(peer, None, refusal.into(), refusal);
    }

    fn if_index(&self) -> u32 {
        let trusted = self.enabled.trusted.as_deref();
        let usable = self.subflows.usable();
        usable
            .iter()
            .find(|interface| Some(&*interface.name) == trusted)
            .map_or(0, |interface| interface.index)
    }

    /// Warns, once, of programs that connect in ways that the module does not protect.
    fn check_unprotected(&mut self) {
        let count = lookup::<u64>(&self.unprotected, &0u32.to_ne_bytes()).ok().flatten().unwrap_or(0);
        if count == 0 || self.warned_of_unprotected {
            return;
        }
        self.warned_of_unprotected = true;
        let carried = if self.options.require { "refused" } else { "carried PLAIN" };
        warn!(
            "programs in {} make TCP connections, or connect by sockets created before this command: these are {carried}; \
             `mptcpize run PROGRAM` runs a program with MPTCP",
            self.enabled.cgroup
        );
    }
}

/// An enabler's rules, and those that a killed one left; removed from the module when dropped.
struct Rules(Vec<u32>);

impl Rules {
    fn add(enabled: &Enabled) -> Result<Rules, ModuleError> {
        Module::add(&enabled.rule)?;
        Ok(Rules(enabled.verdicts.clone()))
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        for &verdicts in &self.0 {
            // Unloading the module removed the rules.
            if let Err(error @ ModuleError::Refused { .. }) = Module::clear(verdicts) {
                warn!("{error}; remove them: echo clear >/proc/plait/rules");
            }
        }
    }
}

/// The local and the remote address of an event's connection.
fn addresses(event: &plait_outcome_event) -> (SocketAddr, SocketAddr) {
    let address = |words: [u32; 4], port| {
        let ip = match i32::from(event.family) {
            libc::AF_INET => IpAddr::V4(Ipv4Addr::from(words[0].to_ne_bytes())),
            _ => Ipv6Addr::from(bytemuck::cast::<_, [u8; 16]>(words)).to_canonical(),
        };
        SocketAddr::new(ip, port)
    };
    (address(event.local, event.local_port), address(event.remote, event.remote_port))
}

/// An interface's name as a C string. Those of existing interfaces fit.
fn name_of(interface: &str) -> [std::ffi::c_char; 16] {
    let mut name = [0; 16];
    for (place, byte) in name.iter_mut().zip(interface.bytes().take(15)) {
        *place = byte as std::ffi::c_char;
    }
    name
}

/// One of this user's gateways in a cgroup or its descendants.
fn gateway_in(cgroup: &str, namespace: u64) -> Option<u32> {
    let is_inside = |pid: &u32| {
        cgroup::of(*pid).is_some_and(|path| path.starts_with(cgroup)) && namespace_of(*pid) == Some(namespace)
    };
    gateway_pids().ok()?.into_iter().find(is_inside)
}

fn warn_of_running_processes(cgroup: &str, group: &OwnedFd) {
    let inside = cgroup::processes_of(group).unwrap_or_default();
    let others = inside.iter().filter(|pid| **pid != process::id()).count();
    if others > 0 {
        warn!(
            "{others} processes are in {cgroup} already: their existing sockets stay unprotected; restart those that must \
             be protected"
        );
    }
}
