//! Passes open descriptors to another process over a unix socket (`SCM_RIGHTS`, `unix(7)`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// How many descriptors one message can have (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;

const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// Sends a message with descriptors, of which there may be [`MAX_DESCRIPTORS`].
///
/// # Errors
/// The kernel's reason, or the message does not fit into the buffer of the socket.
pub fn send(stream: impl AsFd, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        let text = format!("expected at most {MAX_DESCRIPTORS} descriptors, got {}", descriptors.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let sent = sendmsg(stream, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?;
    if sent < message.len() {
        let text = format!("expected room for {} bytes in the buffer, got {sent}", message.len());
        return Err(io::Error::new(io::ErrorKind::WriteZero, text));
    }
    Ok(())
}

/// Receives a part of a message, and the descriptors that came with it. 0 bytes: the other end has closed the socket.
///
/// # Errors
/// The kernel's reason.
pub fn receive(stream: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(stream, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok((received, descriptors))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn passed_descriptor_is_that_of_the_sender() {
        let (own, other) = UnixStream::pair().expect("a pair");
        let (mut kept, passed) = UnixStream::pair().expect("a pair");
        send(&own, b"one", &[passed.as_fd()]).expect("there is room");
        let mut buffer = [0; 16];
        let (length, descriptors) = receive(&other, &mut buffer).expect("a message");
        assert_eq!((&buffer[..length], descriptors.len()), (&b"one"[..], 1));
        kept.write_all(b"x").expect("it is open");
        let mut stream = UnixStream::from(descriptors.into_iter().next().expect("one"));
        stream.read_exact(&mut buffer[..1]).expect("a byte");
        assert_eq!(buffer[0], b'x');
        drop(own);
        assert_eq!(receive(&other, &mut buffer).expect("the end").0, 0);
    }

    #[test]
    fn too_many_descriptors_are_refused() {
        let (own, _other) = UnixStream::pair().expect("a pair");
        let many = vec![own.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(send(&own, b"x", &many).expect_err("too many").kind(), io::ErrorKind::InvalidInput);
    }
}
