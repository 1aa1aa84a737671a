//! The designs that the papers considered and rejected, and others for path dispersion.

use aes::Aes128;
use aes::cipher::{
    Block, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InOutBuf, InnerIvInit, Key, KeyInit,
};

use crate::rejected::block_chaining::{BLOCK, Chain};
use crate::rejected::encrypt_and_shuffle::{shuffle, unshuffle};
use crate::rejected::package_transform::{self, PackageTransform};
use crate::rejected::packet_pairs::{self, Code};
use crate::rejected::sharing::{combine_shamir, combine_xor, split_shamir, split_xor};
use plait_proto::codec::stream::StreamCipher;

use super::modes::keystream;
use super::transform::{Buffers, Direction, Transform, Wire};

pub(super) fn all() -> Vec<Transform> {
    let of_two = Wire { bytes: |size| 2 * size, one_path_of_two: "nothing" };
    // Two paths for three shares: one of them carries two.
    let of_three =
        Wire { bytes: |size| 3 * size, one_path_of_two: "everything, on the path with two of the shares" };
    let mut transforms = Vec::new();
    transforms.extend(sharing("xor-sharing-2-of-2", of_two, split_xor, combine_xor));
    transforms.extend(sharing("shamir-2-of-2", of_two, split_shamir, combine_first_two));
    transforms.extend(sharing("shamir-2-of-3", of_three, split_shamir, combine_first_two));
    transforms.extend(pairs("packet-pairs-half", Code::Half, "every second packet, or the XOR of every two"));
    transforms.extend(pairs("packet-pairs-both", Code::Both, "one of every two packets, given the other"));
    transforms.extend(chaining());
    transforms.extend(ofb());
    transforms.extend(encrypt_and_shuffle());
    transforms.extend(packages());
    transforms
}

type Split = fn(&[u8], &mut [Vec<u8>], &mut dyn FnMut(&mut [u8]));
type Combine = fn(&[Vec<u8>], &mut [u8]);

fn combine_first_two(shares: &[Vec<u8>], secret: &mut [u8]) {
    combine_shamir([(1, &shares[0]), (2, &shares[1])], secret);
}

/// A source of random bytes: the fastest keystream of this processor.
fn random() -> impl FnMut(&mut [u8]) {
    let cipher = if StreamCipher::aes_is_fast() { StreamCipher::Aes256Ctr } else { StreamCipher::ChaCha20 };
    let mut keystream = keystream(cipher);
    move |bytes| {
        bytes.fill(0);
        keystream.apply(bytes);
    }
}

/// Splitting a buffer into shares, and combining shares made off the clock. Drawing random bytes counts.
fn sharing(name: &str, wire: Wire, split: Split, combine: Combine) -> [Transform; 2] {
    let share_count = (wire.bytes)(1);
    let (mut shares, mut random_of_encode) = (vec![Vec::new(); share_count], random());
    let encode = Transform::new(name, Direction::Encode, wire, move |buf| {
        split(buf, &mut shares, &mut random_of_encode);
        std::hint::black_box(&mut shares);
    });

    let mut random_of_decode = random();
    let split_all = move |all_shares: &mut Vec<Vec<Vec<u8>>>, buffers: &mut Buffers| {
        all_shares.resize(buffers.total() / buffers.size(), vec![Vec::new(); share_count]);
        for (buf, shares) in buffers.each().zip(all_shares) {
            split(buf, shares, &mut random_of_decode);
        }
    };
    let decode = Transform::prepared(name, Direction::Decode, wire, split_all, move |all_shares, buffers| {
        for (buf, shares) in buffers.each().zip(all_shares) {
            combine(shares, buf);
        }
    });
    [encode, decode]
}

/// Pairs of packets: the two halves of a buffer; all sizes are even.
fn pairs(name: &str, code: Code, one_path_of_two: &'static str) -> [Transform; 2] {
    let wire = Wire { bytes: |size| size, one_path_of_two };
    [
        Transform::new(name, Direction::Encode, wire, move |buf| {
            let (a, b) = buf.split_at_mut(buf.len() / 2);
            packet_pairs::encode(code, a, b);
        }),
        Transform::new(name, Direction::Decode, wire, move |buf| {
            let (first, second) = buf.split_at_mut(buf.len() / 2);
            packet_pairs::decode(code, first, second);
        }),
    ]
}

