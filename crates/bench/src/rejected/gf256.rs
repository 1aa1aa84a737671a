//! The field of 256 elements, with the polynomial x^8 + x^4 + x^3 + x + 1 of AES (FIPS 197, section 4). Addition is
//! XOR.

/// In constant time, and so that the compiler can do it for a whole vector of `a` with one `b`.
#[inline(always)]
pub(super) fn multiply(mut a: u8, b: u8) -> u8 {
    let mut product = 0;
    for bit in 0..8 {
        product ^= a & 0_u8.wrapping_sub(b >> bit & 1);
        a = (a << 1) ^ (0x1b & 0_u8.wrapping_sub(a >> 7));
    }
    product
}

/// Adds `factor` times each of `bytes` to the byte at the same place.
pub(super) fn multiply_add(into: &mut [u8], bytes: &[u8], factor: u8) {
    for (into, byte) in into.iter_mut().zip(bytes) {
        *into ^= multiply(*byte, factor);
    }
}

/// The number that gives 1 when multiplied by `a`; 0 for 0. The group has 255 elements, so `a^254 = a^-1`.
pub(super) fn inverse(a: u8) -> u8 {
    (0..254).fold(1, |power, _| multiply(power, a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplies_as_fips_197_does() {
        assert_eq!(multiply(0x57, 0x83), 0xc1);
        assert_eq!(multiply(0x57, 0x13), 0xfe);
    }

    #[test]
    fn is_a_field() {
        for a in 0..=255 {
            assert_eq!((multiply(a, 0), multiply(a, 1)), (0, a));
            assert_eq!(multiply(a, inverse(a)), u8::from(a != 0));
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply(b, a));
                for c in [1, 2, 0x53, 0xff] {
                    assert_eq!(multiply(a ^ b, c), multiply(a, c) ^ multiply(b, c));
                    assert_eq!(multiply(multiply(a, b), c), multiply(a, multiply(b, c)));
                }
            }
        }
    }
}
