//! `plait codec`: the transforms as filters, for tests and for interoperability with other implementations.

mod filter;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use plait_proto::codec::records::{AeadCipher, KEY_LEN, Opener, Sealer};
use plait_proto::codec::stream::{self, RANDOM_LEN, StreamCipher, StreamSecret};
use plait_proto::codec::xor64::{Decoder, Encoder, Implementation, Seed};
use zeroize::Zeroizing;

/// Arguments of `plait codec`.
#[derive(clap::Subcommand)]
pub(crate) enum Args {
    /// Scramble or unscramble stdin as the papers do: obfuscation, not encryption
    Xor64 {
        #[command(flatten)]
        direction: Direction,
        /// The shared seed, 1 to 64 bytes in hexadecimal. Other users of this host can see it in the process list
        #[arg(long, value_name = "HEX", value_parser = parse_seed)]
        seed: Arc<Seed>,
        /// The implementation: straightforward, running or simd; all give the same output
        #[arg(long = "impl", value_name = "NAME", default_value_t = Implementation::Simd)]
        implementation: Implementation,
    },
    /// Encrypt or decrypt stdin as mode stream does (the same operation): confidentiality without integrity
    Stream {
        /// File with 48 bytes in hexadecimal: the initiator's MPTCP key, the responder's, the initiator's 32 random bytes
        #[arg(long, value_name = "FILE")]
        secrets: PathBuf,
        /// aes-256-ctr or chacha20
        #[arg(long, value_name = "NAME")]
        cipher: StreamCipher,
        /// The sender of the bytes: initiator or responder
        #[arg(long, value_name = "END", value_parser = parse_end)]
        from: stream::Direction,
    },
    /// Seal stdin as mode sealed does, or open it; modified or truncated input is an error
    Sealed {
        #[command(flatten)]
        direction: Direction,
        /// File with the key of this direction: 32 bytes in hexadecimal
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// chacha20-poly1305 or aes-256-gcm
        #[arg(long, value_name = "NAME")]
        cipher: AeadCipher,
    },
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Direction {
    /// From plaintext to the wire format
    #[arg(long)]
    encode: bool,
    /// From the wire format to plaintext
    #[arg(long)]
    decode: bool,
}

#[expect(clippy::disallowed_methods, reason = "the output is bytes, not text")]
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let input = unbuffered(&io::stdin()).context("cannot use stdin")?;
    let output = unbuffered(&io::stdout()).context("cannot use stdout")?;
    match args {
        Args::Xor64 { direction, seed, implementation } if direction.encode => {
            let mut encoder = Encoder::with_implementation(&seed, implementation);
            filter::in_place(input, output, |piece| encoder.encode_in_place(piece))
        }
        Args::Xor64 { seed, implementation, .. } => {
            let mut decoder = Decoder::with_implementation(&seed, implementation);
            filter::in_place(input, output, |piece| decoder.decode_in_place(piece))
        }
        Args::Stream { secrets, cipher, from } => {
            let mut keystream = read_secrets(&secrets)?.keystream(cipher, from);
            filter::in_place(input, output, |piece| keystream.apply(piece))
        }
        Args::Sealed { direction, key, cipher } if direction.encode => {
            filter::seal(input, output, Sealer::new(cipher, &*read_hex::<KEY_LEN>(&key)?))
        }
        Args::Sealed { key, cipher, .. } => {
            filter::open(input, output, Opener::new(cipher, &*read_hex::<KEY_LEN>(&key)?))
        }
    }
}

fn parse_seed(digits: &str) -> anyhow::Result<Arc<Seed>> {
    let bytes =
        hex::decode(digits).map_err(|error| anyhow!("expected two hexadecimal digits per byte: {error}"))?;
    Ok(Arc::new(Seed::new(&bytes)?))
}

fn parse_end(name: &str) -> anyhow::Result<stream::Direction> {
    match name {
        "initiator" => Ok(stream::Direction::ToResponder),
        "responder" => Ok(stream::Direction::ToInitiator),
        other => bail!("expected initiator or responder, got {other:?}"),
    }
}

fn read_secrets(file: &Path) -> anyhow::Result<StreamSecret> {
    let bytes = read_hex::<{ 8 + 8 + RANDOM_LEN }>(file)?;
    let (initiator, rest) = bytes.split_first_chunk().expect("8 of 48 bytes");
    let (responder, rest) = rest.split_first_chunk().expect("8 of 40 bytes");
    Ok(StreamSecret::new(initiator, responder, rest.first_chunk().expect("32 of 32 bytes")))
}

/// Reads `N` bytes in hexadecimal from `file`; white space is ignored.
fn read_hex<const N: usize>(file: &Path) -> anyhow::Result<Zeroizing<[u8; N]>> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let mut digits = Zeroizing::new(text);
    digits.retain(|character| !character.is_whitespace());
    let mut bytes = Zeroizing::new([0; N]);
    hex::decode_to_slice(&*digits, &mut *bytes).map_err(|error| {
        anyhow!(
            "{name}: expected {N} bytes, two hexadecimal digits each, got {} digits: {error}",
            digits.len()
        )
    })?;
    Ok(bytes)
}

fn unbuffered(stream: &impl AsFd) -> io::Result<File> {
    Ok(File::from(stream.as_fd().try_clone_to_owned()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_invalid_seeds() {
        for (digits, reason) in
            [("", "got 0"), ("abc", "Odd number"), ("zz", "Invalid character"), (&"00".repeat(65), "got 65")]
        {
            let error = parse_seed(digits).unwrap_err().to_string();
            assert!(error.contains(reason), "{digits:?}: {error}");
        }
        assert!(parse_seed("00").is_ok() && parse_seed(&"Fe".repeat(64)).is_ok());
    }

    #[test]
    fn reads_exactly_the_required_number_of_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, " 0102\n0aFF\n").unwrap();
        assert_eq!(*read_hex::<4>(file.path()).unwrap(), [1, 2, 10, 255]);
        for text in ["", "01020aFF00", "01020aF", "0102 0agg"] {
            fs::write(&file, text).unwrap();
            let error = read_hex::<4>(file.path()).unwrap_err().to_string();
            assert!(error.contains("expected 4 bytes"), "{text:?}: {error}");
        }
        let error = read_hex::<4>(Path::new("/nonexistent")).unwrap_err().to_string();
        assert_eq!(error, "cannot read /nonexistent");
    }

    #[test]
    fn parses_the_sender() {
        assert_eq!(parse_end("initiator").unwrap(), stream::Direction::ToResponder);
        assert_eq!(parse_end("responder").unwrap(), stream::Direction::ToInitiator);
        assert!(parse_end("server").is_err());
    }
}
