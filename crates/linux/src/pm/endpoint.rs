//! Endpoints and limits of the kernel's path manager, and their netlink encoding.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::BitOr;

use crate::bytes::ip_address;
use crate::netlink::message::{Attributes, Request};

/// A local address configured in the path manager: used for new subflows, announced to peers, or both, according to its
/// flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// Its address identifier (RFC 8684, section 3.4.1); if 0 is added, the kernel chooses one.
    pub id: u8,
    /// The port announced with it; 0: none, so that the peer uses the connection's.
    pub port: u16,
    /// How it is used.
    pub flags: Flags,
    /// Index of the interface that its subflows use; with 0, routing chooses it.
    pub if_index: u32,
}

/// How an [`Endpoint`] is used: the `MPTCP_PM_ADDR_FLAG_*` of `linux/mptcp.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// Announce the address to peers (ADD_ADDR).
    pub const SIGNAL: Flags = Flags(1);
    /// Create a subflow from the address.
    pub const SUBFLOW: Flags = Flags(1 << 1);
    /// Subflows from the address are backups.
    pub const BACKUP: Flags = Flags(1 << 2);
    /// Create subflows from the address to every address of the peer.
    pub const FULLMESH: Flags = Flags(1 << 3);
    /// Created by the kernel for a subflow that the peer initiated.
    pub const IMPLICIT: Flags = Flags(1 << 4);
    /// Create a subflow from the address to each address that the peer announces (kernel 6.18).
    pub const LAMINAR: Flags = Flags(1 << 5);

    /// No flags.
    pub const fn empty() -> Flags {
        Flags(0)
    }

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["signal", "subflow", "backup", "fullmesh", "implicit", "laminar"];
        let set: Vec<_> = names.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1).collect();
        for (position, (_, name)) in set.iter().enumerate() {
            write!(f, "{}{name}", if position == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

/// The in-kernel path manager's limits for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of additional subflows, 0..=8.
    pub subflows: u32,
    /// Maximum number of addresses accepted from the peer, 0..=8.
    pub add_addr_accepted: u32,
}

impl Endpoint {
    pub(super) fn read(attributes: Attributes) -> Option<Endpoint> {
        let address = attributes.find(ADDR4).or_else(|| attributes.find(ADDR6))?;
        Some(Endpoint {
            address: ip_address(address)?,
            id: attributes.u8(ID).unwrap_or(0),
            port: attributes.u16(PORT).unwrap_or(0),
            flags: Flags(attributes.u32(FLAGS).unwrap_or(0)),
            if_index: attributes.u32(IF_INDEX).unwrap_or(0),
        })
    }

    pub(super) fn write(&self, request: Request) -> Request {
        let mut request = write_address(request, self.address);
        if self.id != 0 {
            request = request.attribute(ID, &[self.id]);
        }
        if self.port != 0 {
            request = request.attribute(PORT, &self.port.to_ne_bytes());
        }
        if self.flags != Flags::empty() {
            request = request.attribute(FLAGS, &self.flags.0.to_ne_bytes());
        }
        if self.if_index != 0 {
            request = request.attribute(IF_INDEX, &self.if_index.to_ne_bytes());
        }
        request
    }
}

/// Adds only an address identifier.
pub(super) fn write_id(request: Request, id: u8) -> Request {
    request.attribute(ID, &[id])
}

/// Adds only flags.
pub(super) fn write_flags(request: Request, flags: Flags) -> Request {
    request.attribute(FLAGS, &flags.0.to_ne_bytes())
}

/// Adds an address and its port.
pub(super) fn write_socket_address(request: Request, address: SocketAddr) -> Request {
    write_address(request, address.ip()).attribute(PORT, &address.port().to_ne_bytes())
}

fn write_address(request: Request, address: IpAddr) -> Request {
    match address {
        IpAddr::V4(v4) => {
            request.attribute(FAMILY, &(libc::AF_INET as u16).to_ne_bytes()).attribute(ADDR4, &v4.octets())
        }
        IpAddr::V6(v6) => {
            request.attribute(FAMILY, &(libc::AF_INET6 as u16).to_ne_bytes()).attribute(ADDR6, &v6.octets())
        }
    }
}

const FAMILY: u16 = 1;
const ID: u16 = 2;
const ADDR4: u16 = 3;
const ADDR6: u16 = 4;
const PORT: u16 = 5;
const FLAGS: u16 = 6;
const IF_INDEX: u16 = 7;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::message::Messages;
    use proptest::prelude::*;

    #[test]
    fn displays_flags_like_ip_mptcp() {
        assert_eq!((Flags::SUBFLOW | Flags::BACKUP).to_string(), "subflow backup");
        assert_eq!(Flags::empty().to_string(), "");
    }

    proptest! {
        #[test]
        fn encoding_round_trips(
            v4: [u8; 4], v6: [u8; 16], use_v6: bool, id: u8, port: u16, flags in 0u32..64, if_index: u32,
        ) {
            let address = if use_v6 { IpAddr::from(v6) } else { IpAddr::from(v4) };
            let endpoint = Endpoint { address, id, port, flags: Flags(flags), if_index };
            let bytes = endpoint.write(Request::generic(30, 1, 1, 0)).finish(1);
            let message = Messages(&bytes).next().expect("message is complete");
            prop_assert_eq!(Endpoint::read(message.attributes(4)), Some(endpoint));
        }

        #[test]
        fn arbitrary_attributes_do_not_panic(bytes: Vec<u8>) {
            let _ = Endpoint::read(Attributes(&bytes));
        }
    }
}
