//! The initiator's witnesses that its handshake did not wait for: they are added to the running session when they come.

use std::sync::{Arc, Weak};
use std::time::Duration;

use plait_proto::sealed::PathId;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tracing::debug;

use super::witness::{Attempts, CONNECT_TIMEOUT, Target, check};
use super::witness_memory::WitnessMemory;
use crate::handshake::{Negotiation, SealedError, add_late_witness};
use crate::running_session::RunningSession;
use crate::socket::close_on_drop;

/// The late witnesses of one session.
pub(super) struct LateWitnesses {
    pub(super) recorder: LatenessRecorder,
    pub(super) attempts: Attempts,
    /// The unfinished attempts.
    pub(super) pending: Vec<Target>,
    /// Those that are open already.
    pub(super) opened: Vec<(Target, TcpStream)>,
    /// The number of the first late path.
    pub(super) first_path: usize,
    /// The variant that the main connection agreed on.
    pub(super) chosen: u8,
}

/// Records in the memory how late witnesses are.
#[derive(Clone)]
pub(super) struct LatenessRecorder {
    pub(super) negotiation: Arc<Negotiation>,
    pub(super) memory: Arc<WitnessMemory>,
    /// The longest round trip of a path that is about as fast as the main connection's.
    pub(super) max_rtt: Duration,
}

impl LateWitnesses {
    /// Adds them to a session in the background.
    pub(super) fn add_to(self, session: &Arc<RunningSession>) {
        if !self.pending.is_empty() || !self.opened.is_empty() {
            tokio::spawn(self.add_all(Arc::downgrade(session)));
        }
    }

    /// Goes on after the session has ended, to learn which paths connect.
    async fn add_all(mut self, session: Weak<RunningSession>) {
        let begun = Instant::now();
        let mut paths = (self.first_path..).map_while(|number| PathId::new(u8::try_from(number).ok()?).ok());
        let mut add = |target: Target, stream: TcpStream| {
            // If the session ends first, it is not the responder's fault.
            let _ = close_on_drop(&stream);
            let in_time = begun.elapsed() <= self.recorder.max_rtt;
            match (session.upgrade(), paths.next()) {
                (Some(running), Some(path)) => {
                    let adding =
                        self.recorder.clone().add(Weak::clone(&session), path, target, stream, in_time);
                    let end = running.end();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = adding => {}
                            () = end => {}
                        }
                    });
                }
                _ => self.recorder.connected(&target, in_time),
            }
        };
        for (target, stream) in self.opened {
            add(target, stream);
        }
        while let Ok(Some(Ok((target, connected)))) =
            tokio::time::timeout_at(begun + CONNECT_TIMEOUT, self.attempts.join_next()).await
        {
            // That of the main connection, as it turned out, is not wanted.
            if !self.pending.contains(&target) {
                continue;
            }
            self.pending.retain(|pending| *pending != target);
            match check(&self.recorder.negotiation, connected, self.chosen).await {
                Ok(stream) => add(target, stream),
                Err(reason) => self.recorder.failed(&target, &reason),
            }
        }
        let slow = format!("no answer within {} s", CONNECT_TIMEOUT.as_secs());
        self.pending.iter().for_each(|target| self.recorder.failed(target, &slow));
    }
}

impl LatenessRecorder {
    /// Adds one to the session. `in_time`: it connected as fast as a prompt one.
    async fn add(
        self,
        session: Weak<RunningSession>,
        path: PathId,
        target: Target,
        stream: TcpStream,
        in_time: bool,
    ) {
        let Target { interface, .. } = &target;
        let begun = Instant::now();
        match add_late_witness(&session, path, &stream).await {
            Ok(level) => {
                debug!("a late witness through {interface} raised a connection to {level} paths");
                self.negotiation.warn_once.witness(interface, target.peer());
                // Two round trips.
                self.connected(&target, in_time && begun.elapsed() <= 2 * self.max_rtt);
            }
            Err(SealedError::SessionEnded) => {}
            Err(error) => {
                self.memory.lost(interface, target.peer(), Instant::now().into_std());
                self.negotiation.warn_once.no_witness(interface, target.peer(), &error.to_string());
            }
        }
    }

    /// One connected, and if its session had not ended, confirmed it.
    fn connected(&self, target: &Target, in_time: bool) {
        if in_time {
            self.memory.prompt(&target.interface, target.peer());
        } else {
            self.memory.slow(&target.interface, target.peer(), Instant::now().into_std());
        }
    }

    fn failed(&self, target: &Target, reason: &str) {
        self.memory.failed(&target.interface, target.peer(), Instant::now().into_std());
        self.negotiation.warn_once.no_witness(&target.interface, target.peer(), reason);
    }
}
