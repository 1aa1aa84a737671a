//! Reads fields of kernel structures from byte buffers.
//!
//! Kernel structures grow over time, so a buffer may be shorter or longer than the structure known here. Fields are
//! read by offset; one that the kernel does not provide is `None`. Nothing here panics or is unsafe.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The `N` bytes at `offset`.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// A string of the kernel, without the zero byte at its end.
pub(crate) fn without_nul(text: &[u8]) -> &[u8] {
    text.strip_suffix(&[0]).unwrap_or(text)
}

/// The byte at `offset`.
pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// The 16-bit number in host order at `offset`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_ne_bytes)
}

/// The 32-bit number in host order at `offset`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_ne_bytes)
}

/// The 64-bit number in host order at `offset`.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_ne_bytes)
}

/// An IPv4 or IPv6 address, by length (4 or 16 bytes).
pub(crate) fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    if let Some(v4) = array_at::<4>(bytes, 0).filter(|_| bytes.len() == 4) {
        return Some(Ipv4Addr::from(v4).into());
    }
    array_at::<16>(bytes, 0).filter(|_| bytes.len() == 16).map(|v6| Ipv6Addr::from(v6).into())
}

/// A `struct sockaddr_in` or `sockaddr_in6` at the start of `bytes`.
pub(crate) fn socket_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16_at(bytes, 0)?);
    let port = array_at(bytes, 2).map(u16::from_be_bytes)?;
    match family {
        libc::AF_INET => Some(SocketAddrV4::new(array_at::<4>(bytes, 4)?.into(), port).into()),
        libc::AF_INET6 => {
            let flow = array_at(bytes, 4).map(u32::from_be_bytes)?;
            let scope = u32_at(bytes, 24)?;
            Some(SocketAddrV6::new(array_at::<16>(bytes, 8)?.into(), port, flow, scope).into())
        }
        _ => None,
    }
}

/// Converts an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`) to IPv4.
pub(crate) fn unmapped(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_addresses_of_both_families() {
        let mut v4 = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        v4.extend([0x1f, 0x90, 10, 0, 0, 1]);
        assert_eq!(socket_address(&v4), Some("10.0.0.1:8080".parse().unwrap()));
        let mut v6 = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        v6.extend([0x1f, 0x90, 0, 0, 0, 0]);
        v6.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        v6.extend(0u32.to_ne_bytes());
        assert_eq!(socket_address(&v6), Some("[2001:db8::1]:8080".parse().unwrap()));
        assert_eq!(unmapped("[::ffff:10.0.0.1]:1".parse().unwrap()), "10.0.0.1:1".parse().unwrap());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, offset: usize) {
            let _ = (u8_at(&bytes, offset), u16_at(&bytes, offset), u32_at(&bytes, offset), u64_at(&bytes, offset));
            let _ = (ip_address(&bytes), socket_address(&bytes));
        }
    }
}
