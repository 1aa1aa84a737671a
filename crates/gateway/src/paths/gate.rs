//! Which paths may be used now: by their rules, the time of day, and what is left of their quotas.
//!
//! The kernel counts and limits ([`super::path_limits`]). Here its counts are written to a file ([`super::quota_file`]), often while
//! paths are in use, and compared with the quotas. A path that may not be used any longer has its subflows closed by the watches of
//! connections ([`super::path_watch`]).

use std::collections::HashMap;
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{Local, NaiveDate, NaiveDateTime};
use plait_config::Bytes;
use plait_linux::cgroup::Cgroup;
use plait_linux::interfaces::{Interface, interfaces};
use tokio::sync::watch;
use tracing::{info, warn};

use super::calendar::Schedule;
use super::path_limits::{PathLimits, PathUses};
use super::path_name::PathName;
use super::quota_file::{KernelCount, QuotaFile, QuotaUpdate, QuotaUses};
use super::roles::Roles;
use super::rules::{PathRule, Quota};
use super::scheduler_paths::{SchedulerMismatch, SchedulerPaths};
use crate::bindings::{PLAIT_PATH_TOO_FAST, plait_path_limit};
use crate::bpf::BpfError;
use crate::congestion_control::CongestionControl;
use crate::monitor::Monitor;
use crate::ring_events::RingEvents;

/// A path ends when so much of its quota is left; the kernel keeps half of that for headers and what is in flight.
const CLOSE_AT: u64 = 40_960;
/// The kernel slows a path down when so much of its quota is left, or half of the quota.
const TAPER: u64 = 4 << 20;
/// From one write that reaches the disk to the next.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// The clock may be set.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Writes that fail are tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Why a path is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Blocked {
    #[error("its quota of {bytes} is used up until {until}", bytes = Bytes(*bytes))]
    Quota { bytes: u64, until: NaiveDate },
    #[error("its schedule is {0}")]
    Schedule(Schedule),
}

/// Where the use of quotas is stored.
enum Store {
    File(QuotaFile),
    /// This process may not write the file.
    Monitor(Arc<Monitor>),
}

impl Store {
    fn add(&self, updates: &[QuotaUpdate], sync: bool) -> io::Result<QuotaUses> {
        match self {
            Store::File(file) => file.add(updates, sync),
            Store::Monitor(monitor) => monitor.add_quota_use(updates, sync),
        }
    }
}

/// The state of a quota.
#[derive(Clone, Copy)]
struct QuotaState {
    /// The first day of the period.
    since: NaiveDate,
    /// Bytes used in it by all gateways, when the file was written last.
    used: u64,
    /// The kernel's count at that time.
    counted: u64,
    is_used_up: bool,
}

struct Limiter {
    limits: PathLimits,
    /// Whether the monitor reads the kernel's counts as well.
    is_shared: bool,
    store: Store,
    /// By rule; those without a quota have none.
    states: Mutex<Vec<Option<QuotaState>>>,
    updating: Mutex<()>,
}

/// Decides which paths may be used.
pub(crate) struct PathGate {
    roles: Roles,
    kernel: Option<Limiter>,
    /// Keeps the kernel's programs attached, where the gateway has no other.
    _cgroup: Option<Cgroup>,
    scheduler: Option<SchedulerPaths>,
    /// By rule: whether peers should send by other paths for now.
    paused: watch::Sender<Vec<bool>>,
}

/// The rules cannot be enforced.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PathRulesError {
    #[error(transparent)]
    Bpf(#[from] BpfError),
    #[error("cannot create a cgroup: {0}")]
    Cgroup(#[from] plait_linux::cgroup::Error),
    #[error("{0}")]
    File(io::Error),
    #[error(transparent)]
    Scheduler(#[from] SchedulerMismatch),
    #[error(
        "expected STATE_DIRECTORY, XDG_STATE_HOME or HOME in the environment, for the use of quotas, got none of them"
    )]
    NoDirectory,
}

