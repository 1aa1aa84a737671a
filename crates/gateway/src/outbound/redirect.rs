//! Redirects a program's connections to the gateway transparently, by cgroup hooks.
//!
//! `bpf/redirect.bpf.c` is attached to a cgroup that holds only the program and its children, for as long as that cgroup
//! exists: should the gateway be killed, connections are still redirected to its closed port, and so refused. They never
//! leave unprotected.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use libbpf_rs::{MapCore, MapHandle};
use plait_linux::interfaces::interfaces;

use crate::bindings::{plait_client, plait_destination, plait_redirect_settings, plait_syn};
use crate::bpf::{self, BpfError, lookup};
use crate::ring_events::RingEvents;
use crate::skeleton::redirect::RedirectSkelBuilder;

/// The redirection of one cgroup.
pub(super) struct Redirect {
    arrivals: MapHandle,
    held_clients: MapHandle,
    held_syns: MapHandle,
}

/// Where a program's socket was to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) address: SocketAddr,
    /// The interface that the program bound it to.
    pub(super) interface: Option<String>,
}

/// The ports that connections are redirected to, on loopback.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listeners {
    pub(super) v4: Option<u16>,
    pub(super) v6: Option<u16>,
}

impl Redirect {
    /// Attaches to the program's cgroup. With `require`, datagrams other than DNS and connections of an address family
    /// without a listener are refused (EPERM), since they would leave unprotected. With `hold`, SYNs to the listeners are held
    /// ([`super::held_syn`]).
    pub(super) fn attach(
        cgroup: impl AsFd,
        listeners: Listeners,
        require: bool,
        hold: bool,
    ) -> Result<Redirect, BpfError> {
        let settings = plait_redirect_settings {
            listener_v4: listeners.v4.unwrap_or(0).to_be(),
            listener_v6: listeners.v6.unwrap_or(0).to_be(),
            require: require.into(),
            hold: hold.into(),
        };
        let mut storage = MaybeUninit::uninit();
        let skeleton = bpf::load("redirect", RedirectSkelBuilder::default(), &mut storage)?;
        bpf::write_settings(&skeleton.maps.settings, &settings)?;
        bpf::Programs::of(&skeleton)?.attach_permanently(cgroup)?;
        Ok(Redirect {
            arrivals: bpf::handle(&skeleton.maps.arrivals)?,
            held_clients: bpf::handle(&skeleton.maps.held_clients)?,
            held_syns: bpf::handle(&skeleton.maps.held_syns)?,
        })
    }

    /// Removes and returns the original destination of a connection that a listener accepted from `client`.
    pub(super) fn take_destination(&self, client: SocketAddr) -> Option<Destination> {
        let key = client_key(client);
        let key = bytemuck::bytes_of(&key);
        let destination = lookup::<plait_destination>(&self.arrivals, key).ok().flatten()?;
        // One that remains is evicted in time, and overwritten when the port is used again.
        let _ = self.arrivals.delete(key);
        destination_of(&destination)
    }

    /// The SYNs that are held from now on.
    pub(super) fn held_syns(&self) -> io::Result<RingEvents<plait_syn>> {
        RingEvents::open(&self.held_syns)
    }

    /// Holds the SYN of this client no longer, should TCP send it again.
    pub(super) fn release(&self, client: SocketAddr) {
        // One that is not there is not held.
        let _ = self.held_clients.delete(bytemuck::bytes_of(&client_key(client)));
    }
}

fn client_key(client: SocketAddr) -> plait_client {
    let mut octets = [0; 16];
    match client.ip() {
        IpAddr::V4(ip) => octets[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => octets = ip.octets(),
    }
    plait_client { address: bytemuck::cast(octets), port: client.port(), ipv6: client.is_ipv6().into() }
}

pub(super) fn destination_of(destination: &plait_destination) -> Option<Destination> {
    Some(Destination { address: address(destination)?, interface: interface_name(destination.interface) })
}

fn interface_name(index: u32) -> Option<String> {
    let interfaces = if index == 0 { Vec::new() } else { interfaces().unwrap_or_default() };
    interfaces.into_iter().find(|interface| interface.index == index).map(|interface| interface.name)
}

fn address(destination: &plait_destination) -> Option<SocketAddr> {
    let words = destination.address;
    let ip = match i32::from(destination.family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(words[0].to_ne_bytes())),
        libc::AF_INET6 => Ipv6Addr::from(bytemuck::cast::<_, [u8; 16]>(words)).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be(destination.port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(family: i32, address: [u8; 16]) -> plait_destination {
        plait_destination {
            address: bytemuck::cast(address),
            port: 443u16.to_be(),
            family: family as u16,
            interface: 0,
            held: 0,
        }
    }

    #[test]
    fn destinations_are_read_in_network_byte_order() {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[192, 0, 2, 7]);
        assert_eq!(address(&destination(libc::AF_INET, bytes)), Some("192.0.2.7:443".parse().unwrap()));

        let six: Ipv6Addr = "2001:db8::9".parse().unwrap();
        let found = address(&destination(libc::AF_INET6, six.octets()));
        assert_eq!(found, Some("[2001:db8::9]:443".parse().unwrap()));
    }

    #[test]
    fn ipv4_mapped_destination_is_ipv4() {
        let mapped = Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped();
        let found = address(&destination(libc::AF_INET6, mapped.octets()));
        assert_eq!(found, Some("192.0.2.7:443".parse().unwrap()));
    }

    #[test]
    fn unknown_address_family_is_no_destination() {
        assert_eq!(address(&destination(libc::AF_UNIX, [0; 16])), None);
    }
}
