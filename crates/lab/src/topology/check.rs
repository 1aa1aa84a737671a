//! Checks a topology: every name resolves, every address is valid and unique, every host is reachable.

use std::collections::{BTreeMap, BTreeSet};

use plait_config::{Diagnostic, Role, Source, Span, Spanned};
use plait_emulator::{DirectionSpec, LinkSpec, Medium};

use super::address::Address;
use super::events;
use super::model::{End, Host, Link, MptcpLimits, Program, Service, Setting, Topology, resolve};
use super::raw;
use super::side::Side;

/// The default MTU, that of Ethernet.
const MTU: u16 = 1500;
const MAX_LINKS: usize = 254;
const MAX_NAME: usize = 32;
/// The kernel's limit, without the terminating NUL.
const MAX_INTERFACE_NAME: usize = 15;

pub(super) fn checked(written: raw::Topology, source: Source) -> Result<Topology, Diagnostic> {
    let check = Check { source: &source };
    let hosts = check.hosts(written.hosts)?;
    let links = check.links(written.links, &hosts)?;
    check.all_reached(&hosts, &links)?;
    let services = check.services(written.services, &hosts, &links)?;
    let backend_span = written.backend.as_ref().map(Spanned::span);
    let backend = written.backend.and_then(|choice| choice.into_inner().backend());
    Ok(Topology { backend, hosts, links, services, source, backend_span })
}

struct Check<'s> {
    source: &'s Source,
}

