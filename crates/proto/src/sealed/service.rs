//! Which service an initiator asks for: what keeps an attacker from redirecting it to another one of the same responder, or of
//! another with the same static key.

use ring::hmac;

use super::session_id::SessionId;

/// What an exit is asked for in place of a host's name, which has no space.
const EXIT: &str = "plait exit";

/// The peer as the initiator's application named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    name: String,
    port: u16,
}

impl Service {
    /// The service on this port of a host, by its name or address.
    #[must_use]
    pub fn new(name: &str, port: u16) -> Service {
        Service { name: name.to_lowercase(), port }
    }

    /// The exit on this port: it connects to the [destination](crate::exit) that the initiator names.
    #[must_use]
    pub fn exit(port: u16) -> Service {
        Service { name: EXIT.to_owned(), port }
    }

    pub(super) fn requested(&self, session: &SessionId) -> RequestedService {
        RequestedService { port: self.port, name: name_tag(session, &self.name) }
    }
}

/// The services that a responder answers for: each a port, under a name or under any but that of an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Services {
    names: Vec<(Option<String>, u16)>,
    /// The indices of those whose initiators must authenticate.
    identified: Vec<usize>,
}

impl Services {
    /// Those on these ports, each under its name, or under any.
    #[must_use]
    pub fn new(services: Vec<(Option<String>, u16)>) -> Services {
        Services { names: services, identified: Vec::new() }
    }

    /// These services, of which those with the indices `identified` are for initiators that authenticate.
    #[must_use]
    pub fn with_identified(self, identified: Vec<usize>) -> Services {
        Services { identified, ..self }
    }

    /// The service on this port, under any name.
    #[must_use]
    pub fn on_port(port: u16) -> Services {
        Services::new(vec![(None, port)])
    }

    /// The exit on these ports.
    #[must_use]
    pub fn exit(ports: impl IntoIterator<Item = u16>) -> Services {
        Services::new(ports.into_iter().map(|port| (Some(EXIT.to_owned()), port)).collect())
    }

    /// The index of the requested one: that with its name, or else the one under any name.
    pub(super) fn find(&self, session: &SessionId, requested: &RequestedService) -> Option<usize> {
        let is_named = |name: &str| name_tag(session, &name.to_lowercase()) == requested.name;
        let on_port = || self.names.iter().enumerate().filter(|(_, (_, port))| *port == requested.port);
        let named = on_port().find(|(_, (name, _))| name.as_deref().is_some_and(is_named));
        let any = || on_port().find(|(_, (name, _))| name.is_none() && !is_named(EXIT));
        named.or_else(any).map(|(index, _)| index)
    }

    /// Whether an initiator that asks for the one with this index must authenticate.
    pub(super) fn requires_identity(&self, index: usize) -> bool {
        self.identified.contains(&index)
    }
}

/// A service as HELLO names it. The name is an HMAC under the session id: others can at most guess it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestedService {
    pub(super) port: u16,
    pub(super) name: [u8; RequestedService::NAME_LEN],
}

impl RequestedService {
    pub(super) const NAME_LEN: usize = 32;
    /// Bytes in HELLO.
    pub(super) const LEN: usize = 2 + Self::NAME_LEN;
}

/// HMAC-SHA256 with the session id as key, over `plait service` and the name.
fn name_tag(session: &SessionId, name: &str) -> [u8; RequestedService::NAME_LEN] {
    let mut tag = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, session.as_bytes()));
    tag.update(b"plait service");
    tag.update(name.as_bytes());
    tag.sign().as_ref().try_into().expect("HMAC-SHA256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_its_port_and_its_name_if_the_responder_has_one() {
        let session = SessionId::new([7; 32]);
        let requested = Service::new("Server.example", 443).requested(&session);
        let these = |name: Option<&str>, port| Services::new(vec![(name.map(Into::into), port)]);
        for (services, expected) in [
            (Services::on_port(443), true),
            (Services::on_port(8080), false),
            (these(Some("server.EXAMPLE"), 443), true),
            (these(Some("server.example"), 8080), false),
            (these(Some("other.example"), 443), false),
            (Services::new(vec![(None, 80), (Some("server.example".into()), 443)]), true),
            (Services::new(Vec::new()), false),
        ] {
            assert_eq!(services.find(&session, &requested).is_some(), expected, "{services:?}");
        }
    }

    #[test]
    fn the_service_with_the_requested_name_takes_precedence() {
        let session = SessionId::new([7; 32]);
        let services = Services::new(vec![(None, 443), (Some("b.example".into()), 443), (None, 80)]);
        let find = |name, port| services.find(&session, &Service::new(name, port).requested(&session));
        assert_eq!(find("b.example", 443), Some(1));
        assert_eq!(find("a.example", 443), Some(0));
        assert_eq!(find("b.example", 80), Some(2));
        assert_eq!(find("b.example", 81), None);
    }

    #[test]
    fn an_exit_is_no_service_under_any_name() {
        let session = SessionId::new([7; 32]);
        let [exit, other] = [Service::exit(443), Service::new("a", 443)].map(|it| it.requested(&session));
        assert_eq!(Services::on_port(443).find(&session, &exit), None);
        let exits = Services::exit([443]);
        assert_eq!((exits.find(&session, &exit), exits.find(&session, &other)), (Some(0), None));
        assert_eq!(Services::exit([444]).find(&session, &exit), None);
    }

    #[test]
    fn the_name_differs_in_every_session() {
        let service = Service::new("server.example", 443);
        let [one, other] = [1, 2].map(|byte| service.requested(&SessionId::new([byte; 32])));
        assert_ne!(one.name, other.name);
    }
}
