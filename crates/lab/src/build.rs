//! Builds a topology: hosts, links, settings, addresses and routes, then services.
//!
//! On an error, everything built so far is removed.

use plait_emulator::{Backend, Change};

use crate::attachment::{Attachment, Endpoint};
use crate::error::Error;
use crate::host::Host;
use crate::lab::Lab;
use crate::link::Link;
use crate::routes::plan;
use crate::seed::Seed;
use crate::services::Service;
use crate::topology::{self, Side, Topology};
use plait_linux::signal::StopSignal;

impl Lab {
    /// Builds a topology; returns once all its services are ready. `backend` overrides the backend of the topology;
    /// everything random is derived from `seed`.
    ///
    /// A step fails; the error shows the line of the file that caused it, if any. Everything built so far is removed.
    pub fn up(
        topology: &Topology,
        backend: Option<Backend>,
        seed: Seed,
        stop: StopSignal,
    ) -> Result<Self, Error> {
        check_backends(topology, backend)?;
        let mut lab = Self::new(seed, stop)?;
        for host in &topology.hosts {
            lab.add_host(&host.name)?;
        }
        for link in &topology.links {
            lab.stop.check()?;
            lab.make_link(topology, link, backend)?;
        }
        for (spec, host) in topology.hosts.iter().zip(&lab.hosts) {
            lab.stop.check()?;
            configure_host(topology, spec, host, &lab.links)?;
        }
        for service in &topology.services {
            let host = lab.find_host(&service.host)?.clone();
            let started = Service::start(service, &host, lab.scratch(), lab.seed, &lab.stop);
            lab.services.push(started.map_err(|cause| match cause {
                Error::Interrupted => cause,
                cause => {
                    let message = format!("the service {} did not start: {cause}", service.name);
                    topology.diagnostic(&service.span, message).into()
                }
            })?);
        }
        Ok(lab)
    }

    fn make_link(
        &mut self,
        topology: &Topology,
        spec: &topology::Link,
        backend: Option<Backend>,
    ) -> Result<(), Error> {
        let make = |backend| {
            let ends = [self.attachment(topology, spec, Side::A), self.attachment(topology, spec, Side::B)];
            let seed = Some(self.seed.derive(&format!("link {}", spec.name)).0.into());
            let seeded = plait_emulator::LinkSpec { seed, ..spec.spec.clone() };
            Link::make(&spec.name, spec.role, &seeded, backend, ends)
        };
        let link = match backend.or(topology.backend) {
            Some(backend) => make(backend),
            None => match make(preferred_backend(spec)) {
                Err(plait_emulator::Error::Unavailable { .. }) => {
                    Backend::for_link(&spec.spec, &changes(spec)).and_then(make)
                }
                made => made,
            },
        };
        let link = link.map_err(|cause| link_error(topology, backend, spec, cause))?;
        self.events.extend(spec.events.iter().map(|event| (link.clone(), event.clone())));
        self.links.push(link);
        Ok(())
    }

    fn attachment(&self, topology: &Topology, link: &topology::Link, side: Side) -> Attachment {
        let end = link.end(side);
        let both = topology.hosts.iter().zip(&self.hosts).find(|(spec, _)| spec.name == end.host);
        let (spec, host) = both.expect("a checked topology has the hosts of its links");
        Attachment {
            host: host.clone(),
            interface: end.interface.clone(),
            addresses: if spec.bridge { Vec::new() } else { end.addresses.clone() },
            plan: plan(topology, spec, link, side),
            endpoints: if spec.bridge { Vec::new() } else { endpoints(topology, link, side) },
        }
    }
}

/// Checks that the requested backend supports all links and events, before anything is built.
fn check_backends(topology: &Topology, backend: Option<Backend>) -> Result<(), Error> {
    let Some(requested) = backend.or(topology.backend) else { return Ok(()) };
    topology.links.iter().try_for_each(|link| {
        requested
            .check(&link.spec, &changes(link))
            .map_err(|cause| link_error(topology, backend, link, cause))
    })
}

fn changes(link: &topology::Link) -> Vec<Change> {
    link.events.iter().filter_map(|event| event.action.change()).collect()
}

