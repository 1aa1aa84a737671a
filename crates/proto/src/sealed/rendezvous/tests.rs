use std::rc::Rc;

use proptest::prelude::*;

use std::time::Duration;

use super::*;
use crate::secret::Secret;

const TIMEOUT: Duration = Duration::from_secs(10);
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));

fn session(number: u8) -> SessionId {
    SessionId::new([number; 32])
}

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path number")
}

fn paths(numbers: &[u8]) -> PathIds {
    numbers.iter().map(|number| path(*number)).collect()
}

fn witness(of: u8, number: u8) -> Witness {
    Witness { session: session(of), path: path(number), share: Secret::copy_of(&[number; 32]) }
}

fn table(sessions: usize, per_network: usize) -> (Rendezvous<&'static str, u8>, Instant) {
    (Rendezvous::new(Limits { sessions, crowded: 0, per_network, timeout: TIMEOUT }), Instant::now())
}

/// No session and no connection is kept.
fn is_empty<M, W>(table: &Rendezvous<M, W>) -> bool {
    table.half_open.is_empty() && table.with_hello.len() + table.without_hello.len() == 0
}

fn described(gathered: Option<CompleteSession<&'static str, u8>>) -> Option<(&'static str, Vec<(u8, u8)>)> {
    gathered.map(|CompleteSession { main, witnesses }| {
        (main, witnesses.iter().map(|(witness, handle)| (witness.path.number(), *handle)).collect())
    })
}

#[test]
fn sessions_complete_in_any_order() {
    // 0 is HELLO.
    for order in [[0, 2, 5], [0, 5, 2], [2, 0, 5], [5, 0, 2], [2, 5, 0], [5, 2, 0]] {
        let (mut table, now) = table(1, 3);
        let mut came = None;
        for (index, what) in order.into_iter().enumerate() {
            assert!(came.is_none(), "not before everything has come");
            came = described(match what {
                0 => table.add_hello(now, HERE, session(1), paths(&[2, 5]), "main").expect("accepted"),
                number => table.add_witness(now, HERE, witness(1, number), number * 10).expect("accepted"),
            });
            assert_eq!(came.is_some(), index == 2);
        }
        assert_eq!(came, Some(("main", vec![(2, 20), (5, 50)])));
        assert!(is_empty(&table));
        assert_eq!(table.stats(), RendezvousStats { completed: 1, ..RendezvousStats::default() });
    }
}

#[test]
fn a_session_without_witnesses_is_complete_at_once() {
    let (mut table, now) = table(1, 1);
    let gathered = table.add_hello(now, HERE, session(1), paths(&[]), "main").expect("accepted");
    assert_eq!(described(gathered), Some(("main", vec![])));
}

#[test]
fn sessions_do_not_mix() {
    let (mut table, now) = table(2, 4);
    assert!(table.add_hello(now, HERE, session(1), paths(&[1]), "one").expect("accepted").is_none());
    assert!(table.add_witness(now, HERE, witness(2, 1), 21).expect("accepted").is_none());
    let gathered = table.add_hello(now, HERE, session(2), paths(&[1]), "two").expect("accepted");
    assert_eq!(described(gathered), Some(("two", vec![(1, 21)])));
    let gathered = table.add_witness(now, HERE, witness(1, 1), 11).expect("accepted");
    assert_eq!(described(gathered), Some(("one", vec![(1, 11)])));
}

#[test]
fn rejects_replays_until_the_sessions_deadline() {
    let (mut table, now) = table(9, 9);
    table.add_hello(now, HERE, session(1), paths(&[1]), "main").expect("accepted");
    let replayed = RendezvousError::Replayed(session(1));
    let late = RendezvousError::Late(session(1), path(1));
    assert_eq!(table.add_hello(now, THERE, session(1), paths(&[]), "replay").expect_err("refused"), replayed);
    assert!(table.add_witness(now, HERE, witness(1, 1), 1).expect("accepted").is_some());
    assert_eq!(table.add_hello(now, HERE, session(1), paths(&[1]), "replay").expect_err("refused"), replayed);
    assert_eq!(table.add_witness(now, HERE, witness(1, 1), 1).expect_err("refused"), late);
    let past = now + TIMEOUT;
    assert!(
        table.add_witness(past, HERE, witness(1, 1), 1).is_ok(),
        "forgotten: a new session that will expire"
    );
    assert_eq!(
        table.stats(),
        RendezvousStats { completed: 1, replayed: 2, late: 1, ..RendezvousStats::default() }
    );
}

