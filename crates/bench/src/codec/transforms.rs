//! The list of all transforms that are measured.

use plait_proto::codec::xor64::{Decoder, Encoder, Implementation, InstructionSet, Seed};
use ring::aead::{AES_128_GCM, AES_256_GCM, CHACHA20_POLY1305};

use super::ciphers::{aead, block_modes, bytewise};
use super::transform::{Buffers, Direction, Transform, Wire};
use super::{modes, rejected};

/// All transforms: the implementations of `xor64`, the modes that encrypt, the ciphers in the order of the papers'
/// comparison (DES, TDEA, AES), bare AEADs, the rejected and other designs, and memcpy.
pub(super) fn all() -> Vec<Transform> {
    let mut transforms = Vec::new();
    for implementation in Implementation::ALL {
        transforms.extend(xor64(
            implementation.name().to_owned(),
            Encoder::with_implementation(&seed(), implementation),
            Decoder::with_implementation(&seed(), implementation),
        ));
    }
    for instructions in InstructionSet::available().filter(|set| *set != InstructionSet::best()) {
        transforms.extend(xor64(
            format!("simd-{instructions}"),
            Encoder::with_instruction_set(&seed(), instructions),
            Decoder::with_instruction_set(&seed(), instructions),
        ));
    }
    transforms.extend(modes::all());
    transforms.extend(block_modes::<des::Des>("des"));
    transforms.extend(block_modes::<des::TdesEde3>("tdea"));
    transforms.extend(block_modes::<aes::Aes128>("aes-128"));
    transforms.extend(block_modes::<aes::Aes192>("aes-192"));
    transforms.extend(block_modes::<aes::Aes256>("aes-256"));
    transforms.extend([128, 192, 256].into_iter().flat_map(bytewise));
    transforms.extend(aead("aes-128-gcm-ring", &AES_128_GCM));
    transforms.extend(aead("aes-256-gcm-ring", &AES_256_GCM));
    transforms.extend(aead("chacha20-poly1305-ring", &CHACHA20_POLY1305));
    transforms.extend(rejected::all());
    transforms.push(memcpy());
    transforms
}

fn seed() -> Seed {
    Seed::new(b"32 bytes, as HMAC-SHA256 gives..").expect("32 bytes are a seed")
}

fn xor64(name: String, mut encoder: Encoder, mut decoder: Decoder) -> [Transform; 2] {
    const XOR64: Wire = Wire { bytes: |size| size, one_path_of_two: "the text that it carries" };
    [
        Transform::new(name.clone(), Direction::Encode, XOR64, move |buf| encoder.encode_in_place(buf)),
        Transform::new(name, Direction::Decode, XOR64, move |buf| decoder.decode_in_place(buf)),
    ]
}

fn memcpy() -> Transform {
    let mut copies = Vec::new();
    let pass = move |buffers: &mut Buffers| {
        copies.resize(buffers.total(), 0);
        let size = buffers.size();
        for (buf, copy) in buffers.each().zip(copies.chunks_exact_mut(size)) {
            copy.copy_from_slice(buf);
        }
        std::hint::black_box(&mut copies);
    };
    Transform {
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

    const NAMES: [&str; 33] = [
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
        "aes-128-bytewise-ecb",
        "aes-192-bytewise-ecb",
        "aes-256-bytewise-ecb",
        "aes-128-gcm-ring",
        "aes-256-gcm-ring",
        "chacha20-poly1305-ring",
        "xor-sharing-2-of-2",
        "shamir-2-of-2",
        "shamir-2-of-3",
        "packet-pairs-half",
        "packet-pairs-both",
        "block-chaining",
        "aes-128-ofb",
        "encrypt-and-shuffle",
        "aont",
        "memcpy",
    ];

    #[test]
    fn has_every_transform_in_both_directions() {
        let transforms = all();
        let has = |name, direction| transforms.iter().any(|c| c.name == name && c.direction == direction);
        for name in NAMES {
            assert!(has(name, Direction::Encode), "{name}");
            assert!(has(name, Direction::Decode) || name == "memcpy", "{name}");
        }
    }

    #[test]
    fn decoding_inverts_encoding() {
        let mut transforms = all();
        transforms.retain(|c| c.name != "memcpy");
        let (pairs, rest) = transforms.as_chunks_mut::<2>();
        assert!(rest.is_empty());
        for [encode, decode] in pairs {
            assert_eq!(encode.name, decode.name);
            let name = &encode.name;
            let mut buffers = Buffers::new(64, 5);
            buffers.memory().iter_mut().zip((0..=255).cycle()).for_each(|(byte, i)| *byte = i);
            let plain = buffers.memory().clone();

            (encode.prepare)(&mut buffers);
            (encode.pass)(&mut buffers);
            let elsewhere = name.starts_with("sealed-") || name.contains("-of-");
            assert_eq!(*buffers.memory() == plain, elsewhere, "{name}");

            // Decoding prepares what it decodes.
            if name.ends_with("-ring") || name == "aont" {
                buffers.memory().clone_from(&plain);
            }
            (decode.prepare)(&mut buffers);
            if name.contains("-of-") {
                buffers.each().for_each(|buf| buf.fill(0));
            }
            (decode.pass)(&mut buffers);
            assert!(*buffers.memory() == plain, "{name}");
        }
    }

    /// NIST SP 800-38A, F.4.1, with the key of the measurement instead: the first block of output feedback is the cipher of the
    /// initialization vector, the second the cipher of the first.
    #[test]
    fn output_feedback_encrypts_its_own_output() {
        use aes::cipher::{BlockCipherEncrypt, KeyInit};
        let mut ofb = all().into_iter().find(|c| c.name == "aes-128-ofb").expect("a transform");
        let mut buffers = Buffers::new(64, 1);
        buffers.each().for_each(|buf| buf.fill(0));
        (ofb.pass)(&mut buffers);
        let cipher = aes::Aes128::new(&[7; 16].into());
        let mut block = aes::Block::default();
        for output in buffers.each().next().expect("one buffer").chunks(16) {
            cipher.encrypt_block(&mut block);
            assert_eq!(output, block.as_slice());
        }
    }

    #[test]
    fn expansion_counts_tags_and_shares() {
        let bytes = |name: &str, size| {
            let transform = all().into_iter().find(|c| c.name == name).expect("a transform");
            (transform.wire.bytes)(size)
        };
        assert_eq!(bytes("stream-chacha20", 1280), 1280);
        assert_eq!(bytes("sealed-aes-256-gcm", 1280), 1299);
        assert_eq!(bytes("sealed-aes-256-gcm", 16_384), 16_403);
        assert_eq!(bytes("sealed-aes-256-gcm", 16_385), 16_385 + 2 * 19);
        assert_eq!(bytes("xor-sharing-2-of-2", 1280), 2560);
        assert_eq!(bytes("shamir-2-of-3", 1280), 3840);
        assert_eq!(bytes("packet-pairs-both", 1280), 1280);
        assert_eq!(bytes("aont", 1280), 1296);
    }
}
