//! What is measured: every transform as a function on a set of buffers.

mod ciphers;
mod modes;
mod rejected;

use plait_proto::xor64::{Decoder, Encoder, Implementation, InstructionSet, Seed};
use ring::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305};

use ciphers::{aead, block_modes};

/// Which way a transform goes: encode, encrypt, seal, copy; or decode, decrypt, open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Encode,
    Decode,
}

impl Direction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Encode => "encode",
            Self::Decode => "decode",
        }
    }
}

/// Equally long buffers, one after the other in memory.
pub(super) struct Buffers {
    memory: Vec<u8>,
    start: usize,
    size: usize,
}

impl Buffers {
    /// `count` buffers of `size` bytes, the first of which begins a cache line.
    pub(super) fn new(size: usize, count: usize) -> Self {
        const LINE: usize = 64;
        let memory = vec![0x5a; size * count + LINE];
        let start = memory.as_ptr().align_offset(LINE);
        Self { memory, start, size }
    }

    /// The bytes of all buffers together.
    pub(super) fn total(&self) -> usize {
        (self.memory.len() - self.start) / self.size * self.size
    }

    fn each(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.memory[self.start..].chunks_exact_mut(self.size)
    }
}

/// What a transform puts on the paths.
#[derive(Clone, Copy)]
pub(super) struct Wire {
    /// Bytes on all paths together for a piece of so many bytes.
    pub(super) bytes: fn(usize) -> usize,
    /// What somebody learns who captures one path of two, does not have what is secret, knows everything else, and
    /// computes.
    pub(super) one_path_of_two: &'static str,
}

/// A transform in one direction.
pub(super) struct Candidate {
    /// As in the JSON output and the tables.
    pub(super) name: String,
    pub(super) direction: Direction,
    pub(super) wire: Wire,
    /// Brings the buffers into the state that `pass` needs; not timed.
    pub(super) prepare: Box<dyn FnMut(&mut Buffers)>,
    /// Transforms every buffer once; timed.
    pub(super) pass: Box<dyn FnMut(&mut Buffers)>,
}

impl Candidate {
    /// One that works in place, on buffers of any content.
    fn new(
        name: impl Into<String>,
        direction: Direction,
        wire: Wire,
        mut each: impl FnMut(&mut [u8]) + 'static,
    ) -> Self {
        let pass = move |buffers: &mut Buffers| buffers.each().for_each(&mut each);
        Self { name: name.into(), direction, wire, prepare: Box::new(|_| ()), pass: Box::new(pass) }
    }
}

/// All candidates: the forms of `xor64`, then the modes that encrypt, then the ciphers in the order of the papers'
/// comparison (DES, TDEA, AES), then AEADs by themselves, then what the papers rejected, then copying.
pub(super) fn all() -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for implementation in Implementation::ALL {
        candidates.extend(xor64(
            implementation.name().to_owned(),
            Encoder::with_implementation(&seed(), implementation),
            Decoder::with_implementation(&seed(), implementation),
        ));
    }
    for instructions in InstructionSet::available().filter(|set| *set != InstructionSet::best()) {
        candidates.extend(xor64(
            format!("simd-{instructions}"),
            Encoder::with_instruction_set(&seed(), instructions),
            Decoder::with_instruction_set(&seed(), instructions),
        ));
    }
    candidates.extend(modes::all());
    candidates.extend(block_modes::<des::Des>("des"));
    candidates.extend(block_modes::<des::TdesEde3>("tdea"));
    candidates.extend(block_modes::<aes::Aes128>("aes-128"));
    candidates.extend(block_modes::<aes::Aes192>("aes-192"));
    candidates.extend(block_modes::<aes::Aes256>("aes-256"));
    candidates.extend(aead("aes-128-gcm-ring", &AES_128_GCM));
    candidates.extend(aead("aes-256-gcm-ring", &AES_256_GCM));
    candidates.extend(aead("chacha20-poly1305-ring", &CHACHA20_POLY1305));
    candidates.extend(rejected::all());
    candidates.push(memcpy());
    candidates
}

fn seed() -> Seed {
    Seed::new(b"32 bytes, as HMAC-SHA256 gives..").expect("32 bytes are a seed")
}

