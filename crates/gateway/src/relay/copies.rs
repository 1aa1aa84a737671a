//! What side connections bring to the receiving direction of a relay.

use std::future::pending;
use std::sync::Arc;

use plait_proto::codec::records::{CopyOutcome, Opener};
use tokio::sync::mpsc;
use tracing::debug;
use zeroize::Zeroizing;

use crate::side_connections::{ReceivedCopy, SideConnections};

/// The side connections of a connection's records.
pub(crate) struct SideRecords {
    pub(crate) connections: Arc<SideConnections>,
    pub(crate) received: mpsc::Receiver<ReceivedCopy>,
}

/// Waits for the next copy, with the side connections that it came by.
pub(super) async fn next_copy(side: Option<&mut SideRecords>) -> (ReceivedCopy, &SideConnections) {
    let Some(SideRecords { connections, received }) = side else { return pending().await };
    match received.recv().await {
        Some(copy) => (copy, connections),
        None => pending().await,
    }
}

/// The data that may be delivered because of a copy; often none.
pub(super) fn open_copy(
    opener: &mut Opener,
    mut copy: ReceivedCopy,
    side: &SideConnections,
) -> Zeroizing<Vec<u8>> {
    let mut data = Zeroizing::new(Vec::new());
    match opener.open_copy(&mut copy.bytes) {
        Ok(CopyOutcome::Next { content }) => {
            side.counters.first(1);
            data.extend_from_slice(&copy.bytes[content]);
            data.extend_from_slice(&waiting(opener, Some(side)));
        }
        // It is counted when it is known which of both was first.
        Ok(CopyOutcome::Waiting) => {}
        Ok(CopyOutcome::Repeated | CopyOutcome::Dropped) => side.counters.late(),
        Err(error) => {
            debug!("a side connection: {error}");
            side.counters.invalid();
            copy.reject();
        }
    }
    data
}

/// The data of copies that waited for what was delivered by now.
pub(super) fn waiting(opener: &mut Opener, side: Option<&SideConnections>) -> Zeroizing<Vec<u8>> {
    let mut data = Zeroizing::new(Vec::new());
    let Some(side) = side else { return data };
    while let Some(content) = opener.next_waiting() {
        side.counters.first(1);
        data.extend_from_slice(&content);
    }
    data
}
