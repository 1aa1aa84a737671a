//! The first record of each direction to and from an exit, before the relay carries what follows.

use std::io;
use std::time::Duration;

use plait_proto::codec::records::{Error, ExitRecord, OpenedExit, Opener};
use plait_proto::exit::{MessageError, decode_outcome};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::pump_error::PumpError;
use super::records::Records;
use crate::socket::write_all;

/// How long an exit may take to answer: longer than it takes to resolve a name and to give up connecting.
pub(crate) const EXIT_ANSWER_TIMEOUT: Duration = Duration::from_secs(80);

/// An initiator and an exit could not exchange their first records.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExitRecordError {
    #[error("network side: {0}")]
    Network(#[from] io::Error),
    #[error("network side: {0}")]
    Record(#[from] Error),
    #[error("network side: {0}")]
    Message(#[from] MessageError),
}

impl Records {
    /// Sends the first record of this end.
    pub(crate) async fn send_exit(
        &mut self,
        far: &TcpStream,
        record: ExitRecord,
        content: &[u8],
    ) -> io::Result<()> {
        let bytes = self.sealer.exit(record, content);
        write_all(far, &bytes).await
    }

    /// Receives the first record of the other end, and no byte beyond it. Returns its content.
    pub(crate) async fn receive_exit(
        &mut self,
        far: &TcpStream,
        expected: ExitRecord,
    ) -> Result<Zeroizing<Vec<u8>>, ExitRecordError> {
        receive_exit(&mut self.opener, far, expected).await
    }

    /// An exit's only records: the outcome, and the end of its direction.
    pub(crate) fn final_outcome(&mut self, content: &[u8]) -> Vec<u8> {
        let mut bytes = self.sealer.exit(ExitRecord::Outcome, content);
        bytes.extend(self.sealer.end());
        bytes
    }
}

async fn receive_exit(
    opener: &mut Opener,
    far: &TcpStream,
    expected: ExitRecord,
) -> Result<Zeroizing<Vec<u8>>, ExitRecordError> {
    let mut bytes = Zeroizing::new(Vec::new());
    loop {
        match opener.open_exit(&mut bytes, expected)? {
            OpenedExit::Content(content) => return Ok(Zeroizing::new(bytes[content].to_vec())),
            // At most a record.
            OpenedExit::Incomplete { needed } => read_more(far, &mut bytes, needed).await?,
        }
    }
}

/// Receives the outcome of an exit to which bytes have been sent already.
pub(super) async fn receive_outcome(far: &TcpStream, opener: &mut Opener) -> Result<(), PumpError> {
    let answer = timeout(EXIT_ANSWER_TIMEOUT, receive_exit(opener, far, ExitRecord::Outcome)).await;
    let content = answer.map_err(|_| PumpError::Exit("no answer".into()))?;
    let outcome = content.and_then(|content| Ok(decode_outcome(&content)?));
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(failure)) => Err(PumpError::Exit(failure.to_string())),
        Err(ExitRecordError::Network(error)) => Err(PumpError::Read(error)),
        Err(ExitRecordError::Record(error)) => Err(PumpError::Record(error)),
        Err(ExitRecordError::Message(error)) => Err(PumpError::Exit(error.to_string())),
    }
}

async fn read_more(from: &TcpStream, bytes: &mut Vec<u8>, needed: usize) -> io::Result<()> {
    let mut filled = bytes.len();
    bytes.resize(filled + needed, 0);
    while filled < bytes.len() {
        from.readable().await?;
        match from.try_read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