impl PathGate {
    /// Without limits.
    pub(crate) fn unlimited(roles: Roles) -> PathGate {
        PathGate::new(roles, None)
    }

    fn new(roles: Roles, scheduler: Option<SchedulerPaths>) -> PathGate {
        PathGate { roles, kernel: None, _cgroup: None, scheduler, paused: watch::Sender::default() }
    }

    /// Starts to count and to limit, if a rule asks for that, what the sockets of `cgroup` carry, or without one, those that this
    /// process creates from now on.
    pub(crate) fn start(
        roles: Roles,
        cgroup: Option<&Cgroup>,
        monitor: Option<&Arc<Monitor>>,
        congestion_control: &Arc<CongestionControl>,
    ) -> Result<PathGate, PathRulesError> {
        let scheduler = SchedulerPaths::of(&roles, congestion_control)?;
        let is_limited = |rule: &PathRule| rule.cap.is_some() || rule.quota.is_some();
        if !roles.rules().iter().any(is_limited) {
            return Ok(PathGate::new(roles, scheduler));
        }
        let shared = monitor.and_then(|monitor| monitor.take_path_uses());
        let is_shared = shared.is_some();
        let uses = shared.map_or_else(PathUses::new, Ok)?;
        let (own, limits) = match cgroup {
            Some(cgroup) => (None, PathLimits::attach(cgroup, uses)?),
            None => {
                let own = Cgroup::create_below_current("gateway")?;
                let limits = PathLimits::attach(&own, uses)?;
                own.enter()?;
                (Some(own), limits)
            }
        };
        let store = match monitor {
            Some(monitor) => Store::Monitor(Arc::clone(monitor)),
            None => Store::File(QuotaFile::of_user().ok_or(PathRulesError::NoDirectory)?),
        };
        let states = Mutex::new(vec![None; roles.rules().len()]);
        let paused = watch::Sender::new(vec![false; roles.rules().len()]);
        let kernel = Limiter { limits, is_shared, store, states, updating: Mutex::default() };
        let gate = PathGate { roles, kernel: Some(kernel), _cgroup: own, scheduler, paused };
        gate.set_caps()?;
        gate.update(now(), true).map_err(PathRulesError::File)?;
        Ok(gate)
    }

    /// The roles, and the rules.
    pub(crate) fn roles(&self) -> &Roles {
        &self.roles
    }

    /// Why an interface may not be used now, whatever its role; `None` if it may.
    pub(crate) fn blocked(&self, interface: &Interface) -> Option<Blocked> {
        let (number, rule) = self.roles.rule_of(interface)?;
        let used_up =
            self.kernel.as_ref().and_then(|kernel| kernel.states()[number].filter(|state| state.is_used_up));
        if let Some((state, quota)) = used_up.zip(rule.quota) {
            return Some(Blocked::Quota { bytes: quota.bytes, until: quota.period.next(state.since) });
        }
        let schedule = rule.schedule.filter(|schedule| !schedule.contains(now().time()));
        schedule.map(Blocked::Schedule)
    }

    /// Whether a connection may use an interface now.
    pub(crate) fn admits(&self, interface: &Interface) -> bool {
        interface.up
            && !interface.loopback
            && self.roles.of(interface).is_some()
            && self.blocked(interface).is_none()
    }

    /// The trusted paths that may be used now; none if none is configured.
    ///
    /// # Errors
    /// Some are configured, and none may be used; or interfaces cannot be listed.
    pub(crate) fn trusted(&self) -> io::Result<Vec<PathName>> {
        if self.roles.rules().is_empty() {
            return Ok(self.roles.trusted().cloned().collect());
        }
        let interfaces = self.interfaces()?;
        let (mut admitted, mut blocked) = (Vec::new(), None);
        for path in self.roles.trusted_among(&interfaces) {
            let reason = interfaces.iter().filter(|interface| path.is_of(interface)).find_map(|interface| {
                Some(format!("{} is not used: {}", interface.name, self.blocked(interface)?))
            });
            match reason {
                None => admitted.push(path),
                Some(reason) => blocked = blocked.or(Some(reason)),
            }
        }
        if admitted.is_empty() && self.roles.has_trusted() {
            let reason =
                blocked.unwrap_or_else(|| "no interface matches a rule with role \"trusted\"".into());
            return Err(io::Error::new(io::ErrorKind::NetworkUnreachable, reason));
        }
        Ok(admitted)
    }

