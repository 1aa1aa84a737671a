//! The handshake of mode `sealed` ([`plait_proto::sealed`]) over the sockets of a connection and its witnesses.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plait_proto::identity::{KeyPair, PublicKey};
use plait_proto::sealed::{
    Closing, CompleteSession, Confirm, FirstMessage, HandshakeError, Hello, Identity, Initiator, Limits,
    MAX_PATHS, Message, MessageError, MessageReader, Params, PathId, Paths, PathsError, Rendezvous,
    RendezvousError, Reply, RequiredPaths, Responder, ResponderConfig, SessionId, Share, Witness,
    WitnessMessages,
};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::control::Handshakes;
use crate::relay::{close_on_drop, write_all};
use crate::trust::{Recognised, Stranger};
use crate::witness::Witnesses;

/// A completed handshake, and how the peer was recognised, if anything is expected of it.
pub(crate) type Session = plait_proto::sealed::Session<Option<Recognised>>;

/// How long a peer may take to tell all that a mode needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The handshake did not come to its end: every connection of the session is reset.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Paths(#[from] PathsError),
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error("the network's side: {0}")]
    Network(#[from] io::Error),
    #[error("the handshake took more than {} s: a witness or the peer's answer did not come", PATIENCE.as_secs())]
    Slow,
    #[error("a further subflow was opened before the handshake had come to its end")]
    Joined,
    #[error("the peer was asked who it is, and did not answer: has it an identity (`plait identity`)? ({0})")]
    Unanswered(Box<SealError>),
}

impl SealError {
    /// Whether it failed for who the ends are.
    pub(crate) fn is_about_identity(&self) -> bool {
        matches!(self, SealError::Handshake(error) if error.is_about_identity())
    }
}

/// Where the main connections and the witnesses that come in find each other.
pub(crate) struct Reception(Mutex<Rendezvous<Main, TcpStream>>);

/// Tells a main connection of its witnesses.
type Main = oneshot::Sender<Vec<(Witness, TcpStream)>>;

/// What an accepted connection was.
pub(crate) enum Accepted {
    /// The main connection of a session.
    Main(TcpStream, Session),
    /// One that witnesses another; it is looked after by that.
    Witness,
}

/// Opens a session on a connection and those that witness it. With a key pair of its `own` it asks the peer for one, too,
/// and lets that be judged.
pub(crate) async fn initiate(
    params: &Params,
    required: RequiredPaths,
    own: Option<&KeyPair>,
    judge: impl FnOnce(&PublicKey) -> Result<Option<Recognised>, Stranger>,
    far: &TcpStream,
    witnesses: Witnesses,
) -> Result<Session, SealError> {
    in_time(async {
        let ids: Vec<PathId> =
            (1..).map_while(|id| PathId::new(id).ok()).take(witnesses.streams.len()).collect();
        let streams: Vec<(PathId, TcpStream)> = ids.iter().copied().zip(witnesses.streams).collect();
        let configured = u8::try_from(witnesses.configured).unwrap_or(MAX_PATHS).min(MAX_PATHS);
        let paths = Paths::new(configured, ids.into_iter().collect())?;
        let (initiator, opening) = Initiator::start(params, paths, required, own.map(KeyPair::private))?;
        write_all(far, &opening.hello).await?;
        tell(&streams, opening.witnesses).await?;
        let reply: Reply = hear(far).await.map_err(|error| match own {
            Some(_) => SealError::Unanswered(Box::new(error)),
            None => error,
        })?;
        let shares: Vec<(PathId, Share)> = hear_each(&streams).await?;
        let (established, Closing { identity, confirms }) = initiator.finish(&reply, shares, judge)?;
        tell(&streams, confirms).await?;
        if let Some(identity) = identity {
            write_all(far, &identity).await?;
        }
        close(&streams)?;
        Ok(established)
    })
    .await
}

impl Reception {
    pub(crate) fn new() -> Reception {
        Reception(Mutex::new(Rendezvous::new(Limits { timeout: PATIENCE, ..Limits::default() })))
    }

