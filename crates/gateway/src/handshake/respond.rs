//! The responder's handshake of mode `sealed`: main connections and witnesses meet in a table, in any order of arrival.

use std::error::Error;
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use plait_proto::identity::PublicKey;
use plait_proto::sealed::{
    CompleteSession, Confirm, FirstMessage, HandshakeError, Hello, Identity, Level, Limits, MessageError,
    MessageReader, Params, PathId, Rendezvous, Responder, ResponderConfig, Session, SessionId, Witness,
};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::late_witness::answer_late_witness;
use super::message_io::{HANDSHAKE_TIMEOUT, SealedError, close_all, recv, recv_all, send_all, with_timeout};
use super::running_sessions::{Registration, RunningSessions, WitnessOwner};
use super::side_connection::answer_side;
use crate::report::Handshakes;
use crate::running_session::RunningSession;
use crate::socket::{close_on_drop, send_last, write_all};

/// Receives the witnesses of a session, for its main connection.
type Main = oneshot::Sender<Vec<(Witness, PendingWitness)>>;

/// An accepted witness, until its session is complete.
struct PendingWitness {
    stream: TcpStream,
    /// It counts as accepted meanwhile.
    place: Option<OwnedSemaphorePermit>,
}

/// The half-open sessions of a gateway, and those that late witnesses can be added to.
pub(crate) struct PendingHandshakes {
    half_open: Mutex<Rendezvous<Main, PendingWitness>>,
    running: RunningSessions,
}

/// What an accepted connection was.
pub(crate) enum Accepted<'a, P> {
    /// The main connection of a session, and the index of the service that it asks for.
    Main(Box<Session<P>>, usize, Registration<'a>),
    /// A witness, to be [added](PendingHandshakes::add_witness) to its session.
    Witness(Witness),
    /// A late witness, by which its session has reached this level.
    LateWitness(Level),
    /// A side connection of this session.
    Side(Weak<RunningSession>, PathId),
    /// A connection that its peer closed without a message, or a witness of a session that has ended.
    Unused,
}

impl PendingHandshakes {
    pub(crate) fn new() -> PendingHandshakes {
        let limits = Limits { timeout: HANDSHAKE_TIMEOUT, ..Limits::default() };
        let half_open = Mutex::new(Rendezvous::new(limits));
        PendingHandshakes { half_open, running: RunningSessions::default() }
    }

    fn sessions(&self) -> MutexGuard<'_, Rendezvous<Main, PendingWitness>> {
        self.half_open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn report(&self) -> Handshakes {
        let (waiting, stats) = {
            let sessions = self.sessions();
            (sessions.waiting() as u64, sessions.stats())
        };
        Handshakes {
            waiting,
            complete: stats.completed,
            dropped: stats.dropped(),
            displaced: stats.displaced,
            refused: stats.refused(),
        }
    }

    /// Resets witnesses whose main connection did not arrive in time.
    pub(crate) fn expire(&self) {
        let now = Instant::now();
        self.sessions().expire(now);
        self.running.expire(now);
    }

