//! From what is written to what can be built: every name leads somewhere, every address can be, every host is reached.

use std::collections::{BTreeMap, BTreeSet};

use plait_config::{Mistake, Place, Source};
use plait_emulator::{Direction, LinkSpec, Medium};
use plait_wire::Role;
use toml::Spanned;

use super::{
    Address, End, Host, Link, MptcpLimits, Program, Service, Setting, Side, Topology, events, resolve,
    written,
};

/// Ethernet's.
const MTU: u16 = 1500;
const LINKS_MOST: usize = 254;
const NAME_LONGEST: usize = 32;
/// The kernel's limit, without the final zero.
const INTERFACE_NAME_LONGEST: usize = 15;

pub(super) fn checked(written: written::Topology, source: Source) -> Result<Topology, Mistake> {
    let check = Check { source: &source };
    let hosts = check.hosts(written.hosts)?;
    let links = check.links(written.links, &hosts)?;
    check.all_reached(&hosts, &links)?;
    let services = check.services(written.services, &hosts, &links)?;
    let backend_place = written.backend.as_ref().map(Spanned::span);
    let backend = written.backend.and_then(|wish| wish.into_inner().backend());
    Ok(Topology { backend, hosts, links, services, source, backend_place })
}

struct Check<'s> {
    source: &'s Source,
}

