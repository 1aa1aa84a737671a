use plait_proto::codec::records::{AeadCipher, Copies, OVERHEAD, Sealer};

use super::*;
use crate::handshake::pair;

fn path(number: u8) -> PathId {
    PathId::new(number).expect("a path's number")
}

/// The copy of a record with these data, and no valid one for anybody else.
fn copy(sealer: &mut Sealer, data: usize) -> Vec<u8> {
    let position = sealer.position();
    let mut record = vec![0; data + OVERHEAD];
    sealer.seal(&mut record, data);
    Copies::new(position, &record).next().expect("a copy")
}

fn sealer() -> Sealer {
    Sealer::new(AeadCipher::Aes256Gcm, &[7; 32])
}

#[tokio::test]
async fn copies_arrive_in_both_directions() {
    let (one, other) = pair().await;
    let [(ours, mut our_copies), (theirs, mut their_copies)] =
        [(); 2].map(|()| SideConnections::new(Redundancy::All));
    let sent = copy(&mut sealer(), 100);
    let exchange = async {
        while !(ours.wants(1) && theirs.wants(1)) {
            tokio::task::yield_now().await;
        }
        ours.send(&sent, None);
        theirs.send(&sent, None);
        (our_copies.recv().await, their_copies.recv().await)
    };
    let (at_us, at_them) = tokio::select! {
        received = exchange => received,
        end = ours.run(path(1), &one, OpenedBy::Us) => panic!("{end}"),
        end = theirs.run(path(1), &other, OpenedBy::Peer) => panic!("{end}"),
    };
    assert_eq!([at_us, at_them].map(|copy| copy.expect("a copy").bytes), [sent.clone(), sent]);
    assert_eq!((ours.report().sent, ours.report().dropped), (1, 0));
}

#[tokio::test]
async fn side_connection_that_does_not_drain_drops_copies() {
    let (one, _other) = pair().await;
    let (ours, _copies) = SideConnections::new(Redundancy::All);
    let sent = copy(&mut sealer(), 10_000);
    let flood = async {
        while !ours.wants(1) {
            tokio::task::yield_now().await;
        }
        while ours.report().dropped == 0 {
            ours.send(&sent, None);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = flood => {}
        end = ours.run(path(1), &one, OpenedBy::Us) => panic!("{end}"),
    }
    assert!(ours.report().sent > 1);
}

#[tokio::test]
async fn ends_when_replaced_closed_rejected_or_sent_no_copies() {
    let (one, other) = pair().await;
    let (ours, mut copies) = SideConnections::new(Redundancy::All);
    let (second, _peer) = pair().await;
    let replacing = async {
        while !ours.wants(1) {
            tokio::task::yield_now().await;
        }
        ours.run(path(1), &second, OpenedBy::Us).await
    };
    let end = tokio::select! {
        end = ours.run(path(1), &one, OpenedBy::Us) => end,
        end = replacing => end,
    };
    assert!(matches!(end, SideError::Replaced), "{end}");

    write_all(&other, &copy(&mut sealer(), 1)).await.expect("writable");
    let rejecting = async {
        copies.recv().await.expect("a copy").reject();
        std::future::pending::<()>().await;
    };
    let end = tokio::select! {
        end = ours.run(path(1), &one, OpenedBy::Us) => end,
        () = rejecting => unreachable!("it waits"),
    };
    assert!(matches!(end, SideError::Rejected), "{end}");
    assert_eq!(ours.report().side_connections, 0);

    write_all(&other, &[0; COPY_HEADER + LENGTH]).await.expect("writable");
    let end = ours.run(path(1), &one, OpenedBy::Us).await;
    assert!(matches!(end, SideError::Copy(_)), "{end}");
    assert_eq!(ours.report().invalid, 1);

    drop(other);
    let end = ours.run(path(1), &one, OpenedBy::Us).await;
    assert!(matches!(end, SideError::Closed | SideError::Network(_)), "{end}");
}