    /// The path through an interface to which a program has bound a connection.
    ///
    /// # Errors
    /// It may not be used now; or interfaces cannot be listed.
    pub(crate) fn bound(&self, name: &str) -> io::Result<PathName> {
        if !self.roles.rules().is_empty() {
            let interfaces = self.interfaces()?;
            let bound = interfaces.iter().find(|interface| interface.name == name);
            if let Some(reason) = bound.and_then(|interface| self.blocked(interface)) {
                return Err(io::Error::new(
                    io::ErrorKind::NetworkUnreachable,
                    format!("{name} is not used: {reason}"),
                ));
            }
        }
        Ok(PathName::Interface(name.into()))
    }

    /// The paths of a connection without a trusted one: as routing decides (`None`) if the connection may use the interface that it
    /// chooses, by index; else through each other one that has a route.
    ///
    /// # Errors
    /// There is none, or interfaces cannot be listed.
    pub(crate) fn routed(
        &self,
        chosen: Option<u32>,
        has_route: impl Fn(&Interface) -> bool,
    ) -> io::Result<Vec<Option<PathName>>> {
        let interfaces = self.interfaces()?;
        let chosen = chosen.and_then(|index| interfaces.iter().find(|interface| interface.index == index));
        if chosen.is_none_or(|interface| interface.loopback || self.admits(interface)) {
            return Ok(vec![None]);
        }
        let admitted = interfaces.iter().filter(|interface| self.admits(interface) && has_route(interface));
        let name = |interface: &Interface| match self.roles.rule_of(interface) {
            Some((_, rule)) => rule.path_of(interface),
            None => PathName::Interface(interface.name.clone()),
        };
        let paths: Vec<_> = admitted.map(|interface| Some(name(interface))).collect();
        if paths.is_empty() {
            let reason = "no interface that the rules of paths allow now has a route";
            return Err(io::Error::new(io::ErrorKind::NetworkUnreachable, reason));
        }
        Ok(paths)
    }

    /// This host's interfaces, which the kernel's side knows from now on.
    fn interfaces(&self) -> io::Result<Vec<Interface>> {
        let interfaces = interfaces().map_err(io::Error::other)?;
        self.set_interfaces(&interfaces);
        Ok(interfaces)
    }

    /// Takes note of this host's interfaces: before a connection uses a new one.
    pub(crate) fn set_interfaces(&self, interfaces: &[Interface]) {
        if let Some(scheduler) = &self.scheduler {
            scheduler.set_interfaces(&self.roles, interfaces);
        }
        let Some(kernel) = &self.kernel else { return };
        let rule = |interface: &Interface| {
            let (number, _) = self.roles.rule_of(interface)?;
            Some((interface.index, u32::try_from(number).ok()?))
        };
        let wanted: HashMap<u32, u32> = interfaces.iter().filter_map(rule).collect();
        if let Err(error) = kernel.limits.set_interfaces(&wanted) {
            warn!("caps and quotas do not apply to new interfaces: {error}");
        }
    }

