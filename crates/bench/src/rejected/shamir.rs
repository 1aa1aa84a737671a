//! Shamir's secret sharing (Communications of the ACM 22/11, 1979), k of n, byte by byte over GF(256).
//!
//! Each byte of the secret is the value at 0 of a polynomial of degree k - 1 whose other coefficients are random;
//! share `x` is the value at `x`. Any k shares determine the polynomial, fewer say nothing of its value at 0.
//!
//! Advantage: fewer than k shares reveal nothing, unconditionally; n - k paths may fail. Cost: each path carries as much as
//! the whole secret, plus k - 1 times as many random bytes. No integrity: one wrong share yields a wrong secret.

use super::error::{Error, same_length};
use super::gf256::{inverse, multiply, multiply_add};

/// Splits `secret` into all of `shares`, which take its length, so that any `threshold` of them give it back. The
/// first share belongs to point 1, the next to point 2, and so on. `random` fills what it is given with fresh random
/// bytes.
///
/// # Errors
///
/// [`Error::Threshold`] unless there are 1 to 255 shares and the threshold is 1 to as many.
pub(crate) fn split(
    secret: &[u8],
    threshold: usize,
    shares: &mut [Vec<u8>],
    mut random: impl FnMut(&mut [u8]),
) -> Result<(), Error> {
    if shares.len() > 255 || !(1..=shares.len()).contains(&threshold) {
        return Err(Error::Threshold { threshold, shares: shares.len() });
    }
    for share in &mut *shares {
        share.clear();
        share.extend_from_slice(secret);
    }
    let mut coefficients = vec![0; secret.len()];
    for degree in 1..threshold {
        random(&mut coefficients);
        for (share, point) in shares.iter_mut().zip(1..=255) {
            let power = (0..degree).fold(1, |power, _| multiply(power, point));
            multiply_add(share, &coefficients, power);
        }
    }
    Ok(())
}

/// Computes into `secret` what the shares, each with its point, determine: the secret if they are at least as many as
/// the threshold was, and something else if they are not. Which it is cannot be seen.
///
/// # Errors
///
/// [`Error::Shares`] if there are none, [`Error::Point`] if a point is 0 or occurs twice, [`Error::Length`] if a
/// share is not as long as `secret`.
pub(crate) fn combine(shares: &[(u8, &[u8])], secret: &mut [u8]) -> Result<(), Error> {
    if shares.is_empty() {
        return Err(Error::Shares { expected: 1, got: 0 });
    }
    secret.fill(0);
    for (index, &(point, share)) in shares.iter().enumerate() {
        same_length(secret.len(), share)?;
        let others = shares.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, share)| share.0);
        if point == 0 || others.clone().any(|other| other == point) {
            return Err(Error::Point { got: point });
        }
        // Lagrange's weight at 0: the product of x / (x - point) over the other points x.
        let weight =
            others.fold(1, |weight, other| multiply(weight, multiply(other, inverse(other ^ point))));
        multiply_add(secret, share, weight);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares_of(secret: &[u8], threshold: usize, number: usize, coefficients: &[u8]) -> Vec<Vec<u8>> {
        let mut shares = vec![Vec::new(); number];
        let mut coefficients = coefficients.iter().copied().cycle();
        split(secret, threshold, &mut shares, |bytes| {
            bytes.fill_with(|| coefficients.next().expect("endless"));
        })
        .expect("a threshold in range");
        shares
    }

    proptest! {
        #[test]
        fn any_threshold_of_shares_recovers_the_secret(
            secret in prop::collection::vec(any::<u8>(), 0..300),
            (threshold, number) in (1..7_usize).prop_flat_map(|threshold| (Just(threshold), threshold..9)),
            coefficients in prop::collection::vec(any::<u8>(), 1..2000),
            order in Just((0..9_usize).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let shares = shares_of(&secret, threshold, number, &coefficients);
            let chosen: Vec<(u8, &[u8])> = order
                .into_iter()
                .filter(|index| *index < number)
                .take(threshold)
                .map(|index| (index as u8 + 1, &shares[index][..]))
                .collect();
            let mut combined = vec![0xa5; secret.len()];
            prop_assert_eq!(combine(&chosen, &mut combined), Ok(()));
            prop_assert_eq!(combined, secret);
        }
    }

    /// Over all coefficients that could have been drawn, each share by itself takes every value once.
    #[test]
    fn one_share_of_a_threshold_of_two_reveals_nothing() {
        for secret in 0..=255 {
            let shares: Vec<_> = (0..=255).map(|drawn| shares_of(&[secret], 2, 3, &[drawn])).collect();
            for share in 0..3 {
                let mut values: Vec<u8> = shares.iter().map(|shares| shares[share][0]).collect();
                values.sort_unstable();
                assert!(values.into_iter().eq(0..=255), "share {share} of {secret}");
            }
        }
    }

    #[test]
    fn two_shares_of_a_threshold_of_three_reveal_nothing() {
        let pairs = || (0..=255_u8).flat_map(|one| (0..=255_u8).map(move |other| [one, other]));
        for secret in [0, 1, 0x53, 0xff] {
            let shares: Vec<_> = pairs().map(|drawn| shares_of(&[secret], 3, 4, &drawn)).collect();
            for (one, other) in [(0, 1), (0, 3), (1, 2), (2, 3)] {
                let mut seen: Vec<[u8; 2]> =
                    shares.iter().map(|shares| [shares[one][0], shares[other][0]]).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(pairs()), "shares {one} and {other} of {secret}");
            }
        }
    }

    #[test]
    fn too_few_shares_yield_garbage_without_error() {
        let shares = shares_of(b"text", 3, 3, b"coefficients");
        let mut combined = [0; 4];
        assert_eq!(combine(&[(1, &shares[0]), (2, &shares[1])], &mut combined), Ok(()));
        assert_ne!(&combined, b"text");
    }

    #[test]
    fn rejects_mismatched_shares() {
        let mut shares = vec![Vec::new(); 3];
        for threshold in [0, 4] {
            let error = split(b"text", threshold, &mut shares, |_| ());
            assert_eq!(error, Err(Error::Threshold { threshold, shares: 3 }));
        }
        let error = split(b"text", 2, &mut vec![Vec::new(); 256], |_| ());
        assert_eq!(error, Err(Error::Threshold { threshold: 2, shares: 256 }));

        let mut secret = [0; 4];
        assert_eq!(combine(&[], &mut secret), Err(Error::Shares { expected: 1, got: 0 }));
        assert_eq!(combine(&[(0, b"four")], &mut secret), Err(Error::Point { got: 0 }));
        assert_eq!(combine(&[(5, b"four"), (5, b"more")], &mut secret), Err(Error::Point { got: 5 }));
        let error = combine(&[(1, b"four"), (2, b"three")], &mut secret);
        assert_eq!(error, Err(Error::Length { expected: 4, got: 5 }));
    }
}
