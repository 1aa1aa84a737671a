//! Trusted path first: a connection's further subflows are created here, and not before its first flight has arrived.
//!
//! While a connection has one subflow the kernel cannot send elsewhere. So a connection starts with one, on the trusted
//! path, managed from user space; once the first flight ([`crate::handshake::FirstFlight`]) is DATA_ACKed, one subflow per
//! further interface is created. From then on [`PathWatch::run`] compares the subflows with the interfaces, often while the
//! connection is in use, and whenever the kernel reports a change: a subflow that is not answered ([`super::liveness`]) is
//! closed, a path without one that answers, or on which the peer has stopped sending ([`super::suspects`]), is tried again
//! ([`super::plan`]), and a new interface is used.
//!
//! The connections are those of a gateway, or those that the kernel module protects ([`crate::kmod`]).

use std::collections::HashSet;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use plait_linux::State;
use plait_linux::interfaces::Interface;
use plait_linux::mptcp::{FullInfo, Subflow, SubflowEnds, Token};
use plait_linux::pm::Local;
use tokio::sync::{mpsc, watch};
use tracing::debug;

use super::data_acks::DataAcks;
use super::events::PathEvent;
use super::liveness::{Health, Liveness, OPEN_TIMEOUT};
use super::plan::Plan;
use super::shared_receive_buffer::SharedReceiveBuffer;
use super::subflows::Subflows;
use super::suspects::Suspects;
use super::watched::{Pace, Watched};

/// Interfaces are compared with subflows at least this often.
const TICK: Duration = Duration::from_secs(5);

/// A connection without a path for this long has failed. The kernel has such a timeout too (`net.mptcp.close_timeout`), but
/// every attempt to create a subflow restarts it, even if the peer has forgotten the connection and resets the attempt.
const NO_PATH_TIMEOUT: Duration = Duration::from_secs(120);

/// The watch of one connection's paths.
pub(crate) struct PathWatch<'a> {
    token: Token,
    subflows: &'a Subflows,
    events: mpsc::Receiver<PathEvent>,
    changes: watch::Receiver<()>,
    /// By rule of paths: whether the peer should send by others.
    paused: watch::Receiver<Vec<bool>>,
    /// The subflows that it should not send on, by their addresses.
    backups: HashSet<SubflowEnds>,
    plan: Plan,
    liveness: Liveness,
    data_acks: DataAcks,
    suspects: Suspects,
    receive_buffer: SharedReceiveBuffer,
    pace: Pace,
    /// When the connection was last seen to have a subflow.
    last_path: Instant,
}

impl Drop for PathWatch<'_> {
    fn drop(&mut self) {
        self.subflows.unsubscribe(self.token);
    }
}

