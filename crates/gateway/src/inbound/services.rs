//! The services behind one listening port, one of which each client asks for by its name and port (mode `sealed`).

use std::sync::Arc;

use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;
use plait_proto::sealed::Services;

use super::server::{Server, ServiceSettings};
use super::service::Service;
use crate::error::StartError;
use crate::protection::ProtectionPolicy;

/// What clients may ask for, and where it leads.
pub(crate) struct InboundServices {
    /// What they may ask for.
    pub(crate) names: Services,
    /// Who may use each; `None`: all clients of the gateway.
    clients: Vec<Option<Vec<PublicKey>>>,
    /// Where each leads; a single one is that of all names.
    services: Vec<Service>,
}

impl InboundServices {
    /// All names lead to one service, for all clients of the gateway.
    pub(super) fn single(names: Services, service: Service) -> InboundServices {
        InboundServices { names, clients: Vec::new(), services: vec![service] }
    }

    /// Those of the settings, behind this port.
    ///
    /// # Errors
    /// Two have the same name and port, or the policy lets clients connect that do not ask for one.
    pub(super) fn new(
        settings: &[ServiceSettings],
        port: u16,
        policy: ProtectionPolicy,
    ) -> Result<InboundServices, StartError> {
        let has_clients = settings.iter().any(|service| service.clients.is_some());
        let are_asked_for = policy.mode() == Mode::Sealed && policy.requires();
        if (settings.len() > 1 || has_clients) && !are_asked_for {
            return Err(StartError::Services);
        }
        let names: Vec<(Option<String>, u16)> =
            settings.iter().map(|service| (service.name.clone(), service.port.unwrap_or(port))).collect();
        let twice = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
        if let Some((_, (name, port))) = twice {
            let name = name.as_ref().map(|name| format!(" under the name '{name}'")).unwrap_or_default();
            return Err(StartError::SameService { name, port: *port });
        }
        let identified = settings.iter().enumerate().filter(|(_, service)| service.clients.is_some());
        let names = Services::new(names).with_identified(identified.map(|(index, _)| index).collect());
        let clients = settings.iter().map(|service| service.clients.clone()).collect();
        let services =
            settings.iter().map(|service| Service::Server(Arc::new(Server::new(service)))).collect();
        Ok(InboundServices { names, clients, services })
    }

    /// The clients that may use the service with this index; `None`: all of the gateway.
    pub(crate) fn clients(&self, index: usize) -> Option<&[PublicKey]> {
        self.clients.get(index)?.as_deref()
    }

    /// The service with this index.
    pub(super) fn get(&self, index: usize) -> &Service {
        self.services.get(index).unwrap_or(&self.services[0])
    }

    /// The servers among them.
    pub(super) fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.services.iter().filter_map(|service| match service {
            Service::Server(server) => Some(server),
            Service::Local(_) | Service::Exit(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use plait_proto::sealed::RequiredPaths;

    use super::*;

    fn service(name: Option<&str>, port: Option<u16>, clients: Option<Vec<PublicKey>>) -> ServiceSettings {
        let to = "127.0.0.1:80".parse().expect("an address");
        ServiceSettings { name: name.map(Into::into), port, clients, ..ServiceSettings::new(to, None) }
    }

    #[test]
    fn services_that_have_to_be_told_apart_take_mode_sealed_required() {
        let two = [service(Some("a"), None, None), service(Some("b"), None, None)];
        let private = [service(None, None, Some(Vec::new()))];
        for services in [&two[..], &private] {
            for policy in [
                ProtectionPolicy::Off,
                ProtectionPolicy::Require(Mode::Stream),
                ProtectionPolicy::Prefer(Mode::Sealed),
            ] {
                let refused = InboundServices::new(services, 443, policy);
                assert!(matches!(refused, Err(StartError::Services)), "{policy:?}");
                assert!(InboundServices::new(&two[..1], 443, policy).is_ok(), "{policy:?}");
            }
            for policy in
                [ProtectionPolicy::Require(Mode::Sealed), ProtectionPolicy::RequirePaths(RequiredPaths::All)]
            {
                assert!(InboundServices::new(services, 443, policy).is_ok(), "{policy:?}");
            }
        }
    }

    #[test]
    fn the_default_port_is_the_one_that_is_listened_on() {
        let same = [service(Some("a"), Some(443), None), service(Some("a"), None, None)];
        let of_port = |port| InboundServices::new(&same, port, ProtectionPolicy::Require(Mode::Sealed));
        let Err(error) = of_port(443) else { panic!("expected an error") };
        assert!(error.to_string().ends_with("got two on port 443 under the name 'a'"), "{error}");
        let services = of_port(8443).expect("different ports");
        assert_eq!(services.names, Services::new(vec![(Some("a".into()), 443), (Some("a".into()), 8443)]));
    }

    #[test]
    fn clients_of_a_service_must_authenticate() {
        let key = PublicKey::new([7; 32]);
        let settings = [service(Some("a"), None, None), service(Some("b"), None, Some(vec![key]))];
        let services = InboundServices::new(&settings, 443, ProtectionPolicy::Require(Mode::Sealed));
        let services = services.expect("two names");
        assert_eq!((services.clients(0), services.clients(1)), (None, Some(&[key][..])));
        let names = Services::new(vec![(Some("a".into()), 443), (Some("b".into()), 443)]);
        assert_eq!(services.names, names.with_identified(vec![1]));
    }
}