fn xor64(name: String, mut encoder: Encoder, mut decoder: Decoder) -> [Candidate; 2] {
    const XOR64: Wire = Wire { bytes: |size| size, one_path_of_two: "the text that it carries" };
    [
        Candidate::new(name.clone(), Direction::Encode, XOR64, move |buf| encoder.encode_in_place(buf)),
        Candidate::new(name, Direction::Decode, XOR64, move |buf| decoder.decode_in_place(buf)),
    ]
}

fn memcpy() -> Candidate {
    let mut copies = Vec::new();
    let pass = move |buffers: &mut Buffers| {
        copies.resize(buffers.total(), 0);
        let size = buffers.size;
        for (buf, copy) in buffers.each().zip(copies.chunks_exact_mut(size)) {
            copy.copy_from_slice(buf);
        }
        std::hint::black_box(&mut copies);
    };
    Candidate {
        name: "memcpy".to_owned(),
        direction: Direction::Encode,
        wire: Wire { bytes: |size| size, one_path_of_two: "all that it carries" },
        prepare: Box::new(|_| ()),
        pass: Box::new(pass),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 27] = [
        "straightforward",
        "running",
        "simd",
        "stream-aes-256-ctr",
        "stream-chacha20",
        "sealed-chacha20-poly1305",
        "sealed-aes-256-gcm",
        "des-ecb",
        "des-cbc",
        "tdea-ecb",
        "tdea-cbc",
        "aes-128-ecb",
        "aes-128-cbc",
        "aes-192-ecb",
        "aes-192-cbc",
        "aes-256-ecb",
        "aes-256-cbc",
        "aes-128-gcm-ring",
        "aes-256-gcm-ring",
        "chacha20-poly1305-ring",
        "xor-sharing-2-of-2",
        "shamir-2-of-2",
        "shamir-2-of-3",
        "packet-pairs-half",
        "packet-pairs-both",
        "block-chaining",
        "memcpy",
    ];

    #[test]
    fn every_transform_is_there_in_both_directions() {
        let candidates = all();
        let has = |name, direction| candidates.iter().any(|c| c.name == name && c.direction == direction);
        for name in NAMES {
            assert!(has(name, Direction::Encode), "{name}");
            assert!(has(name, Direction::Decode) || name == "memcpy", "{name}");
        }
    }

    #[test]
    fn decoding_undoes_encoding_and_encoding_does_something() {
        let mut candidates = all();
        candidates.retain(|c| c.name != "memcpy");
        let (pairs, rest) = candidates.as_chunks_mut::<2>();
        assert!(rest.is_empty());
        for [encode, decode] in pairs {
            assert_eq!(encode.name, decode.name);
            let name = &encode.name;
            let mut buffers = Buffers::new(64, 5);
            buffers.memory.iter_mut().zip((0..=255).cycle()).for_each(|(byte, i)| *byte = i);
            let plain = buffers.memory.clone();

            (encode.prepare)(&mut buffers);
            (encode.pass)(&mut buffers);
            let elsewhere = name.starts_with("sealed-") || name.contains("-of-");
            assert_eq!(buffers.memory == plain, elsewhere, "{name}");

            if name.ends_with("-ring") {
                buffers.memory.clone_from(&plain);
            }
            (decode.prepare)(&mut buffers);
            if name.contains("-of-") {
                buffers.each().for_each(|buf| buf.fill(0));
            }
            (decode.pass)(&mut buffers);
            assert!(buffers.memory == plain, "{name}");
        }
    }

    #[test]
    fn expansion_is_what_the_wire_has() {
        let bytes = |name: &str, size| {
            let candidate = all().into_iter().find(|c| c.name == name).expect("a candidate");
            (candidate.wire.bytes)(size)
        };
        assert_eq!(bytes("stream-chacha20", 1280), 1280);
        assert_eq!(bytes("sealed-aes-256-gcm", 1280), 1298);
        assert_eq!(bytes("sealed-aes-256-gcm", 16_384), 16_402);
        assert_eq!(bytes("sealed-aes-256-gcm", 16_385), 16_385 + 2 * 18);
        assert_eq!(bytes("xor-sharing-2-of-2", 1280), 2560);
        assert_eq!(bytes("shamir-2-of-3", 1280), 3840);
        assert_eq!(bytes("packet-pairs-both", 1280), 1280);
    }
}
