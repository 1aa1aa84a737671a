//! Network coding of packet pairs: of two packets `a` and `b`, two combinations travel on two paths.
//!
//! Advantage: no overhead, and in one of two forms no packet is sent as plaintext. No secrecy: a path reveals one equation
//! for every two packets, so that one packet of a pair, known or guessed, reveals the other. The receiver waits for
//! both, and losing one path loses everything (half coded: half). No integrity.

use super::gf256::{inverse, multiply};

/// Which combinations travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    /// `a` on the first path, `a ^ b` on the second: the textbook's butterfly.
    Half,
    /// `a ^ b` on the first path, `a ^ 2b` on the second, in GF(256): no packet travels as it is.
    Both,
}

/// Replaces the packets `a` and `b`, of equal length, by what travels on the first and the second path.
pub(crate) fn encode(code: Code, a: &mut [u8], b: &mut [u8]) {
    for (a, b) in a.iter_mut().zip(b) {
        (*a, *b) = match code {
            Code::Half => (*a, *a ^ *b),
            Code::Both => (*a ^ *b, *a ^ multiply(*b, 2)),
        };
    }
}

/// Replaces what travelled on the first and the second path by the packets `a` and `b`.
pub(crate) fn decode(code: Code, first: &mut [u8], second: &mut [u8]) {
    let third = inverse(3);
    for (first, second) in first.iter_mut().zip(second) {
        (*first, *second) = match code {
            Code::Half => (*first, *first ^ *second),
            Code::Both => {
                let b = multiply(*first ^ *second, third);
                (*first ^ b, b)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REQUEST: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: example.org\r\n\r\n";
    const COOKIE: &[u8] = b"Cookie: session=3f786850e387550fdab836ed7e6dc88";

    fn coded(code: Code, a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut first, mut second) = (a.to_vec(), b.to_vec());
        encode(code, &mut first, &mut second);
        (first, second)
    }

    proptest! {
        #[test]
        fn decodes_both_packets(
            pair in (0..400_usize).prop_flat_map(|length| {
                let packet = || prop::collection::vec(any::<u8>(), length);
                (packet(), packet())
            }),
        ) {
            for code in [Code::Half, Code::Both] {
                let (mut first, mut second) = coded(code, &pair.0, &pair.1);
                prop_assert_eq!(first.len() + second.len(), pair.0.len() + pair.1.len());
                decode(code, &mut first, &mut second);
                prop_assert_eq!((&first, &second), (&pair.0, &pair.1));
            }
        }
    }

    #[test]
    fn half_coded_path_reveals_every_second_packet() {
        assert_eq!(coded(Code::Half, REQUEST, COOKIE).0, REQUEST);
    }

    #[test]
    fn one_known_packet_reveals_the_other() {
        let (_, second) = coded(Code::Half, REQUEST, COOKIE);
        let recovered: Vec<u8> = second.iter().zip(REQUEST).map(|(coded, a)| coded ^ a).collect();
        assert_eq!(recovered, COOKIE, "half coded, second path");

        let (first, second) = coded(Code::Both, REQUEST, COOKIE);
        let recovered: Vec<u8> = first.iter().zip(REQUEST).map(|(coded, a)| coded ^ a).collect();
        assert_eq!(recovered, COOKIE, "coded, first path");
        let half = inverse(2);
        let recovered: Vec<u8> =
            second.iter().zip(REQUEST).map(|(coded, a)| multiply(coded ^ a, half)).collect();
        assert_eq!(recovered, COOKIE, "coded, second path");
    }

    #[test]
    fn reveals_equal_packets() {
        let (first, _) = coded(Code::Both, REQUEST, REQUEST);
        assert!(first.iter().all(|byte| *byte == 0));
    }

    /// What the coded form does give: for every `a`, what a path carries takes every value once as `b` does. A packet
    /// is hidden exactly as well as the packet it is paired with is unknown.
    #[test]
    fn unknown_packet_hides_its_pair() {
        for a in 0..=255 {
            let pairs: Vec<_> = (0..=255).map(|b| coded(Code::Both, &[a], &[b])).collect();
            let mut first: Vec<u8> = pairs.iter().map(|pair| pair.0[0]).collect();
            let mut second: Vec<u8> = pairs.iter().map(|pair| pair.1[0]).collect();
            first.sort_unstable();
            second.sort_unstable();
            assert!(first.into_iter().eq(0..=255) && second.into_iter().eq(0..=255));
        }
    }
}