/// The backend to try first for a link that requests none: cheaper than probing every backend.
fn preferred_backend(link: &topology::Link) -> Backend {
    let wire = Backend::None.check(&link.spec, &changes(link)).is_ok();
    if wire { Backend::None } else { Backend::Emu }
}

/// Attaches the line that causes an error: that of the backend if it does not work here, else that of the link.
fn link_error(
    topology: &Topology,
    backend: Option<Backend>,
    link: &topology::Link,
    cause: plait_emulator::Error,
) -> Error {
    let unavailable = matches!(cause, plait_emulator::Error::Unavailable { .. });
    match (unavailable, backend, topology.backend_span()) {
        (true, Some(_), _) => Error::Backend(cause),
        (true, None, Some(span)) => {
            topology.diagnostic(span, format!("expected a backend that works here, got: {cause}")).into()
        }
        _ => topology.diagnostic(&link.span, format!("cannot create the link {}: {cause}", link.name)).into(),
    }
}

/// The MPTCP endpoints of one end, numbered across all endpoints of its host.
fn endpoints(topology: &Topology, link: &topology::Link, side: Side) -> Vec<Endpoint> {
    let end = link.end(side);
    let of_host = |other: &&topology::End| other.host == end.host && !other.endpoint.is_empty();
    let before = topology.links.iter().take_while(|other| other.name != link.name);
    let ends = before.flat_map(|other| [&other.a, &other.b]).filter(of_host);
    let first = 1 + ends.map(|other| other.addresses.len()).sum::<usize>();
    let addresses = end.addresses.iter().filter(|_| !end.endpoint.is_empty());
    let endpoint = |(id, address): (usize, &topology::Address)| {
        // The kernel accepts at most eight, and reports the limit itself.
        let id = u8::try_from(id).unwrap_or(u8::MAX);
        Endpoint { id, address: address.ip, flags: end.endpoint.clone() }
    };
    (first..).zip(addresses).map(endpoint).collect()
}

fn configure_host(
    topology: &Topology,
    spec: &topology::Host,
    host: &Host,
    links: &[Link],
) -> Result<(), Error> {
    let forwarding = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"].map(|name| (name, "1"));
    host.set_sysctls(forwarding.into_iter().filter(|_| spec.forward))?;
    // An interface behind a bridge answers for its own addresses alone, so that each address stays on its link.
    let own_addresses = [("net.ipv4.conf.all.arp_ignore", "1"), ("net.ipv4.conf.all.arp_announce", "2")];
    host.set_sysctls(own_addresses.into_iter().filter(|_| topology.hosts.iter().any(|host| host.bridge)))?;
    for setting in &spec.sysctls {
        host.set_sysctl(&setting.name, &setting.value).map_err(|error| refused(topology, setting, error))?;
    }
    let mut commands = vec!["link set lo up".to_owned()];
    if let Some(limits) = spec.mptcp {
        let topology::MptcpLimits { subflows, add_addr_accepted } = limits;
        commands.push(format!("mptcp limits set subflows {subflows} add_addr_accepted {add_addr_accepted}"));
    }
    if spec.bridge {
        commands.extend(["link add bridge type bridge", "link set bridge up"].map(str::to_owned));
    }
    let ends = links.iter().flat_map(|link| Side::BOTH.map(|side| link.end(side)));
    for end in ends.filter(|end| end.host.name() == host.name()) {
        commands.extend(spec.bridge.then(|| format!("link set {} master bridge", end.interface)));
        commands.extend(end.commands());
    }
    host.ip_all(commands).map_err(|error| match &error {
        Error::Failed { command, stderr, .. } => {
            let message = format!("cannot configure the host {}: `{command}` failed: {stderr}", spec.name);
            topology.diagnostic(&spec.span, message).into()
        }
        _ => error,
    })
}

fn refused(topology: &Topology, setting: &topology::Setting, error: Error) -> Error {
    let Error::File { source, .. } = error else { return error };
    let name = &setting.name;
    let message = match source.kind() {
        std::io::ErrorKind::NotFound => {
            format!("expected a setting of network namespaces on this kernel, got {name:?}")
        }
        _ => {
            format!("expected a value that the kernel accepts for {name}, got {:?}: {source}", setting.value)
        }
    };
    topology.diagnostic(&setting.span, message).into()
}
