use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use chacha20::cipher::StreamCipherSeek;
use hmac::{Hmac, Mac};
use proptest::prelude::*;
use sha2::Sha256;

use super::*;

const INITIATOR_KEY: [u8; 8] = *b"initiatr";
const RESPONDER_KEY: [u8; 8] = *b"responde";
const RANDOM: [u8; RANDOM_LEN] = *b"thirty-two bytes that are random";
const DIRECTIONS: [Direction; 2] = [Direction::ToResponder, Direction::ToInitiator];

fn secret() -> StreamSecret {
    StreamSecret::new(&INITIATOR_KEY, &RESPONDER_KEY, &RANDOM)
}

/// A keystream in the middle of an epoch, because reaching its end takes too long.
fn starting_at(
    position: u64,
    secret: &StreamSecret,
    cipher: StreamCipher,
    direction: Direction,
) -> Keystream {
    let mut keystream = secret.keystream(cipher, direction);
    keystream.begin(position / EPOCH);
    match &mut keystream.generator {
        Generator::Aes256Ctr(generator) => generator.seek(position % EPOCH),
        Generator::ChaCha20(generator) => generator.seek(position % EPOCH),
    }
    keystream.left -= position % EPOCH;
    keystream
}

/// The module's definition, byte by byte, sharing nothing but the AES block.
fn definition(position: u64, length: usize, material: &[u8], cipher: StreamCipher, direction: u8) -> Vec<u8> {
    let extracted = hmac(b"plait stream 1", material);
    let byte = |position: u64| {
        let (epoch, within) = (position >> 36, position & ((1 << 36) - 1));
        let mut info = vec![direction];
        info.extend_from_slice(&epoch.to_be_bytes());
        info.push(1);
        let key = hmac(&extracted, &info);
        match cipher {
            StreamCipher::Aes256Ctr => {
                let mut block = u128::from(within / 16).to_be_bytes().into();
                Aes256::new(&key.into()).encrypt_block(&mut block);
                block[(within % 16) as usize]
            }
            StreamCipher::ChaCha20 => chacha20_block(&key, (within / 64) as u32)[(within % 64) as usize],
        }
    };
    (position..).map(byte).take(length).collect()
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).expect("any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// RFC 8439, section 2.3, with nonce 0.
fn chacha20_block(key: &[u8; 32], counter: u32) -> [u8; 64] {
    let mut start = [0_u32; 16];
    start[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
    for (word, bytes) in start[4..12].iter_mut().zip(key.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    start[12] = counter;
    let mut state = start;
    let mut quarter = |a: usize, b: usize, c: usize, d: usize| {
        for (x, y, z, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
            state[x] = state[x].wrapping_add(state[y]);
            state[z] = (state[z] ^ state[x]).rotate_left(by);
        }
    };
    for _ in 0..10 {
        for column in 0..4 {
            quarter(column, 4 + column, 8 + column, 12 + column);
        }
        for column in 0..4 {
            quarter(column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4);
        }
    }
    let mut block = [0; 64];
    for ((bytes, word), first) in block.as_chunks_mut().0.iter_mut().zip(state).zip(start) {
        *bytes = word.wrapping_add(first).to_le_bytes();
    }
    block
}

fn material() -> Vec<u8> {
    [&INITIATOR_KEY[..], &RESPONDER_KEY, &RANDOM].concat()
}

fn bytes(digits: &str) -> Vec<u8> {
    hex::decode(digits.replace(char::is_whitespace, "")).expect("hexadecimal")
}

#[test]
fn aes_in_counter_mode_is_that_of_nist() {
    let key: [u8; 32] = bytes("603deb1015ca71be2b73aef0857d7781 1f352c073b6108d72d9810a30914dff4")
        .try_into()
        .expect("32 bytes");
    let counter: [u8; 16] = bytes("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff").try_into().expect("16 bytes");
    let mut text = bytes(
        "6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51
         30c81c46a35ce411e5fbc1191a0a52ef f69f2445df4f9b17ad2b417be66c3710",
    );
    Ctr64BE::<Aes256Enc>::new(&key.into(), &counter.into()).apply_keystream(&mut text);
    let expected = bytes(
        "601ec313775789a5b7a7f504bbf3d228 f443e3ca4d62b59aca84e990cacaf5c5
         2b0930daa23de94ce87017ba2d84988d dfc9c58db67aada613c2dd08457941a6",
    );
    assert_eq!(text, expected, "NIST SP 800-38A, F.5.5");
}

/// The first blocks under an all-zero key, as they occur in test cases 13 and 14 of the GCM specification.
#[test]
fn aes_counter_starts_at_zero_and_is_big_endian() {
    let mut blocks = [0; 48];
    Generator::new(StreamCipher::Aes256Ctr, &[0; 32]).apply(&mut blocks);
    let expected = "dc95c078a2408989ad48a21492842087 530f8afbc74536b9a963b4f1c4cb738b
                    cea7403d4d606b6e074ec5d3baf39d18";
    assert_eq!(blocks, *bytes(expected));
}

#[test]
fn chacha20_is_that_of_rfc_8439() {
    let key: [u8; 32] = std::array::from_fn(|i| i as u8);
    let nonce = [0, 0, 0, 0, 0, 0, 0, 0x4a, 0, 0, 0, 0];
    let mut text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the \
                     future, sunscreen would be it."
        .to_vec();
    let mut chacha20 = ChaCha20::new(&key.into(), &nonce.into());
    chacha20.seek(64);
    chacha20.apply_keystream(&mut text);
    let expected = bytes(
        "6e2e359a2568f98041ba0728dd0d6981 e97e7aec1d4360c20a27afccfd9fae0b
         f91b65c5524733ab8f593dabcd62b357 1639d624e65152ab8f530c359f0861d8
         07ca0dbf500d6a6156a38e088a22b65e 52bc514d16ccf806818ce91ab7793736
         5af90bbf74a35be6b40b8eedf2785e42 874d",
    );
    assert_eq!(text, expected, "section 2.4.2");

    let mut blocks = [0; 128];
    Generator::new(StreamCipher::ChaCha20, &[0; 32]).apply(&mut blocks);
    let expected = bytes(
        "76b8e0ada0f13d90405d6ae55386bd28 bdd219b8a08ded1aa836efcc8b770dc7
         da41597c5157488d7724e03fb8d84a37 6a43b8f41518a11cc387b669b2ee6586
         9f07e7be5551387a98ba977c732d080d cb0f29a048e3656912c6533e32ee7aed
         29b721769ce64e43d57133b074d839d5 31ed1f28510afb45ace10a1f4b794d6f",
    );
    assert_eq!(blocks, *expected, "appendix A.1, vectors 1 and 2");
}

#[test]
fn agrees_with_the_test_vectors() {
    let vectors = include_str!("../../../tests/vectors/stream.txt");
    assert_eq!(vectors.lines().count(), 24);
    for line in vectors.lines() {
        let [cipher, material, direction, position, plain, wire] =
            line.split(' ').collect::<Vec<_>>().try_into().expect("six fields");
        let material = bytes(material);
        let (keys, random) = material.split_at(16);
        let (initiator, responder) = keys.split_at(8);
        let secret = StreamSecret::new(
            initiator.try_into().expect("8 bytes"),
            responder.try_into().expect("8 bytes"),
            random.try_into().expect("32 bytes"),
        );
        let direction = DIRECTIONS[direction.parse::<usize>().expect("0 or 1")];
        let position = position.parse().expect("a number");
        let mut buf = bytes(plain);
        starting_at(position, &secret, cipher.parse().expect("a cipher"), direction).apply(&mut buf);
        assert_eq!(hex::encode(buf), wire, "{line}");
    }
}

#[test]
fn agrees_with_the_definition_from_the_start() {
    for cipher in StreamCipher::ALL {
        for direction in DIRECTIONS {
            let mut buf = vec![0; 3000];
            secret().keystream(cipher, direction).apply(&mut buf);
            let expected = definition(0, buf.len(), &material(), cipher, direction.byte());
            assert!(buf == expected, "{cipher} {direction:?}");
        }
    }
}

proptest! {
    #[test]
    fn result_does_not_depend_on_splitting(
        plain in prop::collection::vec(any::<u8>(), 0..6000),
        pieces in prop::collection::vec(prop_oneof![0..4_usize, 0..140_usize, 0..2500_usize], 0..40),
    ) {
        for cipher in StreamCipher::ALL {
            let mut whole = plain.clone();
            secret().keystream(cipher, Direction::ToResponder).apply(&mut whole);
            let mut cut = plain.clone();
            apply_in_pieces(&mut secret().keystream(cipher, Direction::ToResponder), &mut cut, &pieces);
            prop_assert!(cut == whole);
            secret().keystream(cipher, Direction::ToResponder).apply(&mut cut);
            prop_assert!(cut == plain);
        }
    }

    #[test]
    fn epochs_begin_at_their_boundaries(
        epoch in prop_oneof![Just(1_u64), Just(2), Just(1 << 27)],
        before in 0..200_u64,
        length in 0..400_usize,
        pieces in prop::collection::vec(0..100_usize, 0..10),
    ) {
        let position = epoch * EPOCH - before;
        for cipher in StreamCipher::ALL {
            for direction in DIRECTIONS {
                let mut buf = vec![0; length];
                apply_in_pieces(&mut starting_at(position, &secret(), cipher, direction), &mut buf, &pieces);
                prop_assert!(buf == definition(position, length, &material(), cipher, direction.byte()));
            }
        }
    }
}

fn apply_in_pieces(keystream: &mut Keystream, mut bytes: &mut [u8], pieces: &[usize]) {
    for piece in pieces {
        let (now, later) = bytes.split_at_mut(*piece.min(&bytes.len()));
        keystream.apply(now);
        bytes = later;
    }
    keystream.apply(bytes);
}

#[test]
fn keystreams_are_distinct() {
    let first = |secret: &StreamSecret, cipher, direction, position| {
        let mut buf = [0; 32];
        starting_at(position, secret, cipher, direction).apply(&mut buf);
        buf
    };
    let other_keys = [
        StreamSecret::new(b"initiatR", &RESPONDER_KEY, &RANDOM),
        StreamSecret::new(&INITIATOR_KEY, b"respondE", &RANDOM),
        StreamSecret::new(&INITIATOR_KEY, &RESPONDER_KEY, b"thirty-two bytes that are randoM"),
        StreamSecret::new(&RESPONDER_KEY, &INITIATOR_KEY, &RANDOM),
    ];
    let mut seen = Vec::new();
    for cipher in StreamCipher::ALL {
        for secret in other_keys.iter().chain([&secret()]) {
            for direction in DIRECTIONS {
                for epoch in 0..3 {
                    seen.push(first(secret, cipher, direction, epoch * EPOCH));
                }
            }
        }
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all);
}