fn chaining() -> [Transform; 2] {
    const WIRE: Wire =
        Wire { bytes: |size| size, one_path_of_two: "all but the first block of each contiguous run" };
    let chain = || Chain::new([9; BLOCK]);
    let (mut encoder, mut decoder) = (chain(), chain());
    [
        Transform::new("block-chaining", Direction::Encode, WIRE, move |buf| {
            encoder.encode(buf.as_chunks_mut().0);
        }),
        Transform::new("block-chaining", Direction::Decode, WIRE, move |buf| {
            decoder.decode(buf.as_chunks_mut().0);
        }),
    ]
}

/// Output feedback (NIST SP 800-38A, section 6.4) with AES-128: the key stream is the cipher of its own last block. Whole blocks
/// only: all measured sizes are multiples of a block.
fn ofb() -> [Transform; 2] {
    const WIRE: Wire = Wire { bytes: |size| size, one_path_of_two: "nothing" };
    [Direction::Encode, Direction::Decode].map(|direction| {
        let cipher = Aes128::new(&key());
        let mut feedback = Block::<Aes128>::default();
        Transform::new("aes-128-ofb", direction, WIRE, move |buf| {
            for block in buf.chunks_mut(feedback.len()) {
                cipher.encrypt_block(&mut feedback);
                block.iter_mut().zip(&feedback).for_each(|(byte, mask)| *byte ^= mask);
            }
        })
    })
}

fn encrypt_and_shuffle() -> [Transform; 2] {
    const NAME: &str = "encrypt-and-shuffle";
    const WIRE: Wire =
        Wire { bytes: |size| size, one_path_of_two: "nothing; with the key, half of every cipher block" };
    let iv = Block::<Aes128>::default();
    let mut encryptor = cbc::Encryptor::inner_iv_init(Aes128::new(&key()), &iv);
    let mut decryptor = cbc::Decryptor::inner_iv_init(Aes128::new(&key()), &iv);
    let (mut shuffled, mut ordered) = (Vec::new(), Vec::new());
    [
        Transform::new(NAME, Direction::Encode, WIRE, move |buf| {
            encryptor.encrypt_blocks_inout(InOutBuf::from(&mut *buf).into_chunks().0);
            shuffle(buf, &mut shuffled);
        }),
        Transform::new(NAME, Direction::Decode, WIRE, move |buf| {
            unshuffle(buf, &mut ordered);
            decryptor.decrypt_blocks_inout(InOutBuf::from(buf).into_chunks().0);
        }),
    ]
}

/// A package per buffer. Drawing its key counts.
fn packages() -> [Transform; 2] {
    const NAME: &str = "aont";
    const WIRE: Wire = Wire {
        bytes: |size| size + package_transform::BLOCK,
        one_path_of_two: "nothing, if the other carries a block of each package",
    };
    let package_key = || {
        let mut random = random();
        move || {
            let mut key = [0; package_transform::BLOCK];
            random(&mut key);
            key
        }
    };
    let (mut transform, mut next_key) = (PackageTransform::new(), package_key());
    let encode = Transform::new(NAME, Direction::Encode, WIRE, move |buf| {
        std::hint::black_box(transform.encode(next_key(), buf));
    });

    let (mut transform, mut next_key) = (PackageTransform::new(), package_key());
    let encode_all = move |last: &mut Vec<_>, buffers: &mut Buffers| {
        last.clear();
        last.extend(buffers.each().map(|buf| transform.encode(next_key(), buf)));
    };
    let mut transform = PackageTransform::new();
    let decode = Transform::prepared(NAME, Direction::Decode, WIRE, encode_all, move |last, buffers| {
        buffers.each().zip(last).for_each(|(buf, last)| transform.decode(*last, buf));
    });
    [encode, decode]
}

fn key() -> Key<Aes128> {
    Key::<Aes128>::from([7; 16])
}
