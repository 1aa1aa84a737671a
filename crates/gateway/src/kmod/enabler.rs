//! Gives the kernel module what it lacks, for the programs of one control group, from start to an orderly end.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::{MapHandle, RingBuffer, RingBufferBuilder};
use plait_linux::cgroup;
use plait_linux::diag;
use plait_linux::interfaces::interfaces;
use plait_linux::mptcp::Token;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::held::{Held, Lists};
use super::module::{Module, ModuleError};
use super::options::{ModuleMode, Options};
use super::record::{Enabled, Place, Record, namespace_of};
use crate::bindings::{
    PLAIT_OUTCOME_FALLBACK, PLAIT_OUTCOME_NEGOTIATED, PLAIT_OUTCOME_NO_COMMON_MODE, PLAIT_OUTCOME_PLAIN,
    plait_negotiate_settings, plait_outcome_event, plait_trusted_settings,
};
use crate::blackholes::Blackholes;
use crate::bpf::{self, BpfError, lookup};
use crate::control;
use crate::gateway::has_mptcp;
use crate::negotiation::{Negotiator, Refusal, Unprotected, unprotected};
use crate::said::Said;
use crate::skeleton::trusted::TrustedSkelBuilder;
use crate::subflows::{Subflows, wakeups};

/// Connections that the module does not know, and such as the kernel made TCP, are looked for this often.
const TICK: Duration = Duration::from_secs(2);

/// Between the end of negotiating and that of the rule: what has negotiated by then is accepted in the meantime.
const GRACE: Duration = Duration::from_millis(500);