impl<'a> PathWatch<'a> {
    /// Subscribes to the events of a connection's paths. `peer` is the peer's address of the initial subflow, `interface` that
    /// subflow's interface, or 0.
    pub(crate) fn new(
        subflows: &'a Subflows,
        token: Token,
        peer: SocketAddr,
        interface: u32,
    ) -> PathWatch<'a> {
        PathWatch {
            token,
            subflows,
            events: subflows.subscribe(token),
            changes: subflows.changes(),
            paused: subflows.paused(),
            backups: HashSet::new(),
            plan: Plan::new(peer, interface),
            liveness: Liveness::default(),
            data_acks: DataAcks::default(),
            suspects: Suspects::default(),
            receive_buffer: SharedReceiveBuffer::default(),
            pace: Pace::new(),
            last_path: Instant::now(),
        }
    }

    /// Manages the connection's subflows from the end of its first flight on, until dropped, or until the connection is lost,
    /// which is the error: the peer rejects every subflow, or there has been none for too long.
    pub(crate) async fn run(
        mut self,
        first_flight: impl Future<Output = ()>,
        connection: &impl Watched,
    ) -> io::Error {
        tokio::select! {
            () = first_flight => {}
            error = lost_early(&mut self.events, &mut self.plan, connection) => return error,
            never = self.pace.keep(connection) => match never {},
        }
        self.last_path = Instant::now();
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.plan.apply(event);
            }
            let mut pause = Some(TICK);
            if let Ok(info) = connection.full_info() {
                if !has_live(&info.subflows) && self.plan.is_rejected() {
                    return reset_by_peer();
                }
                self.receive_buffer.share_with_new_subflows(connection, &info.subflows);
                self.reconcile(&info, connection.expects_more());
                pause = self.pace.next(connection, &info.subflows, &self.liveness);
                self.ask_for_other_paths(&info.subflows);
            } else {
                self.last_path = Instant::now();
            }
            if self.last_path.elapsed() > NO_PATH_TIMEOUT {
                let why = format!("no path for {} s", NO_PATH_TIMEOUT.as_secs());
                return io::Error::new(io::ErrorKind::TimedOut, why);
            }
            self.wait(connection, pause).await;
        }
    }

    /// Waits for the next look at the subflows: at an event, when a retry is due, and after `pause` or, without one, when the
    /// connection carries bytes again.
    async fn wait(&mut self, connection: &impl Watched, pause: Option<Duration>) {
        let until_retry = self.plan.next_retry().map(|due| due.saturating_duration_since(Instant::now()));
        let longest = pause.unwrap_or(TICK).min(until_retry.unwrap_or(TICK));
        tokio::select! {
            () = tokio::time::sleep(longest) => {}
            () = self.pace.active(connection), if pause.is_none() => self.plan.retry_lost(),
            Ok(()) = self.changes.changed() => self.plan.retry_lost(),
            Ok(()) = self.paused.changed() => {}
            Some(event) = self.events.recv() => self.plan.apply(event),
        }
    }

    /// Asks the peer to send on others than the subflows of paths that are ahead of their cap, until they are not.
    fn ask_for_other_paths(&mut self, subflows: &[Subflow]) {
        let paused = self.paused.borrow_and_update().clone();
        if paused.is_empty() {
            return;
        }
        self.backups.retain(|known| subflows.iter().any(|subflow| subflow.ends() == *known));
        for subflow in subflows.iter().filter(|subflow| subflow.tcp.state == State::Established) {
            let rule = self.subflows.rule_of(subflow.local.ip().to_canonical());
            // An idle connection does not matter.
            let wanted = self.pace.in_use() && rule.is_some_and(|rule| paused[rule]);
            let is_backup = self.backups.contains(&subflow.ends());
            if wanted != is_backup && self.subflows.set_backup(self.token, subflow, wanted) {
                match wanted {
                    true => self.backups.insert(subflow.ends()),
                    false => self.backups.remove(&subflow.ends()),
                };
            }
        }
    }

    /// Closes the subflows that are dead, or one for what the peer has dropped, and creates one through every usable interface where
    /// none answers.
    fn reconcile(&mut self, info: &FullInfo, expects_more: bool) {
        let subflows = &info.subflows;
        if has_live(subflows) {
            self.last_path = Instant::now();
        }
        let usable = self.subflows.usable();
        let now = Instant::now();
        let mut health = self.liveness.judge(now, subflows, |local| self.subflows.is_gone(local));
        self.suspects.mark_suspects(now, subflows, &self.backups, &mut health, expects_more);
        self.data_acks.mark_dead_if_data_ack_stalls(now, info, &mut health);
        let with_health: Vec<_> = subflows.iter().zip(health).collect();
        let is_blocked = |subflow: &Subflow| self.subflows.is_blocked(subflow.local.ip().to_canonical());
        let is_lost = |(subflow, health): &&(&Subflow, Health)| {
            *health == Health::Dead || (*health != Health::Closed && is_blocked(subflow))
        };
        let lost: Vec<&Subflow> = with_health.iter().filter(is_lost).map(|(subflow, _)| *subflow).collect();
        for subflow in lost {
            let local = subflow.local.ip().to_canonical();
            let interface = usable.iter().find(|interface| interface.has_address(local));
            self.close(interface, subflow);
            if subflow.tcp.state == State::Established
                && let Some(interface) = interface
            {
                self.plan.postpone_for_reinjection(interface.index);
            }
        }
        for interface in usable.iter().filter(|interface| interface.running) {
            let is_own = |subflow: &Subflow| interface.has_address(subflow.local.ip().to_canonical());
            let own = with_health.iter().filter(|(subflow, _)| is_own(subflow));
            self.reconcile_interface(interface, &own.copied().collect::<Vec<_>>());
        }
    }

    fn reconcile_interface(&mut self, interface: &Interface, own: &[(&Subflow, Health)]) {
        let with =
            |wanted| own.iter().filter(move |(_, health)| *health == wanted).map(|(subflow, _)| *subflow);
        let carried = |subflow: &&Subflow| subflow.tcp.bytes_acked + subflow.tcp.bytes_received;
        if let Some(best) = with(Health::Answering).max_by_key(carried) {
            if self.plan.set_live(interface.index) {
                debug!("{} is back", interface.name);
                self.subflows.announce_change();
            }
            // One is enough: those that were tried at the same time, or an old one that has recovered, or will do so slowly.
            let others = [Health::Answering, Health::Opening, Health::Recovering].map(with);
            for surplus in others.into_iter().flatten() {
                if surplus.local != best.local {
                    self.close(Some(interface), surplus);
                }
            }
        } else if with(Health::Opening).count() < self.plan.max_opening(interface.index)
            && self.plan.is_due(interface.index)
        {
            self.create_subflow(interface);
        }
    }

    fn close(&mut self, interface: Option<&Interface>, subflow: &Subflow) {
        if let Some(interface) = interface {
            self.plan.closes(interface.index);
        }
        let if_index = interface.map_or(0, |interface| interface.index);
        self.subflows.close(self.token, subflow.local, subflow.remote, if_index);
    }

    fn create_subflow(&mut self, interface: &Interface) {
        let Some((remote_id, remote, source)) =
            self.plan.choose(interface, |remote| self.subflows.source_address(interface, remote))
        else {
            return;
        };
        if self.plan.is_probe(interface.index) && !self.subflows.admit_probe(interface.index) {
            return self.plan.postpone(interface.index, OPEN_TIMEOUT);
        }
        let id = self.plan.record_attempt(interface.index, source, self.pace.in_use());
        let local = Local { address: source, id, if_index: interface.index, backup: false };
        match self.subflows.create(self.token, &local, remote, remote_id) {
            Ok(()) => debug!("subflow through {} from {source} to {remote}", interface.name),
            Err(error) => debug!("no subflow through {} to {remote}: {error}", interface.name),
        }
    }
}

/// Completes if the peer resets the only subflow before the end of the first flight, when there may be no other.
async fn lost_early(
    events: &mut mpsc::Receiver<PathEvent>,
    plan: &mut Plan,
    connection: &impl Watched,
) -> io::Error {
    while let Some(event) = events.recv().await {
        plan.apply(event);
        let was_reset = matches!(event, PathEvent::Closed { by_peer: true, .. });
        if was_reset && connection.full_info().is_ok_and(|info| !has_live(&info.subflows)) {
            return reset_by_peer();
        }
    }
    pending().await
}

fn has_live(subflows: &[Subflow]) -> bool {
    subflows.iter().any(|subflow| subflow.tcp.state == State::Established)
}

/// The kernel keeps a connection whose last subflow was reset, for a new one.
fn reset_by_peer() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "the peer has reset every path")
}
