//! Secret sharing by XOR, n of n: every share but one is random, and the XOR of all is the secret.
//!
//! Advantage: without any one share nothing is revealed, unconditionally. Cost: each path carries as much as the whole
//! secret, all shares but one are random bytes, and losing one path loses everything. No integrity.

use super::error::{Error, add, same_length};

/// Splits `secret` into all of `shares`, which take its length. `random` fills what it is given with fresh random
/// bytes.
///
/// # Errors
///
/// [`Error::Shares`] if there is no share to be made.
pub(crate) fn split(
    secret: &[u8],
    shares: &mut [Vec<u8>],
    mut random: impl FnMut(&mut [u8]),
) -> Result<(), Error> {
    let (last, pads) = shares.split_last_mut().ok_or(Error::Shares { expected: 1, got: 0 })?;
    last.clear();
    last.extend_from_slice(secret);
    for pad in pads {
        pad.resize(secret.len(), 0);
        random(pad);
        add(last, pad);
    }
    Ok(())
}

/// Puts all `shares` of a secret together into `secret`. That some are missing cannot be seen.
///
/// # Errors
///
/// [`Error::Length`] if a share is not as long as `secret`.
pub(crate) fn combine(shares: &[impl AsRef<[u8]>], secret: &mut [u8]) -> Result<(), Error> {
    secret.fill(0);
    for share in shares {
        same_length(secret.len(), share.as_ref())?;
        add(secret, share.as_ref());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares_of(secret: &[u8], number: usize, pads: &[u8]) -> Vec<Vec<u8>> {
        let mut shares = vec![Vec::new(); number];
        let mut pads = pads.iter().copied().cycle();
        split(secret, &mut shares, |pad| pad.fill_with(|| pads.next().expect("endless")))
            .expect("some shares");
        shares
    }

    proptest! {
        #[test]
        fn all_shares_recover_the_secret(
            secret in prop::collection::vec(any::<u8>(), 0..500),
            number in 1..8_usize,
            pads in prop::collection::vec(any::<u8>(), 1..3000),
        ) {
            let shares = shares_of(&secret, number, &pads);
            let mut combined = vec![0xa5; secret.len()];
            prop_assert_eq!(combine(&shares, &mut combined), Ok(()));
            prop_assert_eq!(combined, secret);
            prop_assert_eq!(shares.concat().len(), number * shares[0].len());
        }
    }

    /// Over all random bytes that could have been drawn, each share by itself takes every value once: it says
    /// nothing of the secret.
    #[test]
    fn one_share_of_two_reveals_nothing() {
        for secret in 0..=255 {
            let shares: Vec<_> = (0..=255).map(|pad| shares_of(&[secret], 2, &[pad])).collect();
            for share in 0..2 {
                let mut values: Vec<u8> = shares.iter().map(|shares| shares[share][0]).collect();
                values.sort_unstable();
                assert!(values.into_iter().eq(0..=255), "share {share} of {secret}");
            }
        }
    }

    #[test]
    fn two_shares_of_three_reveal_nothing() {
        let pads = || (0..=255_u8).flat_map(|one| (0..=255_u8).map(move |other| [one, other]));
        for secret in [0, 1, 0x53, 0xff] {
            let shares: Vec<_> = pads().map(|pads| shares_of(&[secret], 3, &pads)).collect();
            for missing in 0..3 {
                let seen = [0, 1, 2].into_iter().filter(|share| *share != missing);
                let mut seen: Vec<Vec<u8>> = shares
                    .iter()
                    .map(|shares| seen.clone().map(|share| shares[share][0]).collect())
                    .collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(pads().map(|pair| pair.to_vec())), "without share {missing}");
            }
        }
    }

    #[test]
    fn rejects_mismatched_shares() {
        assert_eq!(split(b"text", &mut [], |_| ()), Err(Error::Shares { expected: 1, got: 0 }));
        let error = combine(&[&b"four"[..], b"three"], &mut [0; 4]);
        assert_eq!(error, Err(Error::Length { expected: 4, got: 5 }));
    }
}
