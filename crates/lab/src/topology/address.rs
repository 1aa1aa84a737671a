//! Interface addresses, given by the file or assigned by default.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::side::Side;

/// An address and its prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The prefix length: up to 30 for IPv4, up to 126 for IPv6.
    pub prefix: u8,
}

impl Address {
    /// The addresses that link `number`, from 1, assigns to one end: 10.77.n.1/24 and fd77:0:0:n::1/64 for `a`,
    /// ending in 2 for `b`.
    pub(crate) fn assigned(number: u8, side: Side) -> [Self; 2] {
        let host = match side {
            Side::A => 1,
            Side::B => 2,
        };
        let v4 = Ipv4Addr::new(10, 77, number, host).into();
        let v6 = Ipv6Addr::new(0xfd77, 0, 0, number.into(), 0, 0, 0, host.into()).into();
        [Self { ip: v4, prefix: 24 }, Self { ip: v6, prefix: 64 }]
    }

    /// The first address of its network.
    pub fn network(self) -> Self {
        let ip = match self.ip {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & !mask_v4(self.prefix)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !mask_v6(self.prefix)).into(),
        };
        Self { ip, ..self }
    }
}

/// The mask of the host bits.
fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

impl FromStr for Address {
    type Err = String;

    /// Parses `ADDRESS/PREFIX`; an address that cannot be assigned to an interface is an error.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |expected: &str| format!("expected {expected}, got {text:?}");
        let form = "an address and its prefix, such as 10.1.0.2/24 or fd01::2/64";
        let (ip, prefix) = text.split_once('/').ok_or_else(|| bad(form))?;
        let ip: IpAddr = ip.parse().map_err(|_| bad(form))?;
        let longest = if ip.is_ipv4() { 30 } else { 126 };
        let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|prefix| digits && (1..=longest).contains(prefix));
        let prefix = prefix.ok_or_else(|| bad(&format!("a prefix of 1 to {longest} bits")))?;
        let address = Self { ip, prefix };
        let special = ip.is_loopback() || ip.is_multicast() || ip.is_unspecified();
        let link_local = match ip {
            IpAddr::V4(_) => false,
            IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
        };
        if special || link_local {
            return Err(bad("an address that other hosts can reach"));
        }
        if address.network().ip == ip {
            return Err(bad("the address of a host, not that of its network"));
        }
        if let IpAddr::V4(v4) = ip
            && v4.to_bits() & mask_v4(prefix) == mask_v4(prefix)
        {
            return Err(bad("the address of a host, not its network's broadcast address"));
        }
        Ok(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().expect(text)
    }

    #[test]
    fn a_network_is_what_the_prefix_leaves() {
        for (given, network) in [
            ("10.1.2.3/24", "10.1.2.0/24"),
            ("10.1.2.6/30", "10.1.2.4/30"),
            ("10.1.2.3/1", "0.0.0.0/1"),
            ("fd01::2/64", "fd01::/64"),
            ("fd01::2/126", "fd01::/126"),
        ] {
            assert_eq!(address(given).network().to_string(), network);
        }
    }

    #[test]
    fn assigned_addresses_could_have_been_given() {
        for number in [1, 254] {
            for side in Side::BOTH {
                for assigned in Address::assigned(number, side) {
                    assert_eq!(address(&assigned.to_string()), assigned);
                }
            }
        }
    }

    #[test]
    fn what_no_interface_can_have_is_refused() {
        for text in [
            "10.1.0.2",
            "10.1.0.2/",
            "10.1.0.2/31",
            "10.1.0.2/0",
            "10.1.0.2/+24",
            "10.1.0/24",
            "10.1.0.0/24",
            "10.1.0.255/24",
            "127.0.0.1/8",
            "224.0.0.1/24",
            "0.0.0.0/8",
            "fd01::/64",
            "fd01::2/127",
            "fe80::1/64",
            "::1/64",
            "ff02::1/64",
            "::ffff:10.0.0.1/120",
            "client",
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.starts_with("expected ") && error.ends_with(&format!("got {text:?}")), "{error}");
        }
    }
}
