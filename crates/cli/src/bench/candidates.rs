//! What is measured: every transform as a function on a set of buffers.

use std::cell::RefCell;
use std::rc::Rc;

use aes::cipher::inout::InOutBuf;
use aes::cipher::{Block, BlockCipher, BlockDecryptMut, BlockEncryptMut, InnerIvInit, Key, KeyInit};
use plait_codec::xor64::{Decoder, Encoder, Implementation, InstructionSet, Seed};
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, Tag,
    UnboundKey,
};

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

/// A transform in one direction.
pub(super) struct Candidate {
    /// As in the JSON output and the tables.
    pub(super) name: String,
    pub(super) direction: Direction,
    /// Brings the buffers into the state that `pass` needs; not timed.
    pub(super) prepare: Box<dyn FnMut(&mut Buffers)>,
    /// Transforms every buffer once; timed.
    pub(super) pass: Box<dyn FnMut(&mut Buffers)>,
}

impl Candidate {
    fn new(name: impl Into<String>, direction: Direction, mut each: impl FnMut(&mut [u8]) + 'static) -> Self {
        let pass = move |buffers: &mut Buffers| buffers.each().for_each(&mut each);
        Self { name: name.into(), direction, prepare: Box::new(|_| ()), pass: Box::new(pass) }
    }
}

/// All candidates: the forms of `xor64`, then the ciphers in the order of the papers' comparison (DES, TDEA, AES),
/// then what one would take today, then copying.
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
    candidates.extend(block_modes::<des::Des>("des"));
    candidates.extend(block_modes::<des::TdesEde3>("tdea"));
    candidates.extend(block_modes::<aes::Aes128>("aes-128"));
    candidates.extend(block_modes::<aes::Aes192>("aes-192"));
    candidates.extend(block_modes::<aes::Aes256>("aes-256"));
    candidates.extend(aead("aes-128-gcm-ring", &AES_128_GCM));
    candidates.extend(aead("aes-256-gcm-ring", &AES_256_GCM));
    candidates.extend(aead("chacha20-poly1305-ring", &CHACHA20_POLY1305));
    candidates.push(memcpy());
    candidates
}

fn seed() -> Seed {
    Seed::new(b"32 bytes, as HMAC-SHA256 gives..").expect("32 bytes are a seed")
}

fn xor64(name: String, mut encoder: Encoder, mut decoder: Decoder) -> [Candidate; 2] {
    [
        Candidate::new(name.clone(), Direction::Encode, move |buf| encoder.encode_in_place(buf)),
        Candidate::new(name, Direction::Decode, move |buf| decoder.decode_in_place(buf)),
    ]
}

/// ECB and CBC, both directions.
fn block_modes<C>(name: &str) -> [Candidate; 4]
where
    C: BlockCipher + BlockEncryptMut + BlockDecryptMut + KeyInit + 'static,
{
    let (ecb, cbc) = (format!("{name}-ecb"), format!("{name}-cbc"));
    let cipher = || {
        let mut key = Key::<C>::default();
        key.iter_mut().zip(1..).for_each(|(byte, i)| *byte = i);
        C::new(&key)
    };
    let iv = Block::<C>::default();
    [
        Candidate::new(ecb.clone(), Direction::Encode, encrypting(cipher())),
        Candidate::new(ecb, Direction::Decode, decrypting(cipher())),
        Candidate::new(
            cbc.clone(),
            Direction::Encode,
            encrypting(cbc::Encryptor::inner_iv_init(cipher(), &iv)),
        ),
        Candidate::new(cbc, Direction::Decode, decrypting(cbc::Decryptor::inner_iv_init(cipher(), &iv))),
    ]
}

/// Encrypts whole blocks: all sizes that are measured consist of such. A cipher by itself is ECB.
fn encrypting(mut mode: impl BlockEncryptMut + 'static) -> impl FnMut(&mut [u8]) {
    move |buf| mode.encrypt_blocks_inout_mut(InOutBuf::from(buf).into_chunks().0)
}

fn decrypting(mut mode: impl BlockDecryptMut + 'static) -> impl FnMut(&mut [u8]) {
    move |buf| mode.decrypt_blocks_inout_mut(InOutBuf::from(buf).into_chunks().0)
}

/// Sealing, and opening what was sealed since the last pass.
fn aead(name: &str, algorithm: &'static Algorithm) -> [Candidate; 2] {
    let mut sealer = Aead::new(algorithm);
    let seal = Candidate::new(name, Direction::Encode, move |buf| {
        let _tag = std::hint::black_box(sealer.seal(buf).1);
    });

    let mut sealer = Aead::new(algorithm);
    let opener = Aead::new(algorithm);
    let sealed = Rc::new(RefCell::new(Vec::new()));
    let to_open = Rc::clone(&sealed);
    let open = Candidate {
        name: name.to_owned(),
        direction: Direction::Decode,
        prepare: Box::new(move |buffers| {
            let mut sealed = sealed.borrow_mut();
            sealed.clear();
            sealed.extend(buffers.each().map(|buf| sealer.seal(buf)));
        }),
        pass: Box::new(move |buffers| {
            for (buf, (nonce, tag)) in buffers.each().zip(to_open.borrow_mut().drain(..)) {
                opener.open(nonce, tag, buf);
            }
        }),
    };
    [seal, open]
}

struct Aead {
    key: LessSafeKey,
    sealed: u64,
}

impl Aead {
    fn new(algorithm: &'static Algorithm) -> Self {
        let key = UnboundKey::new(algorithm, &[7; 32][..algorithm.key_len()])
            .expect("as long as the algorithm says");
        Self { key: LessSafeKey::new(key), sealed: 0 }
    }

    /// Seals `buf` with a nonce not used before, which it returns with the tag.
    fn seal(&mut self, buf: &mut [u8]) -> (u64, Tag) {
        self.sealed += 1;
        let sealed = self.key.seal_in_place_separate_tag(nonce(self.sealed), Aad::empty(), buf);
        (self.sealed, sealed.expect("far from the algorithm's limit"))
    }

    fn open(&self, number: u64, tag: Tag, buf: &mut [u8]) {
        let opened = self.key.open_in_place_separate_tag(nonce(number), Aad::empty(), tag, buf, 0..);
        assert!(opened.is_ok(), "what was sealed with the same key and nonce opens");
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
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
        prepare: Box::new(|_| ()),
        pass: Box::new(pass),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 17] = [
        "straightforward",
        "running",
        "simd",
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
            let mut buffers = Buffers::new(64, 5);
            let plain = buffers.memory.clone();
            (encode.pass)(&mut buffers);
            assert_ne!(buffers.memory, plain, "{}", encode.name);
            if encode.name.ends_with("-ring") {
                buffers.memory.clone_from(&plain);
                (decode.prepare)(&mut buffers);
                assert_ne!(buffers.memory, plain, "{}", decode.name);
            }
            (decode.pass)(&mut buffers);
            assert_eq!(buffers.memory, plain, "{}", decode.name);
        }
    }
}