    /// Runs the handshake of an accepted connection. `verify_peer` accepts or rejects the key of an initiator that
    /// authenticates, for the service with this index. `has_joins` tells whether a connection has had further subflows: an attacker who listens on its path
    /// could have joined from anywhere, and so send where he can only listen.
    pub(crate) async fn respond<P, E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        params: &Params,
        config: ResponderConfig<'_>,
        verify_peer: impl FnOnce(usize, &PublicKey) -> Result<P, E>,
        far: &TcpStream,
        has_joins: impl Fn(&TcpStream) -> bool,
    ) -> Result<Accepted<'_, P>, SealedError> {
        with_timeout(HANDSHAKE_TIMEOUT, async {
            match recv(far).await {
                Ok(FirstMessage::Witness(witness)) => match self.running.owner(&witness) {
                    WitnessOwner::Handshake => Ok(Accepted::Witness(witness)),
                    WitnessOwner::Session(session) => {
                        match answer_late_witness(session, witness, far, has_joins).await {
                            // The initiator gave it up, as when its connection has ended.
                            Err(
                                SealedError::SessionEnded
                                | SealedError::Network(_)
                                | SealedError::Message(MessageError::Ended { .. }),
                            ) => Ok(Accepted::Unused),
                            answered => Ok(Accepted::LateWitness(answered?)),
                        }
                    }
                    WitnessOwner::EndedSession => Ok(Accepted::Unused),
                },
                Ok(FirstMessage::Side(side)) => {
                    let path = side.path();
                    let Some(session) = self.running.session(side.session()) else {
                        close_on_drop(far)?;
                        return Ok(Accepted::Unused);
                    };
                    let session = answer_side(session, side, far).await?;
                    Ok(session.map_or(Accepted::Unused, |session| Accepted::Side(session, path)))
                }
                Ok(FirstMessage::Hello(hello)) => {
                    let replied = self.reply(params, config, verify_peer, far, &hello, has_joins).await;
                    let (session, requested, registration) = replied?;
                    Ok(Accepted::Main(Box::new(session), requested, registration))
                }
                Err(SealedError::Message(MessageError::Ended { got: 0, .. })) => Ok(Accepted::Unused),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Adds a witness to its session, whose main connection's task owns it from then on.
    pub(crate) fn add_witness(
        &self,
        witness: Witness,
        stream: TcpStream,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<(), SealedError> {
        // Its initiator has given it up.
        let Ok(peer) = stream.peer_addr() else { return Ok(()) };
        let peer = peer.ip().to_canonical();
        let pending = PendingWitness { stream, place };
        let complete = self.sessions().add_witness(Instant::now(), peer, witness, pending)?;
        hand_over(complete);
        Ok(())
    }

    async fn reply<P, E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        params: &Params,
        config: ResponderConfig<'_>,
        verify_peer: impl FnOnce(usize, &PublicKey) -> Result<P, E>,
        far: &TcpStream,
        hello: &Hello,
        has_joins: impl Fn(&TcpStream) -> bool,
    ) -> Result<(Session<P>, usize, Registration<'_>), SealedError> {
        let responder = Responder::accept(params, hello, config)?;
        let requested = responder.requested_service();
        let peer = far.peer_addr()?.ip().to_canonical();
        let (sender, complete) = oneshot::channel();
        let session = responder.session();
        let all = self.sessions().add_hello(Instant::now(), peer, session, responder.witnesses(), sender)?;
        let _abandon = AbandonOnDrop { pending: self, session };
        let registration = self.running.register(session, responder.witnesses())?;
        hand_over(all);
        // An error means that the table has dropped the session, and before its time was up.
        let arrived = tokio::select! {
            arrived = complete => arrived.map_err(|_| SealedError::Displaced)?,
            error = ended(far) => return Err(error),
        };
        let (mut messages, mut streams, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (witness, PendingWitness { stream, place }) in arrived {
            streams.push((witness.path(), stream));
            messages.push(witness);
            places.push(place);
        }
        let (awaiting, answer) = responder.reply(messages)?;
        // Once it has the answer, the initiator may open further subflows.
        if has_joins(far) {
            return Err(SealedError::EarlySubflow);
        }
        write_all(far, &answer.reply).await?;
        send_all(&streams, answer.shares).await?;
        let identity: Option<Identity> =
            if awaiting.expects_identity() { Some(recv(far).await?) } else { None };
        let confirms: Vec<(PathId, Confirm)> = recv_all(&streams).await?;
        let verified = awaiting.verify(identity.as_ref(), confirms, |key| verify_peer(requested, key));
        if let Err(HandshakeError::PeerRejected { notice, .. }) = &verified {
            send_last(far, notice).await?;
        }
        let session = verified?;
        if streams.iter().any(|(_, stream)| has_joins(stream)) {
            return Err(SealedError::EarlySubflow);
        }
        close_all(&streams)?;
        drop((streams, places));
        Ok((session, requested, registration))
    }
}

/// Waits until the initiator gives a connection up whose witnesses are missing.
async fn ended(far: &TcpStream) -> SealedError {
    match far.peek(&mut [0]).await {
        Ok(0) => MessageReader::<Hello>::new().end_of_stream().into(),
        // What it sends too early is read in its place.
        Ok(_) => pending().await,
        Err(error) => error.into(),
    }
}

/// Removes a session from the table when its main connection stops waiting, for whatever reason.
struct AbandonOnDrop<'a> {
    pending: &'a PendingHandshakes,
    session: SessionId,
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        self.pending.sessions().abandon(&self.session);
    }
}

fn hand_over(complete: Option<CompleteSession<Main, PendingWitness>>) {
    if let Some(CompleteSession { main, witnesses }) = complete {
        // If the main connection has ended meanwhile, its witnesses are reset here.
        let _ = main.send(witnesses);
    }
}
