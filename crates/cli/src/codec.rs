//! `plait codec`: the transforms as filters, for tests and for talking to other implementations.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use plait_codec::xor64::{Decoder, Encoder, Implementation, Seed};

/// Bytes read at most before they are written: two pipes' worth.
const BUFFER: usize = 128 * 1024;

/// Arguments of `plait codec`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// Scramble or unscramble stdin to stdout as the papers do: obfuscation, not encryption
    Xor64(Xor64),
}

/// Arguments of `plait codec xor64`.
#[derive(clap::Args)]
pub(crate) struct Xor64 {
    #[command(flatten)]
    direction: Direction,
    /// What both ends know: 1 to 64 bytes in hexadecimal. Others on this host can see it in the process list
    #[arg(long, value_name = "HEX", value_parser = parse_seed)]
    seed: Arc<Seed>,
    /// How to compute: straightforward, running or simd; the outcome is the same
    #[arg(long = "impl", value_name = "NAME", default_value_t = Implementation::Simd)]
    implementation: Implementation,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Direction {
    /// From plaintext to its form on the wire
    #[arg(long)]
    encode: bool,
    /// From the form on the wire to plaintext
    #[arg(long)]
    decode: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args::Xor64(Xor64 { direction, seed, implementation }) = args;
    let input = unbuffered(&io::stdin()).context("cannot use stdin")?;
    let output = unbuffered(&io::stdout()).context("cannot use stdout")?;
    if direction.encode {
        let mut encoder = Encoder::with_implementation(&seed, implementation);
        filter(input, output, |piece| encoder.encode_in_place(piece))
    } else {
        let mut decoder = Decoder::with_implementation(&seed, implementation);
        filter(input, output, |piece| decoder.decode_in_place(piece))
    }
}

fn parse_seed(digits: &str) -> anyhow::Result<Arc<Seed>> {
    let bytes =
        hex::decode(digits).map_err(|error| anyhow!("expected two hexadecimal digits a byte: {error}"))?;
    Ok(Arc::new(Seed::new(&bytes)?))
}

fn unbuffered(stream: &impl AsFd) -> io::Result<File> {
    Ok(File::from(stream.as_fd().try_clone_to_owned()?))
}

/// Passes `input` to `output` through `transform`, each piece as soon as it is there. Whoever reads the output may
/// stop at any time; that is an end like any other.
fn filter(
    mut input: impl Read,
    mut output: impl Write,
    mut transform: impl FnMut(&mut [u8]),
) -> anyhow::Result<()> {
    let mut buf = vec![0; BUFFER];
    loop {
        let piece = match input.read(&mut buf) {
            Ok(0) => return Ok(()),
            Ok(length) => &mut buf[..length],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("cannot read stdin"),
        };
        transform(piece);
        match output.write_all(piece) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("cannot write stdout")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn filters_every_byte_once_and_in_order() {
        let bytes: Vec<u8> = (0..3 * BUFFER + 5).map(|i| (i % 251) as u8).collect();
        let mut out = Vec::new();
        filter(Cursor::new(&bytes), &mut out, |piece| piece.iter_mut().for_each(|byte| *byte ^= 0xff))
            .unwrap();
        assert!(out.iter().zip(&bytes).all(|(out, byte)| *out == byte ^ 0xff));
        assert_eq!(out.len(), bytes.len());
    }

    #[test]
    fn ends_quietly_when_nobody_reads_any_more() {
        filter(io::repeat(1), Failing(ErrorKind::BrokenPipe), |_| ()).unwrap();
    }

    #[test]
    fn other_failures_are_errors() {
        let error = filter(io::repeat(1), Failing(ErrorKind::StorageFull), |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "cannot write stdout");
        let error = filter(Failing(ErrorKind::ConnectionReset), Vec::new(), |_| ()).unwrap_err();
        assert_eq!(error.to_string(), "cannot read stdin");
    }

    #[test]
    fn refuses_what_is_no_seed() {
        for (digits, reason) in
            [("", "got 0"), ("abc", "Odd number"), ("zz", "Invalid character"), (&"00".repeat(65), "got 65")]
        {
            let error = parse_seed(digits).unwrap_err().to_string();
            assert!(error.contains(reason), "{digits:?}: {error}");
        }
        assert!(parse_seed("00").is_ok() && parse_seed(&"Fe".repeat(64)).is_ok());
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
