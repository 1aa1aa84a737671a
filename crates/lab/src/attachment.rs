//! A host's end of a link: the interface with its addresses, routes, rules and MPTCP endpoints. Events remove and
//! restore them.

use std::net::IpAddr;

use crate::error::Error;
use crate::host::Host;
use crate::routes::{Plan, Route, Rule};
use crate::topology::{Address, EndpointFlag};

/// An interface and its configuration.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) host: Host,
    pub(crate) interface: String,
    pub(crate) addresses: Vec<Address>,
    pub(crate) plan: Plan,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// An MPTCP endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Its address identifier (RFC 8684, section 3.4.1), from 1.
    pub(crate) id: u8,
    pub(crate) address: IpAddr,
    pub(crate) flags: Vec<EndpointFlag>,
}

impl Attachment {
    /// The `ip` commands that configure an interface that is up.
    pub(crate) fn commands(&self) -> Vec<String> {
        let mut commands = self.address_commands();
        commands.extend(self.route_commands("replace"));
        commands.extend(self.endpoints.iter().map(|endpoint| endpoint.added_to(&self.interface)));
        commands.extend(self.rule_commands("add"));
        commands
    }

    /// Sets the interface down; the kernel removes its routes and IPv6 addresses.
    pub(crate) fn interface_down(&self) -> Result<(), Error> {
        self.host.ip_all([format!("link set {} down", self.interface)])
    }

    /// Sets the interface up, and restores what the kernel removed.
    pub(crate) fn interface_up(&self) -> Result<(), Error> {
        let mut commands = vec![format!("link set {} up", self.interface)];
        commands.extend(self.address_commands());
        commands.extend(self.route_commands("replace"));
        self.host.ip_all(commands)
    }

    /// Removes the addresses as a connection manager does: first everything that uses them, then the addresses.
    pub(crate) fn addresses_removed(&self) -> Result<(), Error> {
        let interface = &self.interface;
        let endpoints =
            self.endpoints.iter().map(|endpoint| format!("mptcp endpoint delete id {}", endpoint.id));
        let mut commands: Vec<_> = endpoints.collect();
        commands.extend(self.rule_commands("delete"));
        let mut routes: Vec<_> = self.route_commands("delete").collect();
        // Routes via a gateway are removed before the route to the gateway.
        routes.reverse();
        commands.extend(routes);
        commands
            .extend(self.addresses.iter().map(|address| format!("address delete {address} dev {interface}")));
        self.host.ip_all(commands)
    }

    /// Undoes [`addresses_removed`](Self::addresses_removed).
    pub(crate) fn addresses_added(&self) -> Result<(), Error> {
        self.host.ip_all(self.commands())
    }

    /// The addresses are added without prefix routes: every route comes from the plan.
    fn address_commands(&self) -> Vec<String> {
        let interface = &self.interface;
        let command = |address: &Address| {
            // Usable immediately, without duplicate address detection.
            let at_once = if address.ip.is_ipv6() { " nodad" } else { "" };
            format!("address replace {address} dev {interface} noprefixroute{at_once}")
        };
        self.addresses.iter().map(command).collect()
    }

    fn route_commands(&self, verb: &str) -> impl Iterator<Item = String> {
        self.plan.routes.iter().map(move |route: &Route| format!("route {verb} {route}"))
    }

    fn rule_commands(&self, verb: &str) -> impl Iterator<Item = String> {
        self.plan.rules.iter().map(move |rule: &Rule| {
            let family = if rule.from.is_ipv6() { "-6 " } else { "" };
            format!("{family}rule {verb} {rule}")
        })
    }
}

impl Endpoint {
    fn added_to(&self, interface: &str) -> String {
        let flags: Vec<_> = self.flags.iter().map(|flag| flag.word()).collect();
        format!("mptcp endpoint add {} id {} dev {interface} {}", self.address, self.id, flags.join(" "))
    }
}
