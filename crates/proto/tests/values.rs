//! What all transforms have in common: names that parse, no secrets in `Debug`, and values that may cross threads.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use plait_proto::ParseNameError;
use plait_proto::codec::records::{AeadCipher, Opener, Sealer};
use plait_proto::codec::stream::{Direction, Keystream, StreamCipher, StreamSecret};
use plait_proto::codec::xor64::{Decoder, Encoder, Implementation, Seed};
use plait_proto::option::Mode;

fn check_names<T>(all: &[T], message: &str)
where
    T: Copy + Debug + Display + PartialEq + FromStr<Err = ParseNameError>,
{
    for value in all {
        assert_eq!(value.to_string().parse(), Ok(*value));
        assert!(value.to_string().to_uppercase().parse::<T>().is_err());
    }
    assert_eq!("fast".parse::<T>().expect_err("no such name").to_string(), message);
}

#[test]
fn names_round_trip_and_others_are_rejected() {
    check_names(&Mode::ALL, "expected a mode (off, xor64, stream, sealed), got 'fast'");
    check_names(&StreamCipher::ALL, "expected a cipher (aes-256-ctr, chacha20), got 'fast'");
    check_names(&AeadCipher::ALL, "expected a cipher (chacha20-poly1305, aes-256-gcm), got 'fast'");
    let message = "expected an implementation of xor64 (straightforward, running, simd), got 'fast'";
    check_names(&Implementation::ALL, message);
}

#[test]
fn debug_shows_no_secret() {
    let (seed, cipher) = (Seed::new(&[0xab; 64]).expect("1 to 64 bytes"), AeadCipher::Aes256Gcm);
    let secret = StreamSecret::new(&[1; 8], &[2; 8], &[3; 32]);
    let keystream = secret.keystream(StreamCipher::ChaCha20, Direction::ToInitiator);
    let transforms = (Encoder::new(&seed), Decoder::new(&seed), keystream);
    assert_eq!(format!("{transforms:?}"), "(Encoder { .. }, Decoder { .. }, Keystream { .. })");
    let records = (Sealer::new(cipher, &[4; 32]), Opener::new(cipher, &[4; 32]));
    assert_eq!(format!("{records:?}"), "(Sealer { .. }, Opener { .. })");
    assert_eq!(format!("{:?}", (seed, secret)), "(Seed { .. }, StreamSecret { .. })");
}

#[test]
fn transforms_may_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<(Seed, Encoder, Decoder, StreamSecret, Keystream, Sealer, Opener)>();
}