/// An enabler could not start.
#[derive(Debug, thiserror::Error)]
pub enum EnableError {
    /// The module is not there, or refused the rule.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// There is one already.
    #[error(
        "`plait kmod enable` runs in this network namespace already{}: `plait kmod disable` ends it",
        .0.as_ref().map(|enabled| format!(" (process {}, for {})", enabled.pid, enabled.cgroup)).unwrap_or_default()
    )]
    AlreadyEnabled(Option<Box<Enabled>>),
    /// There is no such control group.
    #[error("{0} (mkdir makes one below /sys/fs/cgroup; `/` stands for every program)")]
    Cgroup(#[from] cgroup::Error),
    /// The module cannot be told of it.
    #[error("expected the path of a control group without blanks, found '{}'", .0.display())]
    Blank(PathBuf),
    /// A gateway's sockets would be taken.
    #[error(
        "a gateway (process {0}) runs in this control group, and what it protects would be protected once more: stop it, \
         start it outside of the group, or choose another group"
    )]
    Gateway(u32),
    /// An interface has a role and does not exist.
    #[error("expected an interface called {0}, there is none: `plait paths` lists them")]
    NoSuchInterface(String),
    /// No MPTCP.
    #[error(
        "this kernel has no MPTCP, or it is switched off: sysctl -w net.mptcp.enabled=1 (`plait doctor` says more)"
    )]
    Mptcp,
    /// No BPF programs.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// No view of other programs' connections.
    #[error(transparent)]
    Sockets(#[from] diag::Error),
    /// No control of the paths, or no run directory.
    #[error("{0} (it takes root, or CAP_NET_ADMIN; `plait doctor` says more)")]
    Host(#[from] io::Error),
}

/// What is in force for the programs of one control group; gone when dropped, best by [`end`](Enabler::end).
///
/// Dropped in the order of its fields: nothing negotiates any more when the rule goes.
pub struct Enabler {
    enabled: Enabled,
    options: Options,
    said: Said,
    /// The paths of each connection that began here.
    paths: JoinSet<()>,
    subflows: Arc<Subflows>,
    lists: Arc<Lists>,
    outcomes: OutcomeEvents,
    trusted: bpf::Programs,
    /// How often a program connected in a way that the module cannot protect.
    unprotected: MapHandle,
    warned_of_unprotected: bool,
    blackholes: Blackholes,
    negotiator: Negotiator,
    _rules: Rules,
    _record: Record,
}

impl Enabler {
    /// Starts for sockets that are made from now on. To be called within a tokio runtime.
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
        let cgroup = cgroup.ok_or_else(|| EnableError::Blank(path.clone()))?;
        let namespace = plait_linux::netns::NetNs::current()?.identity()?.inode;
        if let Some(pid) = gateway_in(cgroup, namespace) {
            return Err(EnableError::Gateway(pid));
        }
        let known = interfaces().map_err(io::Error::other)?;
        let absent = |name: &&str| known.iter().all(|interface| interface.name != **name);
        if let Some(name) = options.roles.names().find(absent) {
            return Err(EnableError::NoSuchInterface(name.to_owned()));
        }
        let (mut record, left) = match Record::take()? {
            Place::Free(record, left) => (record, left),
            Place::Taken(who) => return Err(EnableError::AlreadyEnabled(who.map(Box::new))),
        };
        let lists = Arc::new(Lists::open()?);
        let subflows = Subflows::start(options.roles.clone())?;
        let blackholes = Blackholes::watch()?;
        let trusted_interface = options.roles.trusted().next();

        let selection = options.selection();
        let mut negotiator = Negotiator::load(&plait_negotiate_settings {
            modes: options.mode.offer(),
            report_outcomes: 1,
            selection,
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
        let outcomes = OutcomeEvents::open(negotiator.outcomes())?;

        let verdicts = negotiator.verdicts()?;
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
        // From here on sockets are taken, and then some of them negotiate; never the other way round.
        let rules = Rules::add(&enabled)?;
        record.hand_over_leftovers();
        // The rules of a killed one go when the new one is there: in between, everything is refused.
        for old in enabled.verdicts.drain(..enabled.verdicts.len() - 1) {
            Module::clear(old)?;
        }
        record.write(&enabled)?;
        trusted.attach(&group)?;
        negotiator.negotiate_in(&group)?;
        warn_of_older(&enabled.cgroup, &group);
        Ok(Enabler {
            enabled,
            options,
            said: Said::default(),
            paths: JoinSet::new(),
            subflows,
            lists,
            outcomes,
            trusted,
            unprotected,
            warned_of_unprotected: false,
            blackholes,
            negotiator,
            _rules: rules,
            _record: record,
        })
    }

    /// What it is.
    pub fn describe(&self) -> &Enabled {
        &self.enabled
    }

    /// Looks after the paths of connections, and says what is not protected, for as long as it is polled.
    ///
    /// # Errors
    /// Nothing is told of connections any more.
    pub async fn run(&mut self) -> io::Result<()> {
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                ready = self.outcomes.wakeups.readable() => ready?.clear_ready(),
                _ = tick.tick() => {
                    self.warn_of_unprotected();
                    self.blackholes.look();
                }
            }
            for event in self.outcomes.take()? {
                self.handle_outcome(&event);
            }
            while self.paths.try_join_next().is_some() {}
        }
    }

    /// Ends: nothing new is protected, and what was stays protected on the subflows it has.
    pub async fn end(mut self) {
        self.trusted.detach();
        self.negotiator.detach();
        tokio::time::sleep(GRACE).await;
    }

    fn handle_outcome(&mut self, event: &plait_outcome_event) {
        let local = address(event, event.local, event.local_port);
        let remote = address(event, event.remote, event.remote_port);
        if !self.is_carried(u32::from(event.outcome), remote) || event.initiator == 0 || event.token == 0 {
            return;
        }
        if self.enabled.trusted.is_none() {
            self.said.no_trusted_path();
        }
        let if_index = self.if_index();
        let held =
            Held { token: Token(event.token), local, remote, if_index, lists: Arc::clone(&self.lists) };
        let subflows = Arc::clone(&self.subflows);
        self.paths.spawn(async move {
            let watch = subflows.watch(held.token, held.remote);
            tokio::select! {
                error = watch.tend(held.first_flight(), || held.paths()) => debug!("{remote}: {error}"),
                () = held.ended() => {}
            }
        });
    }

    /// Whether the module goes on with a connection; says so if it does it plain, or does not.
    fn is_carried(&self, outcome: u32, peer: SocketAddr) -> bool {
        let reason = match outcome {
            PLAIT_OUTCOME_NEGOTIATED => return true,
            PLAIT_OUTCOME_PLAIN => Unprotected::Silent,
            PLAIT_OUTCOME_NO_COMMON_MODE => Unprotected::NoCommonMode,
            PLAIT_OUTCOME_FALLBACK => Unprotected::Fallback,
            _ => {
                warn!("{peer}: refused: {}", Refusal::Unconfirmed);
                return false;
            }
        };
        if reason == Unprotected::NoCommonMode && self.options.mode == ModuleMode::Stream {
            self.said.stream_of_module();
        }
        match unprotected(self.options.policy(), reason) {
            Ok(_) => self.said.plain(peer.ip(), reason),
            Err(refusal) => warn!("{peer}: refused: {refusal}"),
        }
        !self.options.require
    }

    fn if_index(&self) -> u32 {
        let trusted = self.enabled.trusted.as_deref();
        let usable = self.subflows.usable();
        usable
            .iter()
            .find(|interface| Some(&*interface.name) == trusted)
            .map_or(0, |interface| interface.index)
    }

    /// Warns once when programs connect in ways that the module cannot protect.
    fn warn_of_unprotected(&mut self) {
        let count = lookup::<u64>(&self.unprotected, &0u32.to_ne_bytes()).ok().flatten().unwrap_or(0);
        if count == 0 || self.warned_of_unprotected {
            return;
        }
        self.warned_of_unprotected = true;
        let carried = if self.options.require { "refused" } else { "carried PLAIN" };
        warn!(
            "programs in {} make TCP connections, or connect by sockets older than this command: these are {carried}; \
             `mptcpize run PROGRAM` starts a program with MPTCP",
            self.enabled.cgroup
        );
    }
}

