//! `xor64`: every byte is sent XORed with the 64 bytes before it.
//!
//! This is the scrambling of Kato et al.'s "not-every-not-any" eavesdropping protection. It makes the data on one path
//! of a multipath connection unreadable at first sight to someone who captures only that path. **It is obfuscation, not
//! encryption**: see [below](#why-it-is-weak). It provides neither confidentiality against cryptanalysis nor any
//! integrity.
//!
//! # Definition
//!
//! Let `b[0], b[1], ...` be the plaintext of one direction and `B[0], B[1], ...` its form on the wire. The stream is
//! preceded by 64 bytes that only the two ends know: zeros, then the [`Seed`] (1 to 64 bytes), so that the seed's last
//! byte is `b[-1]`. With `+` for XOR:
//!
//! ```text
//! encode   B[i] = b[i] + b[i-1] + b[i-2] + ... + b[i-64]                                   (1)
//! decode   b[i] = B[i] + b[i-1] + b[i-2] + ... + b[i-64]      (the 64 bytes just recovered)  (2)
//! ```
//!
//! There is no framing, the length does not change, and the two directions are independent streams. A modified wire
//! byte corrupts the plaintext that follows it; a lower layer must carry the stream intact, as TCP does.
//!
//! # Algebra
//!
//! Write `D` for "delayed by one byte". Streams are then polynomials over GF(2) and (1) becomes `B = (1 + D + ... +
//! D^64) b`. The [`Implementation`]s use three identities.
//!
//! **Running sum.** The sum of the 64 bytes before `b[i+1]` is the sum of those before `b[i]`, with `b[i]` added and
//! `b[i-64]` removed. This takes one XOR for each instead of 64, and a ring of 64 bytes instead of a shift: `running`.
//!
//! **Doubling.** Let `w(n)` be the sum of the last `n` bytes, `w(n)[i] = b[i] + ... + b[i-n+1]`. Then
//!
//! ```text
//! w(1) = b        w(2n)[i] = w(n)[i] + w(n)[i-n]        B[i] = w(64)[i] + b[i-64]          (3)
//! ```
//!
//! since `(1 + D)(1 + D^2)(1 + D^4)...(1 + D^32) = 1 + D + ... + D^63`. Seven XORs replace 64, and none depends on a
//! neighbouring result, so that all bytes of a vector are computed at once. This is `simd` encoding.
//!
//! **Telescoping.** Adding (1) for `i` and for `i-1` leaves only the ends, `(1 + D) B = (1 + D^65) b`:
//!
//! ```text
//! b[i] = b[i-65] + B[i] + B[i-1]                                                           (4)
//! ```
//!
//! A recovered byte depends on the one 65 positions before it and on no later one, so 65 bytes are recovered at once,
//! and the next 65 need only one more XOR with them. This is `simd` decoding.
//!
//! # Why it is weak
//!
//! The only secret is the 64 bytes before the stream. An attacker who knows or guesses any 64 consecutive bytes of
//! plaintext recovers by (2) everything captured contiguously after them, and by (4), read backwards, everything before
//! them. Without known plaintext, (4) still reveals the XOR of any two plaintext bytes 65 positions apart, which is
//! enough for text in a known language.
//!
//! # Splitting the stream
//!
//! [`Encoder`] and [`Decoder`] keep only the last 64 plaintext bytes, so the stream may be split into pieces of any
//! length, including empty ones. No input causes a panic.
//!
//! ```
//! use plait_proto::codec::xor64::{Decoder, Encoder, Seed};
//!
//! let seed = Seed::new(b"known to both ends")?;
//! let (mut encoder, mut decoder) = (Encoder::new(&seed), Decoder::new(&seed));
//!
//! let mut buf = *b"attack at dawn";
//! let (first, rest) = buf.split_at_mut(6);
//! encoder.encode_in_place(first);
//! encoder.encode_in_place(rest);
//! assert_ne!(&buf, b"attack at dawn");
//! decoder.decode_in_place(&mut buf);
//! assert_eq!(&buf, b"attack at dawn");
//! # Ok::<(), plait_proto::codec::xor64::SeedLength>(())
//! ```