    fn desk(&self) -> MutexGuard<'_, Rendezvous<Main, TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits here, and what became of what did.
    pub(crate) fn report(&self) -> Handshakes {
        let (waiting, counts) = {
            let desk = self.desk();
            (desk.waiting() as u64, desk.stats())
        };
        let (dropped, refused) = (counts.dropped(), counts.refused());
        Handshakes { waiting, complete: counts.completed, dropped, refused }
    }

    /// Resets witnesses whose main connection never came.
    pub(crate) fn expire(&self) {
        self.desk().expire(Instant::now());
    }

    /// Answers what an accepted connection begins with. `judge` is asked about initiators that say who they are; `joined`
    /// says whether a connection has had further subflows: who listens on its path could have made one from anywhere, and
    /// so speak where he can only listen.
    pub(crate) async fn respond(
        &self,
        params: &Params,
        config: ResponderConfig<'_>,
        judge: impl FnOnce(&PublicKey) -> Result<Option<Recognised>, Stranger>,
        far: TcpStream,
        joined: impl Fn(&TcpStream) -> bool,
    ) -> Result<Accepted, SealError> {
        in_time(async {
            let peer = far.peer_addr()?.ip().to_canonical();
            match hear(&far).await? {
                FirstMessage::Witness(witness) => {
                    let complete = self.desk().add_witness(Instant::now(), peer, witness, far)?;
                    hand_over(complete);
                    Ok(Accepted::Witness)
                }
                FirstMessage::Hello(hello) => {
                    let established = self.answer(params, config, judge, &far, &hello, joined).await?;
                    Ok(Accepted::Main(far, established))
                }
            }
        })
        .await
    }

    async fn answer(
        &self,
        params: &Params,
        config: ResponderConfig<'_>,
        judge: impl FnOnce(&PublicKey) -> Result<Option<Recognised>, Stranger>,
        far: &TcpStream,
        hello: &Hello,
        joined: impl Fn(&TcpStream) -> bool,
    ) -> Result<Session, SealError> {
        let responder = Responder::accept(params, hello, config)?;
        let peer = far.peer_addr()?.ip().to_canonical();
        let (sender, gathered) = oneshot::channel();
        let session = responder.session();
        let complete = self.desk().add_hello(Instant::now(), peer, session, responder.witnesses(), sender)?;
        let _waiting = Waiting { reception: self, session };
        hand_over(complete);
        // The desk gave the session up.
        let arrived = gathered.await.map_err(|_| SealError::Slow)?;
        let with_path = arrived.into_iter().map(|(witness, stream)| {
            let path = witness.path();
            (witness, (path, stream))
        });
        let (messages, streams): (Vec<Witness>, Vec<(PathId, TcpStream)>) = with_path.unzip();
        let (awaiting, answer) = responder.reply(messages)?;
        // Once it has the answer, the initiator may make others.
        if joined(far) {
            return Err(SealError::Joined);
        }
        write_all(far, &answer.reply).await?;
        tell(&streams, answer.shares).await?;
        let identity: Option<Identity> =
            if awaiting.expects_identity() { Some(hear(far).await?) } else { None };
        let confirms: Vec<(PathId, Confirm)> = hear_each(&streams).await?;
        let established = awaiting.verify(identity.as_ref(), confirms, judge)?;
        if streams.iter().any(|(_, stream)| joined(stream)) {
            return Err(SealError::Joined);
        }
        close(&streams)?;
        Ok(established)
    }
}

/// Leaves the desk when the main connection no longer waits, however that comes.
struct Waiting<'a> {
    reception: &'a Reception,
    session: SessionId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.reception.desk().abandon(&self.session);
    }
}

fn hand_over(complete: Option<CompleteSession<Main, TcpStream>>) {
    if let Some(CompleteSession { main, witnesses }) = complete {
        // If it has gone meanwhile, its witnesses are reset with this.
        let _ = main.send(witnesses);
    }
}