    /// Enforces schedules and quotas until dropped; calls `changed` when a path may or may not be used any longer.
    pub(crate) async fn run(self: Arc<Self>, changed: impl Fn()) {
        let mut reports = self.kernel.as_ref().and_then(|kernel| {
            let opened = kernel.limits.reports();
            opened.inspect_err(|error| warn!("the use of quotas is noticed late: {error}")).ok()
        });
        let (mut synced, mut is_synced, mut is_failing) = (Instant::now(), true, false);
        let mut open = self.open_rules();
        loop {
            let until_sync =
                if is_synced { MAX_WAIT } else { SYNC_INTERVAL.saturating_sub(synced.elapsed()) };
            tokio::select! {
                () = tokio::time::sleep(self.until_change().min(until_sync).min(self.until_resumed())) => {}
                events = reported(&mut reports) => self.pause(&events),
            }
            self.resume();
            let sync = !is_synced && synced.elapsed() >= SYNC_INTERVAL;
            let gate = Arc::clone(&self);
            // It waits for the disk, and for other processes.
            let updated = tokio::task::spawn_blocking(move || gate.update(now(), sync)).await;
            let open_now = self.open_rules();
            if open != open_now {
                open = open_now;
                changed();
            }
            match updated.unwrap_or_else(|error| Err(io::Error::other(error))) {
                Ok(has_grown) => {
                    is_synced = sync || (is_synced && !has_grown);
                    is_failing = false;
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        warn!(
                            "cannot store the use of quotas, so a restart may give some of it back: {error}"
                        );
                    }
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
            if sync {
                synced = Instant::now();
            }
        }
    }

    /// Tells whether peers should send by other paths for now.
    pub(crate) fn paused(&self) -> watch::Receiver<Vec<bool>> {
        self.paused.subscribe()
    }

    /// Asks for a pause of rules whose paths are ahead of their cap.
    fn pause(&self, events: &[u32]) {
        for event in events.iter().filter(|event| *event & PLAIT_PATH_TOO_FAST != 0) {
            let number = (event ^ PLAIT_PATH_TOO_FAST) as usize;
            self.paused.send_if_modified(|paused| {
                paused.get_mut(number).is_some_and(|paused| !std::mem::replace(paused, true))
            });
        }
    }

    /// Ends the pauses that are over.
    fn resume(&self) {
        let Some(kernel) = &self.kernel else { return };
        self.paused.send_if_modified(|paused| {
            let mut changed = false;
            for (number, paused) in paused.iter_mut().enumerate().filter(|(_, paused)| **paused) {
                *paused = !kernel.limits.pause(number).is_zero();
                changed |= !*paused;
            }
            changed
        });
    }

    /// Until the next pause is over.
    fn until_resumed(&self) -> Duration {
        let Some(kernel) = &self.kernel else { return MAX_WAIT };
        let paused = self.paused.borrow();
        let pauses = paused.iter().enumerate().filter(|(_, paused)| **paused);
        pauses.map(|(number, _)| kernel.limits.pause(number)).min().unwrap_or(MAX_WAIT)
    }

    /// Writes what was used since the last time, and learns what other gateways used. Returns whether this one used anything.
    fn update(&self, now: NaiveDateTime, sync: bool) -> io::Result<bool> {
        let Some(kernel) = &self.kernel else { return Ok(false) };
        let _updating = kernel.updating.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut updates, mut counts) = (Vec::new(), Vec::new());
        for (number, rule, quota) in self.quotas() {
            let before = kernel.states()[number];
            let counted = kernel.limits.used(number).map_err(io::Error::other)?;
            let bytes = counted - before.map_or(0, |before| before.counted);
            // At once: to write it takes time.
            kernel.note(number, quota, bytes);
            counts.push((number, rule, quota, counted));
            let reached = kernel.is_shared.then_some(KernelCount { rule: number, bytes: counted });
            updates.push(QuotaUpdate {
                rule: rule.pattern.to_string(),
                period: quota.period,
                today: now.date(),
                bytes,
                reached,
            });
        }
        if updates.is_empty() {
            return Ok(false);
        }
        let uses = kernel.store.add(&updates, sync)?;
        for (number, rule, quota, counted) in counts {
            let Some(usage) = uses.get(&rule.pattern.to_string()) else { continue };
            let is_used_up = is_used_up(quota, usage.bytes);
            let state = QuotaState { since: usage.since, used: usage.bytes, counted, is_used_up };
            kernel.set(number, rule, quota, state).map_err(io::Error::other)?;
        }
        Ok(updates.iter().any(|update| update.bytes > 0))
    }

    fn quotas(&self) -> impl Iterator<Item = (usize, &PathRule, Quota)> {
        let rules = self.roles.rules().iter().enumerate();
        rules.filter_map(|(number, rule)| Some((number, rule, rule.quota?)))
    }

