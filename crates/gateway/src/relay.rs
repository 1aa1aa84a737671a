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
mod pump_error;
mod records;
mod transform;

use std::io;

use tokio::net::TcpStream;

pub(crate) use progress::{KeyUpdateCounter, Progress};
pub(crate) use records::{RecordOptions, Records, Updates};
pub(crate) use transform::{Seeds, Transform, Transforms};

use crate::socket::close_on_drop;
use pump_error::PumpError;

/// Which side of a relay failed, and how.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("application side: {0}")]
    Near(io::Error),
    #[error("network side: {0}")]
    Far(io::Error),
    #[error("network side: {0}")]
    Record(plait_proto::codec::records::Error),
    #[error("network side: {0}")]
    KeyUpdate(plait_proto::sealed::KeyUpdateError),
}

/// Carries both directions between the application (`near`) and the network (`far`) until both have ended, or one side
/// fails; then both sockets reset.
pub(crate) async fn relay(
    near: &TcpStream,
    far: &TcpStream,
    transforms: Transforms,
    progress: &Progress,
) -> Result<(), RelayError> {
    match transforms {
        Transforms::InPlace { mut outgoing, mut incoming } => {
            both(
                pump::pump(near, far, &mut outgoing, &progress.sent),
                pump::pump(far, near, &mut incoming, &progress.received),
            )
            .await?;
        }
        Transforms::Records(records) => {
            let Records { mut sealer, mut opener, updates } = *records;
            both(
                records::seal(near, far, &mut sealer, &updates, progress),
                records::open(far, near, &mut opener, &updates, progress),
            )
            .await?;
        }
    }
    close_on_drop(near).map_err(RelayError::Near)?;
    close_on_drop(far).map_err(RelayError::Far)
}

/// Runs both directions: from the application to the network, and back.
async fn both(
    send: impl Future<Output = Result<(), PumpError>>,
    receive: impl Future<Output = Result<(), PumpError>>,
) -> Result<(), RelayError> {
    let send = async { send.await.map_err(|error| located(error, RelayError::Near, RelayError::Far)) };
    let receive = async { receive.await.map_err(|error| located(error, RelayError::Far, RelayError::Near)) };
    tokio::try_join!(send, receive).map(|_| ())
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
        PumpError::KeyUpdate(error) => RelayError::KeyUpdate(error),
    }
}
