//! Every implementation of `xor64` compared with the definition, however a stream is split.

use plait_proto::codec::xor64::{Decoder, Encoder, Implementation, InstructionSet, Seed};
use proptest::prelude::*;
use proptest::sample::Index;

/// The definition, equation (1), sharing nothing with the crate.
fn definition(seed: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; 64 - seed.len()];
    stream.extend_from_slice(seed);
    stream.extend_from_slice(plain);
    (0..plain.len()).map(|i| stream[i..=i + 64].iter().fold(0, |sum, byte| sum ^ byte)).collect()
}

/// An implementation that the caller can choose.
#[derive(Clone, Copy, Debug)]
enum Form {
    Named(Implementation),
    Vectors(InstructionSet),
}

impl Form {
    fn all() -> Vec<Self> {
        let named = Implementation::ALL.into_iter().map(Self::Named);
        named.chain(InstructionSet::available().map(Self::Vectors)).collect()
    }

    fn encoder(self, seed: &Seed) -> Encoder {
        match self {
            Self::Named(implementation) => Encoder::with_implementation(seed, implementation),
            Self::Vectors(instructions) => Encoder::with_instruction_set(seed, instructions),
        }
    }

    fn decoder(self, seed: &Seed) -> Decoder {
        match self {
            Self::Named(implementation) => Decoder::with_implementation(seed, implementation),
            Self::Vectors(instructions) => Decoder::with_instruction_set(seed, instructions),
        }
    }
}

fn seed(bytes: &[u8]) -> Seed {
    Seed::new(bytes).expect("1 to 64 bytes")
}

/// Pseudorandom bytes, the same on every run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Checks that every implementation turns `plain` into `wire` and back when the stream is split into pieces of the given
/// lengths and the rest.
fn assert_agrees(secret: &[u8], plain: &[u8], wire: &[u8], pieces: &[usize]) {
    for form in Form::all() {
        let context = format!("{form:?}, seed of {}, {} bytes, cut {pieces:?}", secret.len(), plain.len());
        let (mut encoder, mut decoder) = (form.encoder(&seed(secret)), form.decoder(&seed(secret)));
        let mut buf = plain.to_vec();
        each_piece(pieces, plain.len(), |piece| encoder.encode_in_place(&mut buf[piece]));
        assert!(buf == wire, "encode: {context}");
        each_piece(pieces, plain.len(), |piece| decoder.decode_in_place(&mut buf[piece]));
        assert!(buf == plain, "decode: {context}");
    }
}

fn each_piece(pieces: &[usize], length: usize, mut f: impl FnMut(std::ops::Range<usize>)) {
    let mut start = 0;
    for end in pieces.iter().scan(0, |end, piece| {
        *end += piece;
        Some(*end)
    }) {
        f(start..end.min(length));
        start = end.min(length);
    }
    f(start..length);
}

#[test]
fn agrees_with_the_test_vectors() {
    let vectors = include_str!("vectors/xor64.txt");
    let bytes = |field: &str| match field {
        "-" => Vec::new(),
        digits => hex::decode(digits).expect("hexadecimal"),
    };
    assert_eq!(vectors.lines().count(), 24);
    for line in vectors.lines() {
        let [secret, plain, wire] =
            line.split(' ').map(bytes).collect::<Vec<_>>().try_into().expect("three fields");
        assert_agrees(&secret, &plain, &wire, &[]);
        assert_agrees(&secret, &plain, &wire, &[1, 0, 64, 65]);
    }
}

#[test]
fn agrees_for_every_seed_length() {
    let plain = noise(500);
    for length in 1..=64 {
        let secret = &noise(length + 100)[100..];
        assert_agrees(secret, &plain, &definition(secret, &plain), &[130, 0, 7]);
    }
}

#[test]
fn agrees_for_every_length() {
    let secret = noise(20);
    let plain = noise(4200);
    let wire = definition(&secret, &plain);
    let around = |boundary: usize| boundary - 2..=boundary + 2;
    for length in (0..=300).chain([1024, 1280, 2048, 4096].into_iter().flat_map(around)) {
        assert_agrees(&secret, &plain[..length], &wire[..length], &[]);
    }
}

#[test]
fn agrees_for_every_cut_in_two() {
    let secret = noise(32);
    let plain = noise(420);
    let wire = definition(&secret, &plain);
    for first in 0..=300 {
        assert_agrees(&secret, &plain, &wire, &[first]);
    }
}

#[test]
fn agrees_over_ten_megabytes_and_goes_back() {
    let secret = noise(32);
    let plain = noise(10_000_000);
    let wire = definition(&secret, &plain);
    let pieces = [65_536, 1448, 100, 0, 9000].repeat(131);
    for form in Form::all() {
        let mut buf = plain.clone();
        let mut encoder = form.encoder(&seed(&secret));
        each_piece(&pieces, plain.len(), |piece| encoder.encode_in_place(&mut buf[piece]));
        assert!(buf == wire, "encode: {form:?}");
        form.decoder(&seed(&secret)).decode_in_place(&mut buf);
        assert!(buf == plain, "decode: {form:?}");
    }
}

proptest! {
    #[test]
    fn agrees_for_any_seed_and_any_cut(
        secret in prop::collection::vec(any::<u8>(), 1..=64),
        plain in prop::collection::vec(any::<u8>(), 0..6000),
        pieces in prop::collection::vec(prop_oneof![0..4usize, 0..140usize, 0..2500usize], 0..40),
    ) {
        assert_agrees(&secret, &plain, &definition(&secret, &plain), &pieces);
    }

    #[test]
    fn modified_wire_byte_corrupts_nothing_before_it(
        plain in prop::collection::vec(any::<u8>(), 1..1000),
        place in any::<Index>(),
        change in 1..=255u8,
    ) {
        let at = place.index(plain.len());
        for form in Form::all() {
            let mut buf = plain.clone();
            form.encoder(&seed(b"secret")).encode_in_place(&mut buf);
            buf[at] ^= change;
            form.decoder(&seed(b"secret")).decode_in_place(&mut buf);
            prop_assert_eq!(&buf[..at], &plain[..at]);
            prop_assert_eq!(buf[at], plain[at] ^ change);
        }
    }
}

#[test]
fn refuses_seeds_of_impossible_length() {
    for (length, text) in [(0, "got 0"), (65, "got 65")] {
        let error = Seed::new(&vec![1; length]).expect_err("impossible length");
        assert_eq!(error.got, length);
        assert!(error.to_string().ends_with(text), "{error}");
    }
}
