//! The designs that the papers considered and rejected.

use std::cell::RefCell;
use std::rc::Rc;

use crate::rejected::block_chaining::{BLOCK, Chain};
use crate::rejected::packet_pairs::{self, Code};
use crate::rejected::{shamir, xor_sharing};
use plait_proto::codec::stream::StreamCipher;

use super::modes::keystream;
use super::transform::{Buffers, Direction, Transform, Wire};

pub(super) fn all() -> Vec<Transform> {
    let of_two = Wire { bytes: |size| 2 * size, one_path_of_two: "nothing" };
    // Two paths for three shares: one of them carries two.
    let of_three =
        Wire { bytes: |size| 3 * size, one_path_of_two: "everything, on the path with two of the shares" };
    let mut transforms = Vec::new();
    transforms.extend(sharing(
        "xor-sharing-2-of-2",
        of_two,
        |secret, shares, random| xor_sharing::split(secret, shares, random).expect("two shares"),
        |shares, secret| xor_sharing::combine(shares, secret).expect("equally long"),
    ));
    transforms.extend(sharing("shamir-2-of-2", of_two, split_by_two, combine_two));
    transforms.extend(sharing("shamir-2-of-3", of_three, split_by_two, combine_two));
    transforms.extend(pairs("packet-pairs-half", Code::Half, "every second packet, or the XOR of every two"));
    transforms.extend(pairs("packet-pairs-both", Code::Both, "one of every two packets, given the other"));
    transforms.extend(chaining());
    transforms
}

type Split = fn(&[u8], &mut [Vec<u8>], &mut dyn FnMut(&mut [u8]));
type Combine = fn(&[Vec<u8>], &mut [u8]);

fn split_by_two(secret: &[u8], shares: &mut [Vec<u8>], random: &mut dyn FnMut(&mut [u8])) {
    shamir::split(secret, 2, shares, random).expect("two shares or more");
}

fn combine_two(shares: &[Vec<u8>], secret: &mut [u8]) {
    shamir::combine(&[(1, &shares[0]), (2, &shares[1])], secret).expect("equally long");
}

/// Splitting a buffer into shares, and combining shares made off the clock. Drawing random bytes counts: they come from
/// the fastest keystream of this processor.
fn sharing(name: &str, wire: Wire, split: Split, combine: Combine) -> [Transform; 2] {
    let share_count = (wire.bytes)(1);
    let random = || {
        let cipher =
            if StreamCipher::aes_is_fast() { StreamCipher::Aes256Ctr } else { StreamCipher::ChaCha20 };
        let mut keystream = keystream(cipher);
        move |bytes: &mut [u8]| {
            bytes.fill(0);
            keystream.apply(bytes);
        }
    };

    let (mut shares, mut random_of_encode) = (vec![Vec::new(); share_count], random());
    let encode = Transform::new(name, Direction::Encode, wire, move |buf| {
        split(buf, &mut shares, &mut random_of_encode);
        std::hint::black_box(&mut shares);
    });

    let all_shares = Rc::new(RefCell::new(Vec::new()));
    let (to_combine, mut random_of_decode) = (Rc::clone(&all_shares), random());
    let decode = Transform {
        name: name.to_owned(),
        direction: Direction::Decode,
        wire,
        prepare: Box::new(move |buffers: &mut Buffers| {
            let mut all_shares = all_shares.borrow_mut();
            all_shares.resize(buffers.total() / buffers.size(), vec![Vec::new(); share_count]);
            for (buf, shares) in buffers.each().zip(&mut *all_shares) {
                split(buf, shares, &mut random_of_decode);
            }
        }),
        pass: Box::new(move |buffers| {
            for (buf, shares) in buffers.each().zip(&*to_combine.borrow()) {
                combine(shares, buf);
            }
        }),
    };
    [encode, decode]
}

/// Pairs of packets: the two halves of a buffer.
fn pairs(name: &str, code: Code, one_path_of_two: &'static str) -> [Transform; 2] {
    let wire = Wire { bytes: |size| size, one_path_of_two };
    [
        Transform::new(name, Direction::Encode, wire, move |buf| {
            let (a, b) = buf.split_at_mut(buf.len() / 2);
            packet_pairs::encode(code, a, b).expect("all sizes are even");
        }),
        Transform::new(name, Direction::Decode, wire, move |buf| {
            let (first, second) = buf.split_at_mut(buf.len() / 2);
            packet_pairs::decode(code, first, second).expect("all sizes are even");
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
