//! Names of services, as `plait serve --service` and Python's `plait.serve` take them.

use std::str::FromStr;

use plait_config::TextError;

use crate::trust::PeerName;

/// What clients may ask for in mode `sealed`: a port, under a host name or address, or under any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    pub(crate) name: Option<String>,
    pub(crate) port: u16,
}

impl FromStr for ServiceName {
    type Err = TextError;

    /// `443`, `server.example:443` or `[2001:db8::1]:443`.
    fn from_str(text: &str) -> Result<ServiceName, TextError> {
        let (name, port) = match text.parse::<PeerName>() {
            Ok(peer) => {
                let (host, port) = peer.host_and_port();
                (Some(host.to_owned()), Some(port))
            }
            Err(_) => (None, text.parse().ok()),
        };
        match port {
            Some(port) if port != 0 => Ok(ServiceName { name, port }),
            _ => Err(TextError::new("[NAME:]PORT, with an IPv6 address in brackets", text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_a_port_with_or_without_a_name() {
        let parse = |text: &str| text.parse::<ServiceName>();
        assert_eq!(parse("443"), Ok(ServiceName { name: None, port: 443 }));
        for (text, name) in [
            ("server.example:443", "server.example"),
            ("Server.Example.:443", "server.example"),
            ("192.0.2.1:443", "192.0.2.1"),
            ("[2001:DB8::1]:443", "2001:db8::1"),
        ] {
            assert_eq!(parse(text), Ok(ServiceName { name: Some(name.into()), port: 443 }));
        }
        for wrong in [
            "",
            ":",
            ":443",
            "server.example",
            "server.example:",
            "0",
            "name:0",
            "65536",
            "-1",
            "2001:db8::1:1",
        ] {
            let error = parse(wrong).expect_err("no service").to_string();
            assert_eq!(
                error,
                format!("expected [NAME:]PORT, with an IPv6 address in brackets, got {wrong:?}")
            );
        }
    }
}