impl Check<'_> {
    fn fail<T>(&self, span: Span, message: impl Into<String>) -> Result<T, Diagnostic> {
        Err(self.source.diagnostic(span, message))
    }

    fn name(&self, name: &Spanned<String>, what: &str, longest: usize) -> Result<String, Diagnostic> {
        let text = name.get_ref();
        let fits = (1..=longest).contains(&text.len());
        if fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Ok(text.clone());
        }
        let message = format!(
            "expected a name for {what}: 1 to {longest} letters, digits or underscores, got {text:?}"
        );
        self.fail(name.span(), message)
    }

    /// Returns an error unless `name` is one of `hosts`.
    fn known(&self, name: &str, span: Span, hosts: &[Host]) -> Result<(), Diagnostic> {
        if hosts.iter().any(|host| host.name == name) {
            return Ok(());
        }
        let known: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
        self.fail(span, format!("expected one of the hosts {}, got {name:?}", known.join(", ")))
    }

    fn hosts(&self, written: BTreeMap<Spanned<String>, raw::Host>) -> Result<Vec<Host>, Diagnostic> {
        let mut hosts = Vec::new();
        for (name, host) in written {
            let span = name.span();
            let name = self.name(&name, "a host", MAX_NAME)?;
            let mut sysctls = Vec::new();
            for (name, value) in host.sysctls {
                sysctls.push(self.setting(name, value)?);
            }
            if let Some(name) = &host.congestion_control {
                self.name(name, "a congestion control", MAX_INTERFACE_NAME)?;
            }
            let bridge = host.bridge.filter(|bridge| *bridge.get_ref());
            if let Some(bridge) = bridge.as_ref().filter(|_| host.forward) {
                return self.fail(bridge.span(), "expected forward or bridge, got both");
            }
            hosts.push(Host {
                name,
                forward: host.forward,
                bridge: bridge.is_some(),
                mptcp: host.mptcp.map(limits),
                sysctls,
                congestion_control: host.congestion_control.map(Spanned::into_inner),
                span,
            });
        }
        hosts.sort_by_key(|host| host.span.start);
        Ok(hosts)
    }

    fn setting(&self, name: Spanned<String>, value: raw::SettingValue) -> Result<Setting, Diagnostic> {
        let span = name.span();
        let name = name.into_inner();
        let part = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        if !name.starts_with("net.") || !name.split('.').all(part) {
            let expected = "a setting of the network namespace, such as \"net.ipv4.tcp_rmem\"";
            return self.fail(span, format!("expected {expected}, got {name:?}"));
        }
        let raw::SettingValue(value) = value;
        Ok(Setting { name, value, span })
    }

    fn links(&self, written: Vec<Spanned<raw::Link>>, hosts: &[Host]) -> Result<Vec<Link>, Diagnostic> {
        let mut links: Vec<Link> = Vec::new();
        let mut taken = Taken::default();
        for (number, link) in (1..).zip(written) {
            let span = link.span();
            let link = link.into_inner();
            if number > MAX_LINKS {
                return self.fail(span, format!("expected at most {MAX_LINKS} links, got one more"));
            }
            let name = self.name(&link.name, "a link", MAX_INTERFACE_NAME)?;
            if links.iter().any(|other| other.name == name) {
                let message = format!("expected a name that no other link has, got {name:?} again");
                return self.fail(link.name.span(), message);
            }
            let (a_span, b_span) = (link.a.span(), link.b.span());
            for end in [&link.a, &link.b] {
                self.known(&end.get_ref().host, end.span(), hosts)?;
            }
            if link.a.get_ref().host == link.b.get_ref().host {
                let message =
                    format!("expected another host than that of a, got {:?} again", link.b.get_ref().host);
                return self.fail(b_span, message);
            }
            let bridges = |end: &raw::End| hosts.iter().any(|host| host.name == end.host && host.bridge);
            if bridges(link.a.get_ref()) && bridges(link.b.get_ref()) {
                return self.fail(b_span, "expected a host that does not bridge at one end, got none");
            }
            let mtu = link.mtu.map_or(MTU, |mtu| mtu.0);
            let each_way = DirectionSpec::default().adjusted(&link.each_way.resolve(self.source)?);
            let medium = match link.half_duplex {
                Some(half) => Medium::HalfDuplex { per_frame: half.per_frame },
                None => Medium::FullDuplex,
            };
            let spec = LinkSpec {
                a_to_b: each_way.adjusted(&link.a_to_b.resolve(self.source)?),
                b_to_a: each_way.adjusted(&link.b_to_a.resolve(self.source)?),
                medium,
                mtu,
                seed: None,
            };
            let number = u8::try_from(number).expect("at most 254 links");
            let addresses =
                self.addresses(link.a.get_ref(), link.b.get_ref(), &b_span, link.family, number, &mut taken)?;
            let [a_addresses, b_addresses] = addresses;
            let a = self.end(link.a.into_inner(), &a_span, &link.name, a_addresses, &mut taken)?;
            let b = self.end(link.b.into_inner(), &b_span, &link.name, b_addresses, &mut taken)?;
            let events = events::in_order(self.source, link.events)?;
            links.push(Link { name, role: link.role.unwrap_or(Role::Untrusted), a, b, spec, events, span });
        }
        Ok(links)
    }

    fn end(
        &self,
        written: raw::End,
        span: &Span,
        link: &Spanned<String>,
        addresses: Vec<Address>,
        taken: &mut Taken,
    ) -> Result<End, Diagnostic> {
        let given = written.interface.as_ref();
        let interface = self.name(given.unwrap_or(link), "an interface", MAX_INTERFACE_NAME)?;
        let span = given.map_or(span.clone(), Spanned::span);
        if ["lo", "all", "default"].contains(&interface.as_str()) {
            let message = format!("expected a name that the kernel does not use itself, got {interface:?}");
            return self.fail(given.unwrap_or(link).span(), message);
        }
        if !taken.interfaces.insert((written.host.clone(), interface.clone())) {
            let message = format!(
                "expected an interface that {} does not have yet, got {interface:?} again",
                written.host
            );
            return self.fail(span, message);
        }
        Ok(End { host: written.host, interface, addresses, endpoint: written.endpoint })
    }

    /// The addresses of both ends: the given ones, checked against each other and all earlier ones, or assigned ones.
    fn addresses(
        &self,
        a: &raw::End,
        b: &raw::End,
        b_span: &Span,
        family: Option<Spanned<raw::Family>>,
        number: u8,
        taken: &mut Taken,
    ) -> Result<[Vec<Address>; 2], Diagnostic> {
        let family = family.as_ref();
        let [of_a, of_b] = match (&a.addresses, &b.addresses) {
            (None, None) => Side::BOTH.map(|side| {
                let addresses = Address::assigned(number, side).into_iter();
                let wished = |it: &Address| match family.map(|family| *family.get_ref()) {
                    Some(raw::Family::Ipv4) => it.ip.is_ipv4(),
                    Some(raw::Family::Ipv6) => it.ip.is_ipv6(),
                    None => true,
                };
                addresses.filter(wished).map(|it| Spanned::new(b_span.clone(), it)).collect::<Vec<_>>()
            }),
            (Some(a), Some(b)) => {
                if let Some(family) = family {
                    let message = "expected family or addresses, got both";
                    return self.fail(family.span(), message);
                }
                [a.clone(), b.clone()]
            }
            (Some(given), None) | (None, Some(given)) => {
                let span = given.first().map_or(b_span.clone(), Spanned::span);
                return self.fail(span, "expected addresses at both ends or at none, got them at one");
            }
        };
        for (own, other) in [(&of_a, &of_b), (&of_b, &of_a)] {
            for address in own {
                let network = address.get_ref().network();
                if !other.iter().any(|other| other.get_ref().network() == network) {
                    let there: Vec<_> = other.iter().map(|it| it.get_ref().to_string()).collect();
                    let there = if there.is_empty() { "none".into() } else { there.join(", ") };
                    let message = format!(
                        "expected an address in a network of the other end, which has {there}, got {}",
                        address.get_ref()
                    );
                    return self.fail(address.span(), message);
                }
                if !taken.addresses.insert(address.get_ref().ip) {
                    let message = format!("expected an unused address, got {} again", address.get_ref().ip);
                    return self.fail(address.span(), message);
                }
            }
        }
        let networks: BTreeMap<_, _> =
            of_a.iter().map(|address| (address.get_ref().network(), address.span())).collect();
        for (network, span) in networks {
            let overlapping = taken.networks.iter().find(|other| overlap(**other, network));
            if let Some(other) = overlapping {
                let message = format!(
                    "expected a network apart from those of other links, got {network}, which meets {other}"
                );
                return self.fail(span, message);
            }
            taken.networks.push(network);
        }
        Ok([of_a, of_b].map(|addresses| addresses.into_iter().map(Spanned::into_inner).collect()))
    }

    /// Checks that every host is reachable from the first one through hosts that forward or bridge.
    fn all_reached(&self, hosts: &[Host], links: &[Link]) -> Result<(), Diagnostic> {
        for first in hosts {
            let mut reached = BTreeSet::from([first.name.as_str()]);
            let mut next = vec![first.name.as_str()];
            while let Some(at) = next.pop() {
                for link in links {
                    let there = match (link.a.host.as_str(), link.b.host.as_str()) {
                        (a, b) if a == at => b,
                        (a, b) if b == at => a,
                        _ => continue,
                    };
                    let forwards =
                        hosts.iter().any(|host| host.name == there && (host.forward || host.bridge));
                    if reached.insert(there) && forwards {
                        next.push(there);
                    }
                }
            }
            if let Some(lost) = hosts.iter().find(|host| !reached.contains(host.name.as_str())) {
                let message = format!(
                    "expected a way between {} and {} over links and hosts with `forward = true` or `bridge = true`, got none",
                    first.name, lost.name
                );
                return self.fail(lost.span.clone(), message);
            }
        }
        Ok(())
    }

    fn services(
        &self,
        written: Vec<Spanned<raw::Service>>,
        hosts: &[Host],
        links: &[Link],
    ) -> Result<Vec<Service>, Diagnostic> {
        let mut services: Vec<Service> = Vec::new();
        let mut ports = BTreeSet::new();
        for service in written {
            let span = service.span();
            let service = service.into_inner();
            let name = self.name(&service.name, "a service", MAX_NAME)?;
            if services.iter().any(|other| other.name == name) {
                let message = format!("expected a name that no other service has, got {name:?} again");
                return self.fail(service.name.span(), message);
            }
            self.known(service.host.get_ref(), service.host.span(), hosts)?;
            let (program, port) = self.program(&service, &span, links)?;
            let ready = service.ready.as_ref().map(|words| self.words(words, links)).transpose()?;
            let host = service.host.into_inner();
            if let Some(port) = port
                && !ports.insert((host.clone(), port))
            {
                let span = service.port.map_or(span, |port| port.span());
                let message =
                    format!("expected a port on which nothing else listens on {host}, got {port} again");
                return self.fail(span, message);
            }
            services.push(Service { name, host, program, mptcp: service.mptcp, port, ready, span });
        }
        Ok(services)
    }

    /// The program of a service, and the port that it listens on.
    fn program(
        &self,
        service: &raw::Service,
        span: &Span,
        links: &[Link],
    ) -> Result<(Program, Option<u16>), Diagnostic> {
        let port = service.port.as_ref().map(|port| port.get_ref().0);
        let kind = match (&service.command, &service.kind) {
            (Some(_), None) => None,
            (None, Some(kind)) => Some(*kind.get_ref()),
            (Some(_), Some(kind)) => {
                return self.fail(kind.span(), "expected command or kind, got both");
            }
            (None, None) => {
                return self.fail(span.clone(), "expected the key `command` or `kind`, got none");
            }
        };
        self.only_keys_of(service, kind)?;
        match kind {
            None => {
                let words = service.command.as_ref().expect("a service without a kind has a command");
                Ok((Program::Command(self.words(words, links)?), port))
            }
            Some(raw::Kind::Nginx) => {
                let Some(document) = &service.document else {
                    let message = "expected the size of the document, such as document = \"20MB\", got none";
                    return self.fail(span.clone(), message);
                };
                Ok((Program::Nginx { document: document.get_ref().bytes() }, Some(port.unwrap_or(80))))
            }
            Some(raw::Kind::Iperf3) => Ok((Program::Iperf3, Some(port.unwrap_or(5201)))),
            Some(raw::Kind::Serve) => {
                let (Some(listen), Some(to)) = (&service.listen, &service.to) else {
                    let message =
                        "expected listen = \"ADDRESS:PORT\" and to = \"ADDRESS:PORT\", got not both";
                    return self.fail(span.clone(), message);
                };
                let listen = listen.get_ref().0;
                let mode = service.mode.as_ref().map(|mode| mode.get_ref().clone());
                Ok((Program::Serve { listen, to: self.word(to, links)?, mode }, Some(listen.port())))
            }
        }
    }

    /// Resolves the addresses in a program and its arguments.
    fn words(
        &self,
        words: &Spanned<Vec<Spanned<String>>>,
        links: &[Link],
    ) -> Result<Vec<String>, Diagnostic> {
        if words.get_ref().first().is_none_or(|program| program.get_ref().is_empty()) {
            return self.fail(words.span(), "expected a program and its arguments, got nothing");
        }
        words.get_ref().iter().map(|word| self.word(word, links)).collect()
    }

    /// Resolves the addresses in a text.
    fn word(&self, text: &Spanned<String>, links: &[Link]) -> Result<String, Diagnostic> {
        resolve(links, text.get_ref()).map_err(|message| self.source.diagnostic(text.span(), message))
    }

    /// Rejects keys that this kind of service does not have.
    fn only_keys_of(&self, service: &raw::Service, kind: Option<raw::Kind>) -> Result<(), Diagnostic> {
        use raw::Kind;
        let serve = kind == Some(Kind::Serve);
        let keys = [
            ("document", service.document.as_ref().map(Spanned::span), kind == Some(Kind::Nginx)),
            ("listen", service.listen.as_ref().map(Spanned::span), serve),
            ("to", service.to.as_ref().map(Spanned::span), serve),
            ("mode", service.mode.as_ref().map(Spanned::span), serve),
            ("port", service.port.as_ref().map(Spanned::span), !serve),
        ];
        let kind = match kind {
            None => "with a command".into(),
            Some(kind) => format!("of kind {}", format!("{kind:?}").to_lowercase()),
        };
        for (key, span, belongs) in keys {
            if let Some(span) = span.filter(|_| !belongs) {
                return self.fail(span, format!("expected a key of a service {kind}, got {key}"));
            }
        }
        Ok(())
    }
}

fn limits(written: raw::MptcpLimits) -> MptcpLimits {
    let number = |limit: Option<raw::Number<0, 8>>| limit.map_or(0, |limit| limit.0);
    MptcpLimits { subflows: number(written.subflows), add_addr_accepted: number(written.add_addr_accepted) }
}

/// Interfaces, addresses and networks already in use, which must be unique.
#[derive(Default)]
struct Taken {
    interfaces: BTreeSet<(String, String)>,
    addresses: BTreeSet<std::net::IpAddr>,
    networks: Vec<Address>,
}

/// Whether two networks have an address in common.
fn overlap(one: Address, other: Address) -> bool {
    let prefix = one.prefix.min(other.prefix);
    let wide = |network: Address| Address { prefix, ..network }.network();
    one.ip.is_ipv4() == other.ip.is_ipv4() && wide(one) == wide(other)
}
