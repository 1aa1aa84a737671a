//! Carries a connection's bytes: read from one socket, transform, write to the other, in both directions.
//!
//! TCP's semantics are kept: the end of one direction is passed on and leaves the other open (half-close), a reset on either
//! side resets the other, and nothing is read that cannot be written (back-pressure): a connection holds at most one buffer
//! per direction, and only while bytes are in flight.
//!
//! A socket must be set to [reset rather than close](crate::socket::reset_on_drop) before it is connected, so that a
//! gateway that dies at any moment never looks like the end of the stream; only a relay that saw both directions end makes
//! it close in order.

mod buffer;
mod progress;
mod pump;
mod records;
mod transform;

use std::io;

use tokio::net::TcpStream;

pub(crate) use progress::Progress;
pub(crate) use transform::{Incoming, Outgoing, Seeds, Transform, Transforms};

use crate::socket::close_on_drop;
use pump::PumpError;

/// Which side of a relay failed, and how.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("application side: {0}")]
    Near(io::Error),
    #[error("network side: {0}")]
    Far(io::Error),
    #[error("network side: {0}")]
    Record(plait_proto::codec::records::Error),
}

/// Carries both directions between the application (`near`) and the network (`far`) until both have ended, or one side
/// fails; then both sockets reset.
pub(crate) async fn relay(
    near: &TcpStream,
    far: &TcpStream,
    transforms: Transforms,
    progress: &Progress,
) -> Result<(), RelayError> {
    let Transforms { mut outgoing, mut incoming } = transforms;
    let send = async {
        let done = match &mut outgoing {
            Outgoing::InPlace(transform) => pump::pump(near, far, transform, &progress.sent).await,
            Outgoing::Records(sealer) => records::seal(near, far, sealer, &progress.sent).await,
        };
        done.map_err(|error| located(error, RelayError::Near, RelayError::Far))
    };
    let receive = async {
        let done = match &mut incoming {
            Incoming::InPlace(transform) => pump::pump(far, near, transform, &progress.received).await,
            Incoming::Records(opener) => records::open(far, near, opener, &progress.received).await,
        };
        done.map_err(|error| located(error, RelayError::Far, RelayError::Near))
    };
    tokio::try_join!(send, receive)?;
    close_on_drop(near).map_err(RelayError::Near)?;
    close_on_drop(far).map_err(RelayError::Far)
}

fn located(
    error: PumpError,
    reading: fn(io::Error) -> RelayError,
    writing: fn(io::Error) -> RelayError,
) -> RelayError {
    match error {
        PumpError::Read(error) => reading(error),
        PumpError::Write(error) => writing(error),
        PumpError::Record(error) => RelayError::Record(error),
    }
}
