//! Both ends of the `sealed` handshake over loopback connections.

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use plait_linux::mptcp::Key;
use plait_proto::Secret;
use plait_proto::codec::records::{AeadCipher, OVERHEAD, Opened, Opener, Sealer};
use plait_proto::identity::{KeyPair, PublicKey};
use plait_proto::sealed::{
    HandshakeError, InitiatorConfig, Params, PathId, RequiredPaths, ResponderConfig, Service, Services,
};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::relay::Updates;
use crate::running_session::RunningSession;
use crate::socket::{close_on_drop, reset_on_drop, write_all};
use crate::trust::{KeyMatch, PeerAuthError};

type Session = plait_proto::sealed::Session<Option<KeyMatch>>;

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
pub(crate) async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback can be listened on");
    let address = listener.local_addr().expect("it is bound");
    let (opened, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (opened, accepted) =
        (opened.expect("the listener accepts"), accepted.expect("a connection arrives").0);
    for stream in [&opened, &accepted] {
        reset_on_drop(stream).expect("it is a socket");
    }
    (opened, accepted)
}

/// A main connection and witnesses: at the initiator, and at the responder, the main one first.
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

/// Accepts every peer.
fn accept_any(_: &PublicKey) -> Result<Option<KeyMatch>, PeerAuthError> {
    Ok(None)
}

static SERVICE: LazyLock<Service> = LazyLock::new(|| Service::new("server.example", 443));
static SERVICES: LazyLock<Services> = LazyLock::new(|| Services::on_port(443));

fn asks(paths: RequiredPaths, key_pair: Option<&'static KeyPair>) -> InitiatorConfig<'static> {
    let static_key = key_pair.map(KeyPair::private);
    InitiatorConfig { paths, static_key, hybrid: true, service: &SERVICE }
}

fn config(paths: RequiredPaths) -> ResponderConfig<'static> {
    ResponderConfig { paths, static_key: None, require_identity: false, services: &SERVICES }
}

/// Runs the responder on connections accepted in this order.
async fn respond_to(
    pending: &'static PendingHandshakes,
    accepted: Vec<TcpStream>,
    paths: RequiredPaths,
) -> Result<(TcpStream, Session), SealedError> {
    respond_by(pending, accepted, config(paths), accept_any).await
}

async fn respond_by(
    pending: &'static PendingHandshakes,
    accepted: Vec<TcpStream>,
    config: ResponderConfig<'static>,
    verify_peer: fn(&PublicKey) -> Result<Option<KeyMatch>, PeerAuthError>,
) -> Result<(TcpStream, Session), SealedError> {
    let mut answers = tokio::task::JoinSet::new();
    for stream in accepted {
        answers.spawn(async move {
            let answer = pending
                .respond(&params(), config, |_, key: &PublicKey| verify_peer(key), &stream, |_| false)
                .await?;
            Ok::<_, SealedError>((answer, stream))
        });
    }
    let mut main = None;
    while let Some(answer) = answers.join_next().await {
        match answer.expect("it does not panic")? {
            (Accepted::Main(established, ..), stream) => main = Some((stream, *established)),
            (Accepted::Witness(witness), stream) => pending.add_witness(witness, stream, None)?,
            (Accepted::LateWitness(_) | Accepted::Side(..) | Accepted::Unused, _) => {}
        }
    }
    main.ok_or(SealedError::Timeout)
}

fn pending() -> &'static PendingHandshakes {
    Box::leak(Box::new(PendingHandshakes::new()))
}

#[tokio::test]
async fn both_ends_derive_the_same_keys_in_any_order_of_arrival() {
    for witnesses in 0..3 {
        for turn in 0..=witnesses {
            let (main, streams, mut accepted) = session(witnesses).await;
            accepted.rotate_left(turn);
            let (params, all) = (params(), Witnesses { configured: witnesses + 1, streams });
            let required = RequiredPaths::AtLeast(witnesses as u8 + 1);
            let (one, other) = tokio::join!(
                initiate(&params, asks(required, None), accept_any, &main, all, HANDSHAKE_TIMEOUT),
                respond_to(pending(), accepted, required)
            );
            let (one, (_, other)) =
                (one.expect("the handshake completes"), other.expect("the handshake completes"));
            assert_eq!(one.witnesses.level().to_string(), format!("{0}/{0}", witnesses + 1));
            assert_eq!(other.witnesses.level(), one.witnesses.level());
            for (from, to) in [(&one, &other), (&other, &one)] {
                let mut record = vec![7; 5 + OVERHEAD];
                Sealer::new(from.cipher, from.send_key.as_bytes()).seal(&mut record, 5);
                let opened = Opener::new(to.cipher, to.recv_key.as_bytes()).open(&mut record);
                assert!(matches!(opened, Ok(Opened::Data { content, .. }) if content.len() == 5));
            }
        }
    }
}

