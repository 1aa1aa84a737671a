//! Which service an initiator asks for: what keeps an attacker from redirecting it to another one of the same responder, or of
//! another with the same static key.

use ring::hmac;

use super::session_id::SessionId;

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

    pub(super) fn requested(&self, session: &SessionId) -> RequestedService {
        RequestedService { port: self.port, name: name_tag(session, &self.name) }
    }
}

/// The services that a responder answers for: each a port, under a name or under any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Services(Vec<(Option<String>, u16)>);

impl Services {
    /// Those on these ports, each under its name, or under any.
    #[must_use]
    pub fn new(services: Vec<(Option<String>, u16)>) -> Services {
        Services(services)
    }

    /// The service on this port, under any name.
    #[must_use]
    pub fn on_port(port: u16) -> Services {
        Services(vec![(None, port)])
    }

    pub(super) fn include(&self, session: &SessionId, requested: &RequestedService) -> bool {
        self.0.iter().any(|(name, port)| {
            let is_named = |name: &String| name_tag(session, &name.to_lowercase()) == requested.name;
            *port == requested.port && name.as_ref().is_none_or(is_named)
        })
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
            assert_eq!(services.include(&session, &requested), expected, "{services:?}");
        }
    }

    #[test]
    fn the_name_differs_in_every_session() {
        let service = Service::new("server.example", 443);
        let [one, other] = [1, 2].map(|byte| service.requested(&SessionId::new([byte; 32])));
        assert_ne!(one.name, other.name);
    }
}
