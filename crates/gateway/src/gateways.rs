//! Several gateways in one process, as `plait daemon` has: each with its own peers, clients and services, on one negotiation.
//!
//! BPF programs negotiate for the cgroup of the process, so that mode and requirement are the same for all of them.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plait_linux::pm::{keep_record_open, path_manager_record};
use plait_linux::sandbox::{CapabilitySet, Rules};

use crate::bpf::BpfError;
use crate::error::StartError;
use crate::gateway::Gateway;
use crate::handshake::SharedNegotiation;
use crate::report::{Counts, DatagramPathReport, Handshakes, Report};
use crate::settings::Settings;
use crate::trust::SealedPeers;

/// The gateways of a process.
pub struct Gateways {
    /// Carries nothing itself.
    first: Arc<Gateway>,
    running: Mutex<Vec<Arc<Gateway>>>,
    /// What those that have ended have counted.
    ended: Mutex<Report>,
}

impl Gateways {
    /// Starts the negotiation that gateways share, or goes on with that of another process, and answers `plait status` for all of them.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(settings: Settings, other: Option<SharedNegotiation>) -> Result<Arc<Gateways>, StartError> {
        let first = Gateway::start_after(settings, other)?;
        let ended = Mutex::new(first.report());
        let gateways = Arc::new(Gateways { first, running: Mutex::default(), ended });
        let reporting = Arc::downgrade(&gateways);
        let alone = Arc::clone(&gateways.first);
        gateways.first.answer_status(move || {
            reporting.upgrade().map_or_else(|| alone.report(), |gateways| gateways.report())
        });
        Ok(gateways)
    }

    /// The one that carries nothing.
    #[must_use]
    pub fn first(&self) -> &Arc<Gateway> {
        &self.first
    }

    /// Starts a further gateway. Its policy is that of the first one.
    ///
    /// # Errors
    /// The settings do not fit together.
    pub fn add(&self, settings: Settings) -> Result<Arc<Gateway>, StartError> {
        let gateway = self.first.start_beside(settings)?;
        gateway.release_memory_after_peaks();
        self.running().push(Arc::clone(&gateway));
        Ok(gateway)
    }

    /// Stops a gateway, whose live connections end by themselves.
    pub fn retire(self: &Arc<Self>, gateway: Arc<Gateway>) {
        let gateways = Arc::clone(self);
        tokio::spawn(async move {
            gateway.retire().await;
            let mut ended = gateways.ended.lock().unwrap_or_else(PoisonError::into_inner);
            gateways.running().retain(|running| !Arc::ptr_eq(running, &gateway));
            let report = Report { listen: Vec::new(), connections: Vec::new(), ..gateway.report() };
            add(&mut ended, report);
        });
    }

    /// What another process needs to go on with the negotiation, if it can.
    ///
    /// # Errors
    /// This process may not have further descriptors.
    pub fn share_negotiation(&self) -> io::Result<Option<SharedNegotiation>> {
        self.first.negotiation().share()
    }

    /// Judges by the settings of this process from now on, not by those of the other whose negotiation it goes on with.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn replace_programs(&self) -> Result<(), BpfError> {
        self.first.negotiation().replace_programs()
    }

    /// Accepts connections until none has come for `quiet` and none is pending, and waits until live ones have ended by themselves.
    pub async fn drain(&self, quiet: Duration, has_pending: impl Fn() -> bool) {
        loop {
            let before = self.accepted_connections();
            tokio::time::sleep(quiet).await;
            if self.accepted_connections() == before && !has_pending() {
                break;
            }
        }
        self.running().iter().for_each(|gateway| gateway.stop_accepting());
        // They share the places of connections.
        self.first.drained().await;
    }

    /// One report of all.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut total = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let running = self.running().clone();
        running.iter().for_each(|gateway| add(&mut total, gateway.report()));
        total
    }

    /// As [`Gateway::shut_down`], all at once.
    pub async fn shut_down(&self) {
        let mut ending = tokio::task::JoinSet::new();
        for gateway in self.running().clone() {
            ending.spawn(async move { gateway.shut_down().await });
        }
        while ending.join_next().await.is_some() {}
        self.first.shut_down().await;
    }

    /// What it takes to accept and to open connections, to manage their paths, to know their peers, and to undo the set-up in the
    /// end.
    ///
    /// # Errors
    /// The cgroup is inaccessible.
    pub fn sandbox_rules(&self) -> io::Result<Rules> {
        let mut rules = self.first.sandbox_rules()?;
        // Subflows and events by netlink; the path manager and the blackhole timeout below /proc/sys/net/mptcp.
        rules.capabilities |= CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE;
        rules.files.write.push("/proc/sys/net/mptcp".into());
        // Its own namespace, and the kernel's counters.
        rules.files.read.push("/proc".into());
        if self.first.monitor().is_some() {
            // Without it, path management fails, and says so.
            let _ = keep_record_open();
        } else {
            rules.files.write.extend(path_manager_record());
            let known = self.first.identities().directories();
            rules.files.manage.extend(SealedPeers::of_user().directories().into_iter().chain(known));
        }
        Ok(rules)
    }

    fn accepted_connections(&self) -> u64 {
        self.running().iter().map(|gateway| gateway.accepted_connections()).sum()
    }

    fn running(&self) -> MutexGuard<'_, Vec<Arc<Gateway>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds what another gateway of this process reports.
fn add(total: &mut Report, report: Report) {
    total.listen.extend(report.listen);
    total.connections.extend(report.connections);
    for (reason, failures) in report.handshake_failures {
        *total.handshake_failures.entry(reason).or_default() += failures;
    }
    let Counts { protected, invalid_records, key_updates, plain, refused, rejected_identity } = report.counts;
    let counts = &mut total.counts;
    counts.protected += protected;
    counts.invalid_records += invalid_records;
    counts.key_updates += key_updates;
    counts.plain += plain;
    counts.refused += refused;
    counts.rejected_identity += rejected_identity;
    total.datagrams.associations += report.datagrams.associations;
    for (name, path) in report.datagrams.paths {
        let DatagramPathReport { sent, sent_bytes, received, received_bytes, lost } = path;
        let total = total.datagrams.paths.entry(name).or_default();
        total.sent += sent;
        total.sent_bytes += sent_bytes;
        total.received += received;
        total.received_bytes += received_bytes;
        total.lost += lost;
    }
    let Handshakes { waiting, complete, dropped, displaced, refused } = report.handshakes;
    let handshakes = &mut total.handshakes;
    handshakes.waiting += waiting;
    handshakes.complete += complete;
    handshakes.dropped += dropped;
    handshakes.displaced += displaced;
    handshakes.refused += refused;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::gateway::tests::unprotected_settings;

    #[tokio::test]
    async fn draining_gateway_accepts_as_long_as_connections_come() {
        let quiet = Duration::from_secs(2);
        let gateways = Gateways::start(unprotected_settings(), None).expect("mode off needs no privileges");
        let gateway = gateways.add(unprotected_settings()).expect("the same settings");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("any port");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move {
            gateway.accept(listener, 1, |stream, _, _| async move { drop(stream) }).await;
        });
        let connecting = async {
            for _ in 0..4 {
                tokio::time::sleep(quiet * 11 / 20).await;
                let mut client = TcpStream::connect(address).await.expect("it accepts");
                // It was handled.
                assert!(client.read_u8().await.is_err());
            }
        };
        tokio::join!(connecting, gateways.drain(quiet, || false));
        assert!(TcpStream::connect(address).await.is_err());
    }
}