mod running;
mod seed;
mod simd;
mod straightforward;

pub use seed::{Seed, SeedLength};
pub use simd::InstructionSet;

use crate::derive::{named, opaque_debug};
use running::Running;
use simd::Simd;
use straightforward::Straightforward;

/// How many plaintext bytes before a byte are XORed into it.
const WINDOW: usize = 64;

/// The implementations of `xor64`. All produce the same bytes; they differ only in cost.
///
/// The papers compare the first two. Only [`Simd`](Self::Simd) is meant for use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Implementation {
    /// The literal definition: XOR 64 bytes and shift 64 bytes, for every byte.
    Straightforward,
    /// One running XOR and a ring of 64 bytes, for every byte.
    Running,
    /// Vectors, with the best [`InstructionSet`] of this processor.
    Simd,
}

named! {
    Implementation, "an implementation of xor64" {
        Straightforward = "straightforward",
        Running = "running",
        Simd = "simd",
    }
}

/// Turns the plaintext of one direction into its form on the wire.
pub struct Encoder(Stream);

impl Encoder {
    /// An encoder at the start of a stream, the fastest for this processor.
    #[must_use]
    pub fn new(seed: &Seed) -> Self {
        Self::with_implementation(seed, Implementation::Simd)
    }

    /// An encoder at the start of a stream that uses `implementation`.
    #[must_use]
    pub fn with_implementation(seed: &Seed, implementation: Implementation) -> Self {
        Self(Stream::new(seed, implementation))
    }

    /// A `simd` encoder at the start of a stream that uses `instructions` instead of the fastest available ones.
    #[must_use]
    pub fn with_instruction_set(seed: &Seed, instructions: InstructionSet) -> Self {
        Self(Stream::Simd(Simd::new(seed, instructions)))
    }

    /// Replaces the next `buf.len()` bytes of plaintext by their wire form.
    pub fn encode_in_place(&mut self, buf: &mut [u8]) {
        match &mut self.0 {
            Stream::Straightforward(stream) => stream.encode(buf),
            Stream::Running(stream) => stream.encode(buf),
            Stream::Simd(stream) => stream.encode(buf),
        }
    }
}

/// Turns the wire form of one direction back into plaintext.
pub struct Decoder(Stream);

impl Decoder {
    /// A decoder at the start of a stream, the fastest for this processor.
    #[must_use]
    pub fn new(seed: &Seed) -> Self {
        Self::with_implementation(seed, Implementation::Simd)
    }

    /// A decoder at the start of a stream that uses `implementation`.
    #[must_use]
    pub fn with_implementation(seed: &Seed, implementation: Implementation) -> Self {
        Self(Stream::new(seed, implementation))
    }

    /// A `simd` decoder at the start of a stream that uses `instructions` instead of the fastest available ones.
    #[must_use]
    pub fn with_instruction_set(seed: &Seed, instructions: InstructionSet) -> Self {
        Self(Stream::Simd(Simd::new(seed, instructions)))
    }

    /// Replaces the next `buf.len()` wire bytes by their plaintext.
    pub fn decode_in_place(&mut self, buf: &mut [u8]) {
        match &mut self.0 {
            Stream::Straightforward(stream) => stream.decode(buf),
            Stream::Running(stream) => stream.decode(buf),
            Stream::Simd(stream) => stream.decode(buf),
        }
    }
}

opaque_debug!(Encoder, Decoder);

/// One direction's state. Every variant keeps the plaintext window, so each serves either role.
enum Stream {
    Straightforward(Straightforward),
    Running(Running),
    Simd(Simd),
}

impl Stream {
    fn new(seed: &Seed, implementation: Implementation) -> Self {
        match implementation {
            Implementation::Straightforward => Self::Straightforward(Straightforward::new(seed)),
            Implementation::Running => Self::Running(Running::new(seed)),
            Implementation::Simd => Self::Simd(Simd::new(seed, InstructionSet::best())),
        }
    }
}
