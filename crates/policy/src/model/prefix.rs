//! Address prefixes.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses that share their leading bits: `10.0.0.0/8`, or `10.0.0.1` for a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Why a text or an address with a length is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got {found:?}")]
pub struct PrefixError {
    pub(crate) expected: String,
    found: String,
}

impl Prefix {
    /// The addresses whose first `length` bits equal those of `address`.
    ///
    /// # Errors
    /// The address is shorter than `length` bits, or has a bit set after them.
    pub fn new(address: IpAddr, length: u8) -> Result<Self, PrefixError> {
        let error = |expected: String| PrefixError { expected, found: format!("{address}/{length}") };
        let width = width(address);
        if length > width {
            return Err(error(format!("a prefix of 0 to {width} bits")));
        }
        let network: IpAddr = match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                (v4.to_bits() & mask).to_be_bytes().into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                (v6.to_bits() & mask).to_be_bytes().into()
            }
        };
        if network != address {
            return Err(error(format!("no bits set after the prefix, such as {network}/{length}")));
        }
        Ok(Self { address, length })
    }

    /// The first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// The number of leading bits that are fixed.
    pub fn length(self) -> u8 {
        self.length
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        Self { address, length: width(address) }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let error = || PrefixError {
            expected: "an address or a prefix, such as 10.0.0.0/8 or fd00::/8".into(),
            found: text.into(),
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let Some(length) = length else { return Ok(address.into()) };
        let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
        let length = length.parse().ok().filter(|_| digits).ok_or_else(error)?;
        Self::new(address, length)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)?;
        if self.length < width(self.address) { write!(f, "/{}", self.length) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_round_trips() {
        for text in
            ["10.0.0.0/8", "0.0.0.0/0", "10.1.2.3", "fd00::/8", "::/0", "fd00::1", "::ffff:0.0.0.0/96"]
        {
            assert_eq!(text.parse::<Prefix>().expect(text).to_string(), text);
        }
        assert_eq!("10.1.2.3/32".parse::<Prefix>(), "10.1.2.3".parse());
        assert_eq!("fd00::1/128".parse::<Prefix>(), "fd00::1".parse());
    }

    #[test]
    fn rejects_malformed_prefixes() {
        for text in
            ["", "/8", "10.0.0/8", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "fd00::/129", "fd00::/256"]
        {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
        let error = "10.0.0.1/8".parse::<Prefix>().expect_err("bits after the prefix").to_string();
        assert_eq!(error, "expected no bits set after the prefix, such as 10.0.0.0/8, got \"10.0.0.1/8\"");
    }

    #[test]
    fn only_the_first_address_of_a_prefix_is_accepted() {
        for length in 0..=128 {
            let ones = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            let v6 = |bits: u128| IpAddr::from(bits.to_be_bytes());
            assert!(Prefix::new(v6(ones), length).is_ok(), "{length}");
            assert_eq!(Prefix::new(v6(u128::MAX), length).is_ok(), length == 128);
        }
        for length in 0..=32 {
            let ones = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            assert!(Prefix::new(ones.to_be_bytes().into(), length).is_ok(), "{length}");
            assert_eq!(Prefix::new([255; 4].into(), length).is_ok(), length == 32);
        }
    }
}
