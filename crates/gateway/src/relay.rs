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
mod copies;
mod exit_records;
mod progress;
mod pump;
mod pump_error;
mod records;
mod transform;

use std::future::pending;
use std::io;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::net::TcpStream;

pub(crate) use copies::SideRecords;
pub(crate) use exit_records::{EXIT_ANSWER_TIMEOUT, ExitRecordError};
pub(crate) use progress::{KeyUpdateCounter, Progress};
pub(crate) use records::{RecordOptions, Records, Updates};
pub(crate) use transform::{Seeds, Transform, Transforms};

use crate::socket::close_on_drop;
use exit_records::receive_outcome;
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
    #[error("the exit cannot connect: {0}")]
    Exit(String),
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
                near,
                far,
                pump::pump(near, far, &mut outgoing, &progress.sent),
                pump::pump(far, near, &mut incoming, &progress.received),
            )
            .await?;
        }
        Transforms::Records(records) => {
            let Records { mut sealer, mut opener, updates, side, expects_outcome } = *records;
            let connections = side.as_ref().map(|side| Arc::clone(&side.connections));
            both(
                near,
                far,
                records::seal(near, far, &mut sealer, &updates, connections.as_deref(), progress),
                async {
                    if expects_outcome {
                        receive_outcome(far, &mut opener).await?;
                    }
                    records::open(far, near, &mut opener, &updates, side, progress).await
                },
            )
            .await?;
        }
    }
    close_on_drop(near).map_err(RelayError::Near)?;
    close_on_drop(far).map_err(RelayError::Far)
}

/// Runs both directions: from the application to the network, and back.
async fn both(
    near: &TcpStream,
    far: &TcpStream,
    send: impl Future<Output = Result<(), PumpError>>,
    receive: impl Future<Output = Result<(), PumpError>>,
) -> Result<(), RelayError> {
    let send = async { send.await.map_err(|error| located(error, RelayError::Near, RelayError::Far)) };
    let receive = async { receive.await.map_err(|error| located(error, RelayError::Far, RelayError::Near)) };
    tokio::pin!(send, receive);
    tokio::select! {
        sent = &mut send => {
            sent?;
            unless_reset(receive, near, RelayError::Near).await
        }
        received = &mut receive => {
            received?;
            unless_reset(send, far, RelayError::Far).await
        }
    }
}

/// Runs a direction towards a socket whose own direction has ended, so that nobody reads it: a reset would not be noticed before
/// there is something to write.
async fn unless_reset(
    direction: impl Future<Output = Result<(), RelayError>>,
    to: &TcpStream,
    located: fn(io::Error) -> RelayError,
) -> Result<(), RelayError> {
    let reset = async {
        match to.ready(Interest::ERROR).await.and_then(|_| to.take_error()) {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => pending().await,
        }
    };
    tokio::select! {
        biased;
        done = direction => done,
        error = reset => Err(located(error)),
    }
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
        PumpError::Exit(reason) => RelayError::Exit(reason),
    }
}