/// The rules of an enabler, and those that a killed one left, in the module until dropped.
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
            // Without the module there are no rules.
            if let Err(error @ ModuleError::Refused { .. }) = Module::clear(verdicts) {
                warn!("{error}; remove them: echo clear >/proc/plait/rules");
            }
        }
    }
}

/// The outcomes that the negotiator reports.
struct OutcomeEvents {
    ring: RingBuffer<'static>,
    arrived: Arc<Mutex<Vec<plait_outcome_event>>>,
    wakeups: AsyncFd<OwnedFd>,
}

impl OutcomeEvents {
    fn open(map: &MapHandle) -> Result<OutcomeEvents, EnableError> {
        let arrived = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&arrived);
        let mut builder = RingBufferBuilder::new();
        let record = move |bytes: &[u8]| {
            if let Ok(event) = bytemuck::try_pod_read_unaligned(bytes) {
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(event);
            }
            0
        };
        builder.add(map, record).map_err(io::Error::other)?;
        let ring = builder.build().map_err(io::Error::other)?;
        // SAFETY: the ring has it open for as long as it lives, and it lives until the function ends.
        let descriptor = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
        let wakeups = wakeups(descriptor)?;
        Ok(OutcomeEvents { ring, arrived, wakeups })
    }

    fn take(&self) -> io::Result<Vec<plait_outcome_event>> {
        self.ring.consume().map_err(io::Error::other)?;
        Ok(std::mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn address(event: &plait_outcome_event, words: [u32; 4], port: u16) -> SocketAddr {
    let ip = match i32::from(event.family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(words[0].to_ne_bytes())),
        _ => Ipv6Addr::from(bytemuck::cast::<_, [u8; 16]>(words)).to_canonical(),
    };
    SocketAddr::new(ip, port)
}

/// An interface's name as the kernel has it. Those of existing interfaces fit.
fn name_of(interface: &str) -> [std::ffi::c_char; 16] {
    let mut name = [0; 16];
    for (place, byte) in name.iter_mut().zip(interface.bytes().take(15)) {
        *place = byte as std::ffi::c_char;
    }
    name
}

/// A gateway of this user in a control group, or below it.
fn gateway_in(cgroup: &str, namespace: u64) -> Option<u32> {
    let is_inside = |pid: &u32| {
        cgroup::of(*pid).is_some_and(|path| path.starts_with(cgroup)) && namespace_of(*pid) == Some(namespace)
    };
    control::processes().ok()?.into_iter().find(is_inside)
}

fn warn_of_older(cgroup: &str, group: &OwnedFd) {
    let inside = cgroup::processes_of(group).unwrap_or_default();
    let others = inside.iter().filter(|pid| **pid != process::id()).count();
    if others > 0 {
        warn!(
            "{others} processes are in {cgroup} already: sockets that they have now stay unprotected; restart what is to \
             be protected"
        );
    }
}