#[test]
fn rejects_repeated_and_unlisted_witnesses() {
    let (mut table, now) = table(9, 9);
    table.add_witness(now, HERE, witness(1, 3), 30).expect("accepted");
    let repeated = RendezvousError::Repeated(session(1), path(3));
    assert_eq!(table.add_witness(now, THERE, witness(1, 3), 31).expect_err("refused"), repeated);
    table.add_witness(now, THERE, witness(1, 4), 40).expect("accepted: HELLO has not come yet");
    assert!(table.add_hello(now, HERE, session(1), paths(&[3, 5]), "main").expect("accepted").is_none());
    let unlisted = RendezvousError::Unlisted(session(1), path(4));
    assert_eq!(table.add_witness(now, HERE, witness(1, 4), 41).expect_err("refused"), unlisted);
    let gathered = table.add_witness(now, HERE, witness(1, 5), 50).expect("accepted");
    assert_eq!(described(gathered), Some(("main", vec![(3, 30), (5, 50)])), "the first one stats");
    assert!(is_empty(&table));
    assert_eq!(
        table.stats(),
        RendezvousStats { completed: 1, repeated: 1, unlisted: 2, ..RendezvousStats::default() }
    );
    assert_eq!((table.waiting(), table.stats().dropped(), table.stats().refused()), (0, 0, 3));
}

#[test]
fn expired_sessions_are_dropped_and_counted() {
    let mut table = Rendezvous::new(Limits { timeout: TIMEOUT, ..Limits::default() });
    let now = Instant::now();
    let (main, connection) = (Rc::new(()), Rc::new(()));
    assert_eq!(table.next_deadline, None);
    table.add_hello(now, HERE, session(1), paths(&[1, 2]), Rc::clone(&main)).expect("accepted");
    table.add_witness(now + TIMEOUT / 2, HERE, witness(1, 1), Rc::clone(&connection)).expect("accepted");
    table.add_witness(now + TIMEOUT / 2, THERE, witness(2, 1), Rc::clone(&connection)).expect("accepted");
    assert_eq!(table.next_deadline, Some(now + TIMEOUT));
    table.expire(now + TIMEOUT - Duration::from_nanos(1));
    assert_eq!((Rc::strong_count(&main), Rc::strong_count(&connection)), (2, 3));
    table.expire(now + TIMEOUT);
    assert_eq!((Rc::strong_count(&main), Rc::strong_count(&connection)), (1, 2));
    assert_eq!(table.next_deadline, Some(now + TIMEOUT * 3 / 2));
    table.expire(now + TIMEOUT * 3 / 2);
    assert_eq!(Rc::strong_count(&connection), 1);
    assert!(is_empty(&table));
    assert_eq!(table.next_deadline, None);
    assert_eq!(
        table.stats(),
        RendezvousStats { without_witness: 1, without_hello: 1, ..RendezvousStats::default() }
    );
    assert_eq!((table.waiting(), table.stats().dropped(), table.stats().refused()), (0, 2, 0));
}

#[test]
fn abandoning_a_session_drops_its_witnesses() {
    let (mut table, now) = table(9, 9);
    table.add_witness(now, THERE, witness(1, 1), 1).expect("accepted");
    table.add_hello(now, HERE, session(1), paths(&[1, 2]), "main").expect("accepted");
    table.abandon(&session(1));
    table.abandon(&session(1));
    assert!(is_empty(&table));
    let late = RendezvousError::Late(session(1), path(2));
    assert_eq!(table.add_witness(now, HERE, witness(1, 2), 2).expect_err("refused"), late);
    assert_eq!(table.stats(), RendezvousStats { abandoned: 1, late: 1, ..RendezvousStats::default() });
}