async fn in_time<T>(handshake: impl Future<Output = Result<T, SealError>>) -> Result<T, SealError> {
    tokio::time::timeout(PATIENCE, handshake).await.unwrap_or(Err(SealError::Slow))
}

/// Sends each message by the connection of its path.
async fn tell(streams: &[(PathId, TcpStream)], messages: WitnessMessages) -> io::Result<()> {
    for (path, message) in messages {
        if let Some((_, stream)) = streams.iter().find(|(other, _)| *other == path) {
            write_all(stream, &message).await?;
        }
    }
    Ok(())
}

/// One message of each connection.
async fn hear_each<M: Message>(streams: &[(PathId, TcpStream)]) -> Result<Vec<(PathId, M)>, SealError> {
    let mut heard = Vec::new();
    for (path, stream) in streams {
        heard.push((*path, hear(stream).await?));
    }
    Ok(heard)
}

/// The next message, and no byte of what follows it.
async fn hear<M: Message>(from: &TcpStream) -> Result<M, SealError> {
    let mut reader = MessageReader::new();
    loop {
        from.readable().await?;
        match from.try_read(reader.buffer()) {
            Ok(0) => return Err(reader.end_of_stream().into()),
            Ok(length) => {
                if let Some(message) = reader.advance(length)? {
                    return Ok(message);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Witnesses that have said everything end in good order.
fn close(streams: &[(PathId, TcpStream)]) -> io::Result<()> {
    streams.iter().try_for_each(|(_, stream)| close_on_drop(stream))
}

#[cfg(test)]
mod tests {
    use plait_linux::mptcp::Key;
    use plait_proto::Secret;
    use plait_proto::codec::records::{AeadCipher, OVERHEAD, Opened, Opener, Sealer};
    use tokio::net::TcpListener;

    use super::*;
    use crate::relay::reset_on_drop;

    fn params() -> Params {
        Params {
            offered: 0x30,
            chosen: 0x20,
            cipher: AeadCipher::Aes256Gcm,
            initiator: Key::new([1; 8]),
            responder: Key::new([2; 8]),
        }
    }

    /// Two ends of a connection, which reset when dropped.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback is there");
        let address = listener.local_addr().expect("it is bound");
        let (opened, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (opened, accepted) = (opened.expect("somebody listens"), accepted.expect("somebody connects").0);
        for stream in [&opened, &accepted] {
            reset_on_drop(stream).expect("it is a socket");
        }
        (opened, accepted)
    }

    /// A main connection and so many witnesses: at the initiator, and at the responder, main first.
    async fn session(witnesses: usize) -> (TcpStream, Vec<TcpStream>, Vec<TcpStream>) {
        let (main, accepted) = pair().await;
        let (mut opened, mut all) = (Vec::new(), vec![accepted]);
        for _ in 0..witnesses {
            let (one, other) = pair().await;
            opened.push(one);
            all.push(other);
        }
        (main, opened, all)
    }

    /// An end to which every other is as good.
    fn anybody(_: &PublicKey) -> Result<Option<Recognised>, Stranger> {
        Ok(None)
    }

    fn config(paths: RequiredPaths) -> ResponderConfig<'static> {
        ResponderConfig { paths, static_key: None, require_identity: false }
    }

    /// What the responder makes of connections that are accepted in this order.
    async fn respond_to(
        reception: &'static Reception,
        accepted: Vec<TcpStream>,
        paths: RequiredPaths,
    ) -> Result<(TcpStream, Session), SealError> {
        respond_by(reception, accepted, config(paths), anybody).await
    }

    async fn respond_by(
        reception: &'static Reception,
        accepted: Vec<TcpStream>,
        config: ResponderConfig<'static>,
        judge: fn(&PublicKey) -> Result<Option<Recognised>, Stranger>,
    ) -> Result<(TcpStream, Session), SealError> {
        let mut answers = tokio::task::JoinSet::new();
        for stream in accepted {
            answers
                .spawn(async move { reception.respond(&params(), config, judge, stream, |_| false).await });
        }
        let mut main = None;
        while let Some(answer) = answers.join_next().await {
            if let Accepted::Main(stream, established) = answer.expect("it does not panic")? {
                main = Some((stream, established));
            }
        }
        main.ok_or(SealError::Slow)
    }

    fn reception() -> &'static Reception {
        Box::leak(Box::new(Reception::new()))
    }

    #[tokio::test]
    async fn both_ends_have_each_others_keys_whatever_is_accepted_first() {
        for witnesses in 0..3 {
            for turn in 0..=witnesses {
                let (main, streams, mut accepted) = session(witnesses).await;
                accepted.rotate_left(turn);
                let (params, all) = (params(), Witnesses { configured: witnesses + 1, streams });
                let (one, other) = tokio::join!(
                    initiate(&params, RequiredPaths::All, None, anybody, &main, all),
                    respond_to(reception(), accepted, RequiredPaths::All)
                );
                let (one, (_, other)) = (one.expect("it is sealed"), other.expect("it is sealed"));
                assert_eq!(one.level.to_string(), format!("{0}/{0}", witnesses + 1));
                assert_eq!(other.level, one.level);
                for (from, to) in [(&one, &other), (&other, &one)] {
                    let mut record = vec![7; 5 + OVERHEAD];
                    Sealer::new(from.cipher, from.send_key.as_bytes()).seal(&mut record);
                    let opened = Opener::new(to.cipher, to.recv_key.as_bytes()).open(&mut record);
                    assert!(matches!(opened, Ok(Opened::Data { plaintext, .. }) if plaintext.len() == 5));
                }
            }
        }
    }

    fn pair_of(byte: u8) -> &'static KeyPair {
        Box::leak(Box::new(KeyPair::from_private(Secret::copy_of(&[byte; 32]))))
    }

    #[tokio::test]
    async fn ends_that_say_who_they_are_know_each_other_and_what_follows_is_left() {
        for witnesses in 0..3 {
            let (main, streams, accepted) = session(witnesses).await;
            let (params, all) = (params(), Witnesses { configured: witnesses + 1, streams });
            let own = pair_of(1);
            let knows_other = |key: &PublicKey| {
                assert_eq!(*key, pair_of(2).public());
                Ok(Some(Recognised::FirstUse))
            };
            let knows_one = |key: &PublicKey| {
                assert_eq!(*key, pair_of(1).public());
                Ok(Some(Recognised::Pinned))
            };
            let config = ResponderConfig {
                paths: RequiredPaths::All,
                static_key: Some(pair_of(2).private()),
                require_identity: true,
            };
            let (one, other) = tokio::join!(
                async {
                    let done =
                        initiate(&params, RequiredPaths::All, Some(own), knows_other, &main, all).await;
                    write_all(&main, b"a record").await.expect("it can be written");
                    done
                },
                respond_by(reception(), accepted, config, knows_one)
            );
            let (one, (far, other)) = (one.expect("it is sealed"), other.expect("it is sealed"));
            assert_eq!(
                (one.peer.flatten(), other.peer.flatten()),
                (Some(Recognised::FirstUse), Some(Recognised::Pinned))
            );
            assert_eq!(one.send_key.as_bytes(), other.recv_key.as_bytes());
            let mut record = [0; 20];
            let length = loop {
                far.readable().await.expect("there is more");
                match far.try_read(&mut record) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => break read.expect("it can be read"),
                }
            };
            assert_eq!(&record[..length], b"a record");
        }
    }

    #[tokio::test]
    async fn a_peer_that_is_somebody_else_hears_nothing_more() {
        let (main, streams, accepted) = session(1).await;
        let (params, witnesses) = (params(), Witnesses { configured: 2, streams });
        let config = ResponderConfig { static_key: Some(pair_of(2).private()), ..config(RequiredPaths::All) };
        let (one, other) = tokio::join!(
            async {
                let stranger = |key: &PublicKey| Err(Stranger::Client(*key));
                let done =
                    initiate(&params, RequiredPaths::All, Some(pair_of(1)), stranger, &main, witnesses).await;
                drop(main);
                done
            },
            respond_by(reception(), accepted, config, anybody)
        );
        assert!(one.err().expect("refused").is_about_identity());
        assert!(other.is_err());
    }

    #[tokio::test]
    async fn a_peer_that_does_not_say_who_it_is_is_named_as_the_cause() {
        let (main, streams, accepted) = session(0).await;
        let (params, witnesses) = (params(), Witnesses { configured: 1, streams });
        let (one, other) = tokio::join!(
            initiate(&params, RequiredPaths::All, Some(pair_of(1)), anybody, &main, witnesses),
            respond_to(reception(), accepted, RequiredPaths::All)
        );
        assert!(matches!(one, Err(SealError::Unanswered(_))));
        assert!(matches!(other, Err(SealError::Handshake(HandshakeError::NoIdentity))));
    }

    #[tokio::test]
    async fn fewer_witnesses_than_paths_are_refused_before_anything_is_said() {
        let (main, streams, accepted) = session(1).await;
        let witnesses = Witnesses { configured: 3, streams };
        let done = initiate(&params(), RequiredPaths::All, None, anybody, &main, witnesses).await;
        assert!(matches!(done, Err(SealError::Handshake(HandshakeError::Level(_)))));
        drop(main);
        // The peer sees a reset, and not one byte.
        assert!(respond_to(reception(), accepted, RequiredPaths::Any).await.is_err());
    }

    #[tokio::test]
    async fn of_more_paths_than_a_session_has_it_counts_as_many_as_it_has() {
        let (main, streams, accepted) = session(15).await;
        let (params, witnesses) = (params(), Witnesses { configured: 300, streams });
        let (one, other) = tokio::join!(
            initiate(&params, RequiredPaths::All, None, anybody, &main, witnesses),
            respond_to(reception(), accepted, RequiredPaths::All)
        );
        assert_eq!(one.expect("it is sealed").level.to_string(), "16/16");
        assert_eq!(other.expect("it is sealed").1.level.to_string(), "16/16");
    }

    #[tokio::test]
    async fn ends_that_saw_different_offers_do_not_meet() {
        let (main, streams, accepted) = session(1).await;
        let stripped = Params { offered: 0x20, ..params() };
        let witnesses = Witnesses { configured: 2, streams };
        let (one, other) = tokio::join!(
            async {
                let done = initiate(&stripped, RequiredPaths::Any, None, anybody, &main, witnesses).await;
                drop(main);
                done
            },
            respond_to(reception(), accepted, RequiredPaths::Any)
        );
        assert!(one.is_err() && other.is_err());
    }

    #[tokio::test]
    async fn a_connection_that_others_joined_is_not_sealed() {
        let (main, _, mut accepted) = session(0).await;
        let witnesses = Witnesses { configured: 1, streams: Vec::new() };
        let accepted = accepted.remove(0);
        let (params, reception) = (params(), reception());
        let (_, other) = tokio::join!(
            initiate(&params, RequiredPaths::Any, None, anybody, &main, witnesses),
            reception.respond(&params, config(RequiredPaths::Any), anybody, accepted, |_| true)
        );
        assert!(matches!(other, Err(SealError::Joined)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_stalls_is_given_up() {
        let (main, _, mut accepted) = session(0).await;
        let accepted = accepted.remove(0);
        let config = config(RequiredPaths::Any);
        let silent = reception().respond(&params(), config, anybody, accepted, |_| false).await;
        assert!(matches!(silent, Err(SealError::Slow)));
        drop(main);
        let (main, _accepted) = pair().await;
        let witnesses = Witnesses { configured: 1, streams: Vec::new() };
        let unanswered = initiate(&params(), RequiredPaths::Any, None, anybody, &main, witnesses).await;
        assert!(matches!(unanswered, Err(SealError::Slow)));
    }
}
