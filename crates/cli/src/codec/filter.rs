//! Copies a stream to another through a transform. If the reader of the output closes it, the copy ends without an error.

use std::io::{ErrorKind, Read, Write};
use std::ops::ControlFlow;

use anyhow::{Context, bail};
use plait_proto::codec::records::{LENGTH, MAX_RECORD, Opened, Opener, Sealer};

/// Bytes read at most before they are written: two pipes' worth, and more than a record.
const BUFFER: usize = 128 * 1024;

const _: () = assert!(BUFFER >= MAX_RECORD);

/// Passes `input` to `output` through `transform`, each piece as soon as it is there.
pub(super) fn in_place(
    mut input: impl Read,
    mut output: impl Write,
    mut transform: impl FnMut(&mut [u8]),
) -> anyhow::Result<()> {
    let mut buf = vec![0; BUFFER];
    loop {
        let length = read(&mut input, &mut buf)?;
        if length == 0 {
            return Ok(());
        }
        transform(&mut buf[..length]);
        if write(&mut output, &buf[..length])?.is_break() {
            return Ok(());
        }
    }
}

/// Makes a record of each piece as soon as it is there, and of the end of `input` the end.
pub(super) fn seal(mut input: impl Read, mut output: impl Write, mut sealer: Sealer) -> anyhow::Result<()> {
    let mut record = vec![0; MAX_RECORD];
    loop {
        let capacity = sealer.capacity(record.len());
        let length = read(&mut input, &mut record[LENGTH..LENGTH + capacity])?;
        if length == 0 {
            return write(&mut output, &sealer.end()).map(|_| ());
        }
        let sealed = sealer.seal(&mut record, length);
        if write(&mut output, &record[..sealed])?.is_break() {
            return Ok(());
        }
    }
}

/// Passes on the data of each record as soon as it is there. An error unless the records end as they were ended.
pub(super) fn open(mut input: impl Read, mut output: impl Write, mut opener: Opener) -> anyhow::Result<()> {
    let mut buf = vec![0; BUFFER];
    let mut filled = 0;
    loop {
        let length = read(&mut input, &mut buf[filled..])?;
        if length == 0 {
            return Ok(opener.finish()?);
        }
        filled += length;
        let mut opened = 0;
        while opened < filled {
            match opener.open(&mut buf[opened..filled])? {
                Opened::Incomplete { .. } => break,
                Opened::Data { content, consumed } => {
                    let data = &buf[opened..filled][content];
                    if write(&mut output, data)?.is_break() {
                        return Ok(());
                    }
                    opened += consumed;
                }
                Opened::Control { .. } => bail!(
                    "expected data under one key, got a key update: what follows cannot be opened without the private keys of \
                     one end"
                ),
                Opened::End { consumed } | Opened::Delivered { consumed } => opened += consumed,
            }
        }
        if opened > 0 {
            buf.copy_within(opened..filled, 0);
            filled -= opened;
        }
    }
}

/// As many bytes as are there, 0 at the end.
fn read(input: &mut impl Read, buf: &mut [u8]) -> anyhow::Result<usize> {
    loop {
        match input.read(buf) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            length => return length.context("cannot read stdin"),
        }
    }
}

/// Writes all bytes; a break if the reader has closed the output.
fn write(output: &mut impl Write, bytes: &[u8]) -> anyhow::Result<ControlFlow<()>> {
    match output.write_all(bytes) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        written => written.map(ControlFlow::Continue).context("cannot write stdout"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor};

    use plait_proto::codec::records::{AeadCipher, Error, MAX_CONTENT, OVERHEAD};

    use super::*;

    fn bytes() -> Vec<u8> {
        (0..3 * BUFFER + 5).map(|i| (i % 251) as u8).collect()
    }

    fn sealed(plain: &[u8]) -> Vec<u8> {
        let mut wire = Vec::new();
        seal(Cursor::new(plain), &mut wire, Sealer::new(AeadCipher::ChaCha20Poly1305, &[1; 32])).unwrap();
        wire
    }

    fn opener() -> Opener {
        Opener::new(AeadCipher::ChaCha20Poly1305, &[1; 32])
    }

    #[test]
    fn filters_every_byte_once_and_in_order() {
        let mut out = Vec::new();
        in_place(Cursor::new(bytes()), &mut out, |piece| piece.iter_mut().for_each(|byte| *byte ^= 0xff))
            .unwrap();
        assert!(out.iter().zip(bytes()).all(|(out, byte)| *out == byte ^ 0xff));
        assert_eq!(out.len(), bytes().len());
    }

    #[test]
    fn what_was_sealed_is_opened_whatever_the_pieces() {
        let wire = sealed(&bytes());
        assert_eq!(wire.len(), bytes().len() + (bytes().len().div_ceil(MAX_CONTENT) + 1) * OVERHEAD);
        for piece in [1, 7, 4096, wire.len()] {
            let mut out = Vec::new();
            open(InPieces(&wire, piece), &mut out, opener()).unwrap();
            assert!(out == bytes(), "pieces of {piece}");
        }
    }

    #[test]
    fn records_cut_off_or_changed_are_errors_and_only_what_is_whole_is_passed_on() {
        let wire = sealed(b"some text");
        let mut out = Vec::new();
        let error = open(Cursor::new(&wire[..wire.len() - 1]), &mut out, opener()).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Error::Truncated { records: 1 }));
        assert_eq!(out, b"some text");

        let mut changed = wire;
        changed[5] ^= 1;
        let mut out = Vec::new();
        let error = open(Cursor::new(changed), &mut out, opener()).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Error::Tag { record: 0 }));
        assert_eq!(out, b"");
    }

    #[test]
    fn ends_quietly_when_nobody_reads_any_more() {
        in_place(io::repeat(1), Failing(ErrorKind::BrokenPipe), |_| ()).unwrap();
        let sealer = Sealer::new(AeadCipher::Aes256Gcm, &[1; 32]);
        seal(io::repeat(1), Failing(ErrorKind::BrokenPipe), sealer).unwrap();
        open(Cursor::new(sealed(b"text")), Failing(ErrorKind::BrokenPipe), opener()).unwrap();
    }

    #[test]
    fn other_failures_are_errors() {
        let error = in_place(io::repeat(1), Failing(ErrorKind::StorageFull), |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "cannot write stdout");
        let error = in_place(Failing(ErrorKind::ConnectionReset), Vec::new(), |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "cannot read stdin");
    }

    /// Reads as a connection does, a piece at a time.
    struct InPieces<'a>(&'a [u8], usize);

    impl Read for InPieces<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(buf.len()).min(self.0.len());
            let (now, later) = self.0.split_at(length);
            buf[..length].copy_from_slice(now);
            self.0 = later;
            Ok(length)
        }
    }

    struct Failing(ErrorKind);

    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
    }

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