#[test]
fn flood_of_witnesses_displaces_neither_hellos_nor_witnesses_of_others() {
    let (mut table, now) = table(4, 2);
    table.add_hello(now, HERE, session(1), paths(&[1]), "main").expect("accepted");
    table.add_witness(now, HERE, witness(2, 1), 1).expect("accepted");
    for number in 10..200 {
        assert!(table.add_witness(now, THERE, witness(number, 1), 0).expect("accepted").is_none());
    }
    assert_eq!(table.stats(), RendezvousStats { displaced: 188, ..RendezvousStats::default() });
    assert!(table.add_witness(now, HERE, witness(1, 1), 1).expect("accepted").is_some());
    assert!(table.add_hello(now, HERE, session(2), paths(&[1]), "main").expect("accepted").is_some());
    let late = RendezvousError::Late(session(10), path(2));
    assert_eq!(table.add_witness(now, THERE, witness(10, 2), 1).expect_err("displaced"), late);
}

#[test]
fn flood_of_hellos_displaces_only_those_of_its_network() {
    let (mut table, now) = table(4, 2);
    table.add_hello(now, HERE, session(1), paths(&[1]), "main").expect("accepted");
    for number in 10..200 {
        table.add_hello(now, THERE, session(number), paths(&[1]), "flood").expect("accepted");
    }
    assert_eq!((table.waiting(), table.stats().displaced), (3, 188));
    assert!(table.add_witness(now, HERE, witness(1, 1), 1).expect("accepted").is_some());
    let complete = table.add_hello(now, THERE, session(2), paths(&[]), "main").expect("accepted");
    assert!(complete.is_some(), "nothing is missing: it needs no room");
    assert_eq!((table.waiting(), table.stats().displaced), (2, 188));
}

#[test]
fn tolerates_clocks_that_jump() {
    let (mut table, now) = table(99, 99);
    let later = now + TIMEOUT * 1000;
    table.add_witness(later, HERE, witness(1, 1), 1).expect("accepted");
    table.expire(now);
    assert!(table.add_hello(now, HERE, session(1), paths(&[1]), "main").expect("accepted").is_some());
    table.expire(now);
    table.expire(later + TIMEOUT);
    assert!(is_empty(&table) && table.closed.is_empty());
}

proptest! {
    /// Any sequence of messages keeps the invariants.
    #[test]
    fn bounds_hold_for_any_sequence_of_messages(
        steps in proptest::collection::vec((0u8..6, 0u8..5, 0u8..4, any::<bool>(), 0u64..4), 0..200),
    ) {
        let (max_sessions, per_network) = (5, 3);
        let (mut table, mut now) = table(max_sessions, per_network);
        for (what, number, id, here, seconds) in steps {
            now += Duration::from_secs(seconds);
            let peer = if here { HERE } else { THERE };
            let gathered = match what {
                0 | 1 => table.add_hello(now, peer, session(number), paths(&[1, 2]), "main"),
                2 => { table.abandon(&session(number)); Ok(None) }
                _ => table.add_witness(now, peer, witness(number, id + 1), id),
            };
            if let Ok(Some(gathered)) = gathered {
                let came: Vec<u8> =
                    gathered.witnesses.iter().map(|(witness, _)| witness.path.number()).collect();
                prop_assert_eq!(came, [1, 2]);
                prop_assert!(gathered.witnesses.iter().all(|(witness, _)| witness.session == session(number)));
            }
            for (has_hello, pool) in [(true, &table.with_hello), (false, &table.without_hello)] {
                let of_kind = || table.half_open.values().filter(|half_open| half_open.main.is_some() == has_hello);
                let here = of_kind().filter(|half_open| half_open.network == HERE).count();
                prop_assert_eq!(of_kind().count(), pool.len());
                prop_assert!(pool.len() <= max_sessions && here <= per_network && pool.len() - here <= per_network);
            }
            let deadlines = table.half_open.values().map(|half_open| half_open.deadline);
            prop_assert!(deadlines.min() >= table.next_deadline || table.half_open.is_empty());
        }
        table.expire(now + TIMEOUT);
        prop_assert!(is_empty(&table));
    }
}