fn pair_of(byte: u8) -> &'static KeyPair {
    Box::leak(Box::new(KeyPair::from_private(Secret::copy_of(&[byte; 32]))))
}

#[tokio::test]
async fn authenticated_ends_know_each_other_and_leave_following_bytes_unread() {
    for witnesses in 0..3 {
        let (main, streams, accepted) = session(witnesses).await;
        let (params, all) = (params(), Witnesses { configured: witnesses + 1, streams });
        let own = pair_of(1);
        let knows_other = |key: &PublicKey| -> Result<_, PeerAuthError> {
            assert_eq!(*key, pair_of(2).public());
            Ok(Some(KeyMatch::FirstUse))
        };
        let knows_one = |key: &PublicKey| -> Result<_, PeerAuthError> {
            assert_eq!(*key, pair_of(1).public());
            Ok(Some(KeyMatch::Pinned))
        };
        let config = ResponderConfig {
            static_key: Some(pair_of(2).private()),
            require_identity: true,
            ..config(RequiredPaths::Any)
        };
        let (one, other) = tokio::join!(
            async {
                let done = initiate(
                    &params,
                    asks(RequiredPaths::Any, Some(own)),
                    knows_other,
                    &main,
                    all,
                    HANDSHAKE_TIMEOUT,
                )
                .await;
                write_all(&main, b"a record").await.expect("it can be written");
                done
            },
            respond_by(pending(), accepted, config, knows_one)
        );
        let (one, (far, other)) =
            (one.expect("the handshake completes"), other.expect("the handshake completes"));
        assert_eq!((one.peer, other.peer), (Some(Some(KeyMatch::FirstUse)), Some(Some(KeyMatch::Pinned))));
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
async fn rejected_peer_receives_nothing_more() {
    let (main, streams, accepted) = session(1).await;
    let (params, witnesses) = (params(), Witnesses { configured: 2, streams });
    let config = ResponderConfig { static_key: Some(pair_of(2).private()), ..config(RequiredPaths::All) };
    let (one, other) = tokio::join!(
        async {
            let reject = |key: &PublicKey| Err::<Option<KeyMatch>, _>(PeerAuthError::Client(*key));
            let done = initiate(
                &params,
                asks(RequiredPaths::All, Some(pair_of(1))),
                reject,
                &main,
                witnesses,
                HANDSHAKE_TIMEOUT,
            )
            .await;
            drop(main);
            done
        },
        respond_by(pending(), accepted, config, accept_any)
    );
    assert!(one.err().expect("refused").is_about_identity());
    assert!(other.is_err());
}

#[tokio::test]
async fn peer_without_identity_is_reported_as_not_authenticated() {
    let (main, streams, accepted) = session(0).await;
    let (params, witnesses) = (params(), Witnesses { configured: 1, streams });
    let (one, other) = tokio::join!(
        initiate(
            &params,
            asks(RequiredPaths::Any, Some(pair_of(1))),
            accept_any,
            &main,
            witnesses,
            HANDSHAKE_TIMEOUT
        ),
        respond_to(pending(), accepted, RequiredPaths::Any)
    );
    assert!(matches!(one, Err(SealedError::NotAuthenticated(_))));
    assert!(matches!(other, Err(SealedError::Handshake(HandshakeError::NoIdentity))));
}

#[tokio::test]
async fn missing_witnesses_are_refused_before_anything_is_sent() {
    let (main, streams, accepted) = session(1).await;
    let witnesses = Witnesses { configured: 3, streams };
    let done =
        initiate(&params(), asks(RequiredPaths::All, None), accept_any, &main, witnesses, HANDSHAKE_TIMEOUT)
            .await;
    assert!(matches!(done, Err(SealedError::Handshake(HandshakeError::Level(_)))));
    drop(main);
    // The peer gets a reset, and no byte.
    assert!(respond_to(pending(), accepted, RequiredPaths::Any).await.is_err());
}

#[tokio::test]
async fn level_is_limited_to_the_paths_of_a_session() {
    let (main, streams, accepted) = session(15).await;
    let (params, witnesses) = (params(), Witnesses { configured: 300, streams });
    let (one, other) = tokio::join!(
        initiate(&params, asks(RequiredPaths::All, None), accept_any, &main, witnesses, HANDSHAKE_TIMEOUT),
        respond_to(pending(), accepted, RequiredPaths::All)
    );
    assert_eq!(one.expect("the handshake completes").witnesses.level().to_string(), "16/16");
    assert_eq!(other.expect("the handshake completes").1.witnesses.level().to_string(), "16/16");
}

#[tokio::test]
async fn modified_offer_fails_at_both_ends() {
    let (main, streams, accepted) = session(1).await;
    let stripped = Params { offered: 0x20, ..params() };
    let witnesses = Witnesses { configured: 2, streams };
    let (one, other) = tokio::join!(
        async {
            let done = initiate(
                &stripped,
                asks(RequiredPaths::Any, None),
                accept_any,
                &main,
                witnesses,
                HANDSHAKE_TIMEOUT,
            )
            .await;
            drop(main);
            done
        },
        respond_to(pending(), accepted, RequiredPaths::Any)
    );
    assert!(one.is_err() && other.is_err());
}

#[tokio::test]
async fn connection_with_an_early_subflow_is_refused() {
    let (main, _, mut accepted) = session(0).await;
    let witnesses = Witnesses { configured: 1, streams: Vec::new() };
    let accepted = accepted.remove(0);
    let (params, pending) = (params(), pending());
    let (_, other) = tokio::join!(
        initiate(&params, asks(RequiredPaths::Any, None), accept_any, &main, witnesses, HANDSHAKE_TIMEOUT),
        pending.respond(
            &params,
            config(RequiredPaths::Any),
            |_, key: &PublicKey| accept_any(key),
            &accepted,
            |_| true
        )
    );
    assert!(matches!(other, Err(SealedError::EarlySubflow)));
}

#[tokio::test(start_paused = true)]
async fn stalled_peer_times_out() {
    let (main, _, mut accepted) = session(0).await;
    let accepted = accepted.remove(0);
    let config = config(RequiredPaths::Any);
    let silent = pending()
        .respond(&params(), config, |_, key: &PublicKey| accept_any(key), &accepted, |_| false)
        .await;
    assert!(matches!(silent, Err(SealedError::Timeout)));
    drop(main);
    let (main, _accepted) = pair().await;
    let witnesses = Witnesses { configured: 1, streams: Vec::new() };
    let unanswered =
        initiate(&params(), asks(RequiredPaths::Any, None), accept_any, &main, witnesses, HANDSHAKE_TIMEOUT)
            .await;
    assert!(matches!(unanswered, Err(SealedError::Timeout)));
}

fn running(session: Session) -> Arc<RunningSession> {
    let updates = Updates::new(session.updates, Duration::from_secs(3600));
    Arc::new(RunningSession::new(session.witnesses, Arc::new(updates), None))
}

#[tokio::test]
async fn late_witness_raises_the_level_of_a_running_session() {
    let (pending, params, path) = (pending(), params(), PathId::new(1).expect("a path's number"));
    let respond = async |stream: TcpStream| {
        let config = config(RequiredPaths::Any);
        let accepted = pending
            .respond(&params, config, |_, key: &PublicKey| accept_any(key), &stream, |_: &TcpStream| false)
            .await?;
        // All others close.
        let main = matches!(accepted, Accepted::Main(..)).then_some(stream);
        Ok::<_, SealedError>((accepted, main))
    };
    let (main, accepted) = pair().await;
    let alone = Witnesses { configured: 2, streams: Vec::new() };
    let asked = asks(RequiredPaths::Any, None);
    let (one, other) = tokio::join!(
        initiate(&params, asked, accept_any, &main, alone, HANDSHAKE_TIMEOUT),
        respond(accepted)
    );
    let Ok((Accepted::Main(other, _, registration), _far)) = other else {
        panic!("expected a main connection")
    };
    let (one, other) = (running(one.expect("the handshake completes")), running(*other));
    assert_eq!(one.level().to_string(), "1/2");

    let (witness, arrived) = pair().await;
    let weak = Arc::downgrade(&one);
    let completes = async {
        // The responder waits for its own end of the handshake.
        tokio::time::sleep(Duration::from_millis(20)).await;
        registration.complete(&other);
    };
    let (added, answered, ()) =
        tokio::join!(add_late_witness(&weak, path, &witness), respond(arrived), completes);
    assert_eq!(added.expect("it is added").to_string(), "2/2");
    assert!(matches!(answered, Ok((Accepted::LateWitness(level), _)) if level.is_full()));
    assert_eq!((one.level(), other.level().to_string()), (other.level(), "2/2".to_owned()));

    // Witnesses that are not needed any more are nobody's fault.
    drop((one, registration));
    let (witness, arrived) = pair().await;
    close_on_drop(&witness).expect("it is a socket");
    assert!(matches!(add_late_witness(&weak, path, &witness).await, Err(SealedError::SessionEnded)));
    drop(witness);
    assert!(matches!(respond(arrived).await, Ok((Accepted::Unused, _))));
}