impl Check<'_> {
    fn fail<T>(&self, place: Place, message: impl Into<String>) -> Result<T, Mistake> {
        Err(self.source.mistake(place, message))
    }

    fn name(&self, name: &Spanned<String>, what: &str, longest: usize) -> Result<String, Mistake> {
        let text = name.get_ref();
        let fits = (1..=longest).contains(&text.len());
        if fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Ok(text.clone());
        }
        let message = format!(
            "expected a name for {what}: 1 to {longest} letters, digits or underscores, found {text:?}"
        );
        self.fail(name.span(), message)
    }

    /// An error unless `name` is one of `hosts`.
    fn known(&self, name: &str, place: Place, hosts: &[Host]) -> Result<(), Mistake> {
        if hosts.iter().any(|host| host.name == name) {
            return Ok(());
        }
        let known: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
        self.fail(place, format!("expected one of the hosts {}, found {name:?}", known.join(", ")))
    }

    fn hosts(&self, written: BTreeMap<Spanned<String>, written::Host>) -> Result<Vec<Host>, Mistake> {
        let mut hosts = Vec::new();
        for (name, host) in written {
            let place = name.span();
            let name = self.name(&name, "a host", NAME_LONGEST)?;
            let mut sysctls = Vec::new();
            for (name, value) in host.sysctls {
                sysctls.push(self.setting(name, value)?);
            }
            if let Some(name) = &host.congestion_control {
                self.name(name, "a congestion control", INTERFACE_NAME_LONGEST)?;
            }
            hosts.push(Host {
                name,
                forward: host.forward,
                mptcp: host.mptcp.map(limits),
                sysctls,
                congestion_control: host.congestion_control.map(Spanned::into_inner),
                place,
            });
        }
        hosts.sort_by_key(|host| host.place.start);
        Ok(hosts)
    }

    fn setting(&self, name: Spanned<String>, value: written::SettingValue) -> Result<Setting, Mistake> {
        let place = name.span();
        let name = name.into_inner();
        let part = |part: &str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        };
        if !name.starts_with("net.") || !name.split('.').all(part) {
            let expected = "a setting of the network namespace, such as \"net.ipv4.tcp_rmem\"";
            return self.fail(place, format!("expected {expected}, found {name:?}"));
        }
        let written::SettingValue(value) = value;
        Ok(Setting { name, value, place })
    }

    fn links(&self, written: Vec<Spanned<written::Link>>, hosts: &[Host]) -> Result<Vec<Link>, Mistake> {
        let mut links: Vec<Link> = Vec::new();
        let mut taken = Taken::default();
        for (number, link) in (1..).zip(written) {
            let place = link.span();
            let link = link.into_inner();
            if number > LINKS_MOST {
                return self.fail(place, format!("expected at most {LINKS_MOST} links, found one more"));
            }
            let name = self.name(&link.name, "a link", INTERFACE_NAME_LONGEST)?;
            if links.iter().any(|other| other.name == name) {
                let message = format!("expected a name that no other link has, found {name:?} again");
                return self.fail(link.name.span(), message);
            }
            let (a_place, b_place) = (link.a.span(), link.b.span());
            for end in [&link.a, &link.b] {
                self.known(&end.get_ref().host, end.span(), hosts)?;
            }
            if link.a.get_ref().host == link.b.get_ref().host {
                let message =
                    format!("expected another host than that of a, found {:?} again", link.b.get_ref().host);
                return self.fail(b_place, message);
            }
            let mtu = link.mtu.map_or(MTU, |mtu| mtu.0);
            let each_way = Direction::default().adjusted(&link.each_way);
            let medium = match link.half_duplex {
                Some(half) => Medium::HalfDuplex { per_frame: half.per_frame },
                None => Medium::FullDuplex,
            };
            let spec = LinkSpec {
                a_to_b: each_way.adjusted(&link.a_to_b),
                b_to_a: each_way.adjusted(&link.b_to_a),
                medium,
                mtu,
            };
            let number = u8::try_from(number).expect("at most 254 links");
            let addresses = self.addresses(
                link.a.get_ref(),
                link.b.get_ref(),
                &b_place,
                link.family,
                number,
                &mut taken,
            )?;
            let [a_addresses, b_addresses] = addresses;
            let a = self.end(link.a.into_inner(), &a_place, &link.name, a_addresses, &mut taken)?;
            let b = self.end(link.b.into_inner(), &b_place, &link.name, b_addresses, &mut taken)?;
            let events = events::in_order(self.source, link.events)?;
            links.push(Link { name, role: link.role.unwrap_or(Role::Untrusted), a, b, spec, events, place });
        }
        Ok(links)
    }

    fn end(
        &self,
        written: written::End,
        place: &Place,
        link: &Spanned<String>,
        addresses: Vec<Address>,
        taken: &mut Taken,
    ) -> Result<End, Mistake> {
        let given = written.interface.as_ref();
        let interface = self.name(given.unwrap_or(link), "an interface", INTERFACE_NAME_LONGEST)?;
        let place = given.map_or(place.clone(), Spanned::span);
        if ["lo", "all", "default"].contains(&interface.as_str()) {
            let message = format!("expected a name that the kernel does not use itself, found {interface:?}");
            return self.fail(given.unwrap_or(link).span(), message);
        }
        if !taken.interfaces.insert((written.host.clone(), interface.clone())) {
            let message = format!(
                "expected an interface that {} does not have yet, found {interface:?} again",
                written.host
            );
            return self.fail(place, message);
        }
        Ok(End { host: written.host, interface, addresses, endpoint: written.endpoint })
    }

    /// The addresses of both ends: those given, checked against each other and all before, or assigned ones.
    fn addresses(
        &self,
        a: &written::End,
        b: &written::End,
        b_place: &Place,
        family: Option<Spanned<written::Family>>,
        number: u8,
        taken: &mut Taken,
    ) -> Result<[Vec<Address>; 2], Mistake> {
        let family = family.as_ref();
        let [of_a, of_b] = match (&a.addresses, &b.addresses) {
            (None, None) => Side::BOTH.map(|side| {
                let addresses = Address::assigned(number, side).into_iter();
                let wished = |it: &Address| match family.map(|family| *family.get_ref()) {
                    Some(written::Family::Ipv4) => it.ip.is_ipv4(),
                    Some(written::Family::Ipv6) => it.ip.is_ipv6(),
                    None => true,
                };
                addresses.filter(wished).map(|it| Spanned::new(b_place.clone(), it)).collect::<Vec<_>>()
            }),
            (Some(a), Some(b)) => {
                if let Some(family) = family {
                    let message = "expected family or addresses, found both";
                    return self.fail(family.span(), message);
                }
                [a.clone(), b.clone()]
            }
            (Some(given), None) | (None, Some(given)) => {
                let place = given.first().map_or(b_place.clone(), Spanned::span);
                return self.fail(place, "expected addresses at both ends or at none, found them at one");
            }
        };
        for (own, other) in [(&of_a, &of_b), (&of_b, &of_a)] {
            for address in own {
                let network = address.get_ref().network();
                if !other.iter().any(|other| other.get_ref().network() == network) {
                    let there: Vec<_> = other.iter().map(|it| it.get_ref().to_string()).collect();
                    let there = if there.is_empty() { "none".into() } else { there.join(", ") };
                    let message = format!(
                        "expected an address in a network of the other end, which has {there}, found {}",
                        address.get_ref()
                    );
                    return self.fail(address.span(), message);
                }
                if !taken.addresses.insert(address.get_ref().ip) {
                    let message = format!(
                        "expected an address that nobody has yet, found {} again",
                        address.get_ref().ip
                    );
                    return self.fail(address.span(), message);
                }
            }
        }
        let networks: BTreeMap<_, _> =
            of_a.iter().map(|address| (address.get_ref().network(), address.span())).collect();
        for (network, place) in networks {
            let overlapping = taken.networks.iter().find(|other| overlap(**other, network));
            if let Some(other) = overlapping {
                let message = format!(
                    "expected a network apart from those of other links, found {network}, which meets {other}"
                );
                return self.fail(place, message);
            }
            taken.networks.push(network);
        }
        Ok([of_a, of_b].map(|addresses| addresses.into_iter().map(Spanned::into_inner).collect()))
    }

    /// Every host can be reached from the first one, over hosts that forward.
    fn all_reached(&self, hosts: &[Host], links: &[Link]) -> Result<(), Mistake> {
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
                    let forwards = hosts.iter().any(|host| host.name == there && host.forward);
                    if reached.insert(there) && forwards {
                        next.push(there);
                    }
                }
            }
            if let Some(lost) = hosts.iter().find(|host| !reached.contains(host.name.as_str())) {
                let message = format!(
                    "expected a way between {} and {} over links and hosts with `forward = true`, found none",
                    first.name, lost.name
                );
                return self.fail(lost.place.clone(), message);
            }
        }
        Ok(())
    }

    fn services(
        &self,
        written: Vec<Spanned<written::Service>>,
        hosts: &[Host],
        links: &[Link],
    ) -> Result<Vec<Service>, Mistake> {
        let mut services: Vec<Service> = Vec::new();
        let mut ports = BTreeSet::new();
        for service in written {
            let place = service.span();
            let service = service.into_inner();
            let name = self.name(&service.name, "a service", NAME_LONGEST)?;
            if services.iter().any(|other| other.name == name) {
                let message = format!("expected a name that no other service has, found {name:?} again");
                return self.fail(service.name.span(), message);
            }
            self.known(service.host.get_ref(), service.host.span(), hosts)?;
            let (program, port) = self.program(&service, &place, links)?;
            let ready = service.ready.as_ref().map(|words| self.words(words, links)).transpose()?;
            let host = service.host.into_inner();
            if let Some(port) = port
                && !ports.insert((host.clone(), port))
            {
                let place = service.port.map_or(place, |port| port.span());
                let message =
                    format!("expected a port on which nothing else listens on {host}, found {port} again");
                return self.fail(place, message);
            }
            services.push(Service { name, host, program, mptcp: service.mptcp, port, ready, place });
        }
        Ok(services)
    }

    /// What a service runs, and the port at which it listens.
    fn program(
        &self,
        service: &written::Service,
        place: &Place,
        links: &[Link],
    ) -> Result<(Program, Option<u16>), Mistake> {
        let port = service.port.as_ref().map(|port| port.get_ref().0);
        let kind = match (&service.command, &service.kind) {
            (Some(_), None) => None,
            (None, Some(kind)) => Some(*kind.get_ref()),
            (Some(_), Some(kind)) => {
                return self.fail(kind.span(), "expected command or kind, found both");
            }
            (None, None) => {
                return self.fail(place.clone(), "expected the key `command` or `kind`, found none");
            }
        };
        self.only_keys_of(service, kind)?;
        match kind {
            None => {
                let words = service.command.as_ref().expect("a service without a kind has a command");
                Ok((Program::Command(self.words(words, links)?), port))
            }
            Some(written::Kind::Nginx) => {
                let Some(document) = &service.document else {
                    let message =
                        "expected the size of the document, such as document = \"20MB\", found none";
                    return self.fail(place.clone(), message);
                };
                Ok((Program::Nginx { document: document.get_ref().bytes() }, Some(port.unwrap_or(80))))
            }
            Some(written::Kind::Iperf3) => Ok((Program::Iperf3, Some(port.unwrap_or(5201)))),
            Some(written::Kind::Serve) => {
                let (Some(listen), Some(to)) = (&service.listen, &service.to) else {
                    let message =
                        "expected listen = \"ADDRESS:PORT\" and to = \"ADDRESS:PORT\", found not both";
                    return self.fail(place.clone(), message);
                };
                let listen = listen.get_ref().0;
                let mode = service.mode.as_ref().map(|mode| mode.get_ref().clone());
                Ok((Program::Serve { listen, to: self.word(to, links)?, mode }, Some(listen.port())))
            }
        }
    }

    /// A program and its arguments.
    fn words(&self, words: &Spanned<Vec<Spanned<String>>>, links: &[Link]) -> Result<Vec<String>, Mistake> {
        if words.get_ref().first().is_none_or(|program| program.get_ref().is_empty()) {
            return self.fail(words.span(), "expected a program and its arguments, found nothing");
        }
        words.get_ref().iter().map(|word| self.word(word, links)).collect()
    }

    /// A text with the addresses that it names.
    fn word(&self, text: &Spanned<String>, links: &[Link]) -> Result<String, Mistake> {
        resolve(links, text.get_ref()).map_err(|message| self.source.mistake(text.span(), message))
    }

    /// An error for a key that means nothing to this kind of service.
    fn only_keys_of(&self, service: &written::Service, kind: Option<written::Kind>) -> Result<(), Mistake> {
        use written::Kind;
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
        for (key, place, belongs) in keys {
            if let Some(place) = place.filter(|_| !belongs) {
                return self.fail(place, format!("expected a key of a service {kind}, found {key}"));
            }
        }
        Ok(())
    }
}

fn limits(written: written::MptcpLimits) -> MptcpLimits {
    let number = |limit: Option<written::Number<0, 8>>| limit.map_or(0, |limit| limit.0);
    MptcpLimits { subflows: number(written.subflows), add_addr_accepted: number(written.add_addr_accepted) }
}

/// What may be there only once.
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
