//! Secret sharing: by XOR, n of n; and Shamir's (Communications of the ACM 22/11, 1979), 2 of n.
//!
//! By XOR, every share but one is random, and the XOR of all is the secret. Shamir's works byte by byte over GF(256): each
//! byte of the secret is the value at 0 of a line with a random slope, and share `x` is the value at `x`. Any two shares
//! determine the line.
//!
//! Advantage: fewer shares than needed reveal nothing, unconditionally; with Shamir's, n - 2 paths may fail. Cost: each path
//! carries as much as the whole secret, and random bytes are needed: as many as the secret has, by XOR n - 1 times as many.
//! No integrity: one wrong share yields a wrong secret.

use super::gf256::{inverse, multiply, multiply_add};

/// Splits `secret` by XOR into all of `shares`, which take its length. `random` fills what it is given with fresh random
/// bytes.
pub(crate) fn split_xor(secret: &[u8], shares: &mut [Vec<u8>], random: &mut dyn FnMut(&mut [u8])) {
    let [last, pads @ ..] = shares else { return };
    last.clear();
    last.extend_from_slice(secret);
    for pad in pads {
        pad.resize(secret.len(), 0);
        random(pad);
        add(last, pad);
    }
}

/// Puts all `shares` of a secret together into `secret`.
pub(crate) fn combine_xor(shares: &[Vec<u8>], secret: &mut [u8]) {
    secret.fill(0);
    shares.iter().for_each(|share| add(secret, share));
}

/// As [`split_xor`], but any two of the shares, at most 255, give the secret back. The first belongs to point 1, the next
/// to point 2, and so on.
pub(crate) fn split_shamir(secret: &[u8], shares: &mut [Vec<u8>], random: &mut dyn FnMut(&mut [u8])) {
    let mut slopes = vec![0; secret.len()];
    random(&mut slopes);
    for (share, point) in shares.iter_mut().zip(1..=255) {
        share.clear();
        share.extend_from_slice(secret);
        multiply_add(share, &slopes, point);
    }
}

/// Computes `secret` from two shares, each with its point.
pub(crate) fn combine_shamir(shares: [(u8, &[u8]); 2], secret: &mut [u8]) {
    secret.fill(0);
    let [one, other] = shares;
    for ((point, share), (other, _)) in [(one, other), (other, one)] {
        // Lagrange's weight at 0.
        multiply_add(secret, share, multiply(other, inverse(other ^ point)));
    }
}

/// Adds `bytes` in GF(2): XOR.
fn add(into: &mut [u8], bytes: &[u8]) {
    for (into, byte) in into.iter_mut().zip(bytes) {
        *into ^= byte;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Split = fn(&[u8], &mut [Vec<u8>], &mut dyn FnMut(&mut [u8]));

    fn shares_of(split: Split, secret: &[u8], number: usize, random: &[u8]) -> Vec<Vec<u8>> {
        let mut shares = vec![Vec::new(); number];
        let mut random = random.iter().copied().cycle();
        split(secret, &mut shares, &mut |bytes| bytes.fill_with(|| random.next().expect("endless")));
        shares
    }

    proptest! {
        #[test]
        fn enough_shares_recover_the_secret(
            secret in prop::collection::vec(any::<u8>(), 0..300),
            random in prop::collection::vec(any::<u8>(), 1..2000),
            number in 2..8_usize,
            points in Just((1..=8_u8).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut combined = vec![0xa5; secret.len()];
            let shares = shares_of(split_xor, &secret, number, &random);
            combine_xor(&shares, &mut combined);
            prop_assert_eq!(&combined, &secret);

            let shares = shares_of(split_shamir, &secret, number, &random);
            let share = |point: u8| Some((point, &shares.get(usize::from(point) - 1)?[..]));
            let chosen: Vec<_> = points.into_iter().filter_map(share).collect();
            combine_shamir([chosen[0], chosen[1]], &mut combined);
            prop_assert_eq!(combined, secret);
        }
    }

    /// Over all random bytes that could have been drawn, each share by itself takes every value once.
    #[test]
    fn one_share_reveals_nothing() {
        for (split, number) in [(split_xor as Split, 2), (split_shamir, 3)] {
            for secret in 0..=255 {
                let drawn = (0..=255).map(|drawn| shares_of(split, &[secret], number, &[drawn]));
                let shares: Vec<_> = drawn.collect();
                for share in 0..number {
                    let mut values: Vec<u8> = shares.iter().map(|shares| shares[share][0]).collect();
                    values.sort_unstable();
                    assert!(values.into_iter().eq(0..=255), "share {share} of {secret}");
                }
            }
        }
    }

    #[test]
    fn two_xor_shares_of_three_reveal_nothing() {
        let pads = || (0..=255_u8).flat_map(|one| (0..=255_u8).map(move |other| [one, other]));
        for secret in [0, 1, 0x53, 0xff] {
            let shares: Vec<_> = pads().map(|pads| shares_of(split_xor, &[secret], 3, &pads)).collect();
            for (one, other) in [(0, 1), (0, 2), (1, 2)] {
                let mut seen: Vec<_> =
                    shares.iter().map(|shares| [shares[one][0], shares[other][0]]).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(pads()), "shares {one} and {other} of {secret}");
            }
        }
    }
}