    fn set_caps(&self) -> Result<(), BpfError> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        for (number, rule) in self.roles.rules().iter().enumerate() {
            // A quota is not known yet.
            kernel.limits.set(number, &limit(rule, if rule.quota.is_some() { 0 } else { u64::MAX }))?;
        }
        Ok(())
    }

    /// Whether each rule's paths may be used now.
    fn open_rules(&self) -> Vec<bool> {
        let states = self.kernel.as_ref().map(|kernel| kernel.states().clone());
        let time = now().time();
        let is_open = |(number, rule): (usize, &PathRule)| {
            let used_up =
                states.as_ref().and_then(|states| states[number]).is_some_and(|state| state.is_used_up);
            !used_up && rule.schedule.is_none_or(|schedule| schedule.contains(time))
        };
        self.roles.rules().iter().enumerate().map(is_open).collect()
    }

    /// Until a schedule or the end of a period changes what may be used, or the clock may have been set.
    fn until_change(&self) -> Duration {
        let now = now();
        let schedules = self.roles.rules().iter().filter_map(|rule| rule.schedule);
        let midnight = (now.date() + chrono::Days::new(1)).and_time(chrono::NaiveTime::MIN);
        let changes = schedules.map(|schedule| schedule.next_change(now)).chain([midnight]);
        let until = |change: NaiveDateTime| (change - now).to_std().unwrap_or_default();
        changes.map(until).min().unwrap_or(MAX_WAIT).min(MAX_WAIT) + Duration::from_millis(1)
    }
}

impl Limiter {
    fn states(&self) -> MutexGuard<'_, Vec<Option<QuotaState>>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of what was used since the last write.
    fn note(&self, number: usize, quota: Quota, bytes: u64) {
        if let Some(state) = &mut self.states()[number] {
            state.is_used_up |= is_used_up(quota, state.used.saturating_add(bytes));
        }
    }

    fn set(&self, number: usize, rule: &PathRule, quota: Quota, state: QuotaState) -> Result<(), BpfError> {
        let allowance = state.counted.saturating_add(quota.bytes.saturating_sub(state.used));
        self.limits.set(number, &limit(rule, allowance))?;
        let before = self.states()[number].replace(state);
        let same_period = before.filter(|before| before.since == state.since);
        let (name, bytes, until) = (&rule.pattern, Bytes(quota.bytes), quota.period.next(state.since));
        if state.is_used_up && same_period.is_none_or(|before| !is_used_up(quota, before.used)) {
            warn!("paths that match '{name}' are not used until {until}: their quota of {bytes} is used up");
        } else if before.is_some_and(|before| before.is_used_up) && same_period.is_none() {
            info!("paths that match '{name}' may carry {bytes} until {until}");
        }
        Ok(())
    }
}

impl Drop for PathGate {
    fn drop(&mut self) {
        if let Err(error) = self.update(now(), true) {
            warn!("cannot store the use of quotas, so a restart may give some of it back: {error}");
        }
    }
}

fn is_used_up(quota: Quota, used: u64) -> bool {
    quota.bytes.saturating_sub(used) <= CLOSE_AT
}

fn limit(rule: &PathRule, allowance: u64) -> plait_path_limit {
    let taper = rule.quota.map_or(0, |quota| TAPER.min(quota.bytes / 2));
    plait_path_limit { rate: rule.cap.map_or(0, |cap| cap.bytes_per_second()), allowance, taper }
}

/// Waits until the kernel reports that something of a quota was used, or that more arrives than a cap allows.
async fn reported(reports: &mut Option<RingEvents<u32>>) -> Vec<u32> {
    let Some(events) = reports else { return pending().await };
    events.ready().await.and_then(|()| events.take()).unwrap_or_else(|error| {
        warn!("the use of quotas is noticed late: {error}");
        *reports = None;
        Vec::new()
    })
}

fn now() -> NaiveDateTime {
    Local::now().naive_local()
}
