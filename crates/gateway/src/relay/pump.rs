//! One direction of a relay whose bytes are transformed in place.

use std::io;

use tokio::net::TcpStream;

use super::buffer::Buffer;
use super::progress::ByteCounter;
use super::pump_error::PumpError;
use super::transform::Transform;
use crate::socket::{shutdown_write, write_all};

/// Carries one direction to the end of the stream, which it passes on.
pub(super) async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    transform: &mut Transform,
    counter: &ByteCounter,
) -> Result<(), PumpError> {
    loop {
        from.readable().await.map_err(PumpError::Read)?;
        let mut buffer = Buffer::take();
        let length = match from.try_read(&mut buffer.bytes) {
            Ok(0) => return shutdown_write(to).map_err(PumpError::Write),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(PumpError::Read(error)),
        };
        let bytes = &mut buffer.bytes[..length];
        transform.apply(bytes);
        write_all(to, bytes).await.map_err(PumpError::Write)?;
        counter.add(length);
    }
}
