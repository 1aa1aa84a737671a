//! Redirects a program's connections to the gateway transparently, by cgroup hooks.
//!
//! `bpf/redirect.bpf.c` is attached to a cgroup that holds only the program and its children, for as long as that cgroup
//! exists: should the gateway be killed, connections are still redirected to its closed port, and so refused. They never
//! leave unprotected.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, MapHandle, OpenObject};
use plait_linux::interfaces::interfaces;

use crate::bindings::{plait_client, plait_destination, plait_redirect_settings, plait_scope, plait_syn};
use crate::bpf::{self, BpfError, lookup};
use crate::networks::Networks;
use crate::ring_events::RingEvents;
use crate::skeleton::redirect::{OpenRedirectSkel, RedirectSkel, RedirectSkelBuilder};

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

/// What is redirected, and where to.
#[derive(Clone, Copy, Debug)]
pub(super) struct RedirectOptions {
    pub(super) listeners: Listeners,
    /// The sockets that DNS is redirected to.
    pub(super) dns: Option<Listeners>,
    /// Refuse connections of an address family without a listener, and datagrams other than DNS (EPERM), since they would leave
    /// unprotected.
    pub(super) require: bool,
    /// Hold SYNs to the listeners ([`super::held_syn`]).
    pub(super) hold: bool,
    /// The mark of sockets whose datagrams are carried ([`super::redirected_datagrams`]), as none are refused then.
    pub(super) mark: Option<u32>,
}

/// The ports that connections, or queries, are redirected to, on loopback.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listeners {
    pub(super) v4: Option<u16>,
    pub(super) v6: Option<u16>,
}

impl Redirect {
    /// Attaches to the program's cgroup.
    pub(super) fn attach(
        cgroup: impl AsFd,
        options: &RedirectOptions,
    ) -> Result<(Redirect, Option<DatagramHooks>), BpfError> {
        let mut storage = MaybeUninit::uninit();
        let skeleton = load(options, &mut storage)?;
        bpf::attach_permanently(&skeleton, cgroup)?;
        let datagrams = options.mark.map(|_| DatagramHooks::of(&skeleton)).transpose()?;
        Ok((Redirect::of(&skeleton)?, datagrams))
    }

    fn of(skeleton: &RedirectSkel) -> Result<Redirect, BpfError> {
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

/// What takes the datagrams of marked sockets.
pub(super) struct DatagramHooks {
    pub(super) sockets: MapHandle,
    /// The addresses of this host.
    pub(super) own: Networks,
    /// The program at the lookup of sockets, not attached yet.
    pub(super) lookup: OwnedFd,
}

impl DatagramHooks {
    fn of(skeleton: &RedirectSkel) -> Result<DatagramHooks, BpfError> {
        let lookup = skeleton.progs.redirect_lookup.as_fd().try_clone_to_owned();
        Ok(DatagramHooks {
            sockets: bpf::handle(&skeleton.maps.datagram_sockets)?,
            own: Networks::of(bpf::handle(&skeleton.maps.own_v4)?, bpf::handle(&skeleton.maps.own_v6)?),
            lookup: lookup.map_err(|error| BpfError::io("open a program", error))?,
        })
    }
}

/// The programs, not attached yet, and whose traffic they redirect: without a scope, all that they see.
pub(super) struct LoadedRedirect {
    pub(super) redirect: Redirect,
    pub(super) programs: bpf::Programs,
    pub(super) scope: Scope,
    /// `None` without a mark.
    pub(super) datagrams: Option<DatagramHooks>,
}

impl LoadedRedirect {
    pub(super) fn load(options: &RedirectOptions) -> Result<LoadedRedirect, BpfError> {
        let mut storage = MaybeUninit::uninit();
        let skeleton = load(options, &mut storage)?;
        Ok(LoadedRedirect {
            redirect: Redirect::of(&skeleton)?,
            programs: bpf::Programs::of(&skeleton)?,
            datagrams: options.mark.map(|_| DatagramHooks::of(&skeleton)).transpose()?,
            scope: Scope {
                settings: bpf::handle(&skeleton.maps.scopes)?,
                users: bpf::handle(&skeleton.maps.users)?,
                programs: bpf::handle(&skeleton.maps.programs)?,
                excluded: Networks::of(
                    bpf::handle(&skeleton.maps.excluded_v4)?,
                    bpf::handle(&skeleton.maps.excluded_v6)?,
                ),
            },
        })
    }
}

fn load<'o>(
    options: &RedirectOptions,
    storage: &'o mut MaybeUninit<OpenObject>,
) -> Result<RedirectSkel<'o>, BpfError> {
    let RedirectOptions { listeners, dns, require, hold, mark } = *options;
    let settings = plait_redirect_settings {
        listener_v4: listeners.v4.unwrap_or(0).to_be(),
        listener_v6: listeners.v6.unwrap_or(0).to_be(),
        require: require.into(),
        hold: hold.into(),
        dns: dns.is_some().into(),
        dns_v4: dns.and_then(|dns| dns.v4).unwrap_or(0).to_be(),
        dns_v6: dns.and_then(|dns| dns.v6).unwrap_or(0).to_be(),
        reserved: 0,
        mark: mark.unwrap_or(0),
    };
    let skeleton = bpf::load_prepared("redirect", RedirectSkelBuilder::default(), storage, |open| {
        if mark.is_none() {
            leave_out_datagrams(open)?;
        }
        Ok(())
    })?;
    bpf::write_settings(&skeleton.maps.settings, &settings)?;
    Ok(skeleton)
}

/// Of an object whose datagrams are not carried: a process may be allowed few descriptors.
fn leave_out_datagrams(object: &mut OpenRedirectSkel<'_>) -> Result<(), libbpf_rs::Error> {
    let (programs, maps) = (&mut object.progs, &mut object.maps);
    for program in [
        &mut programs.redirect_lookup,
        &mut programs.redirect_socket,
        &mut programs.redirect_bind4,
        &mut programs.redirect_bind6,
    ] {
        program.set_autoload(false);
    }
    for map in [&mut maps.datagram_sockets, &mut maps.own_v4, &mut maps.own_v6] {
        map.set_autocreate(false)?;
    }
    Ok(())
}

/// Whose traffic of a whole host is redirected.
pub(super) struct Scope {
    settings: MapHandle,
    users: MapHandle,
    programs: MapHandle,
    pub(super) excluded: Networks,
}

impl Scope {
    /// The traffic of a network namespace, given by its cookie, but for that of a gateway, given by the id of its cgroup. If there
    /// are any users or programs, only theirs.
    pub(super) fn set(
        &self,
        namespace: u64,
        gateway: u64,
        users: &[u32],
        programs: &[String],
    ) -> Result<(), BpfError> {
        for user in users {
            bpf::update(&self.users, &user.to_ne_bytes(), &1u8)?;
        }
        for program in programs {
            let mut name = [0; 16];
            let length = program.len().min(15);
            name[..length].copy_from_slice(&program.as_bytes()[..length]);
            bpf::update(&self.programs, &name, &1u8)?;
        }
        let (by_user, by_program) = (u32::from(!users.is_empty()), u32::from(!programs.is_empty()));
        let scope = plait_scope { namespace, gateway, by_user, by_program };
        bpf::update(&self.settings, &0u32.to_ne_bytes(), &scope)
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
