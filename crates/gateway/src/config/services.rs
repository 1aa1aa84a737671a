//! `[[services]]` in the configuration file: the services behind the port of one `plait serve`.

use std::num::NonZeroU16;
use std::time::Duration;

use plait_config::{Diagnostic, Source, Spanned, TextError, deserialize_text, parse_duration};
use plait_proto::identity::PublicKey;
use serde::Deserialize;
use serde::de::Deserializer;

use crate::inbound::{ProxyProtocol, ServiceAddress, ServiceSettings};
use crate::trust::PeerName;

/// A health check takes a connection.
const HEALTH_INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);

/// One service as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawService {
    name: Option<Spanned<Name>>,
    port: Option<Spanned<NonZeroU16>>,
    to: ServiceAddress,
    proxy: Option<ProxyProtocol>,
    clients: Option<Vec<PublicKey>>,
    health: Option<Health>,
}

/// The services of a file.
///
/// # Errors
/// Two of them cannot be told apart by what clients ask for.
pub(super) fn services(
    source: &Source,
    raw: Vec<Spanned<RawService>>,
) -> Result<Vec<ServiceSettings>, Diagnostic> {
    let mut services: Vec<ServiceSettings> = Vec::new();
    for raw in raw {
        let whole = raw.span();
        let RawService { name, port, to, proxy, clients, health } = raw.into_inner();
        let span = name.as_ref().map(Spanned::span).or(port.as_ref().map(Spanned::span)).unwrap_or(whole);
        let name = name.map(|name| name.into_inner().0);
        let port = port.map(|port| port.into_inner().get());
        if services.iter().any(|other| (&other.name, other.port) == (&name, port)) {
            let message = "expected a name or a port of its own for each service, got those of another one";
            let help =
                "clients ask for `name` and `port`: give each of [[services]] another name, or another port";
            return Err(source.diagnostic(span, message).with_help(help));
        }
        services.push(ServiceSettings {
            name,
            port,
            to,
            proxy,
            clients,
            health: health.map(|Health(it)| it),
        });
    }
    Ok(services)
}

/// A host name or an address.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        const EXPECTED: &str = "the host name or address by which clients ask for the service";
        deserialize_text(deserializer, EXPECTED, |text| {
            // With any port; an address is without brackets.
            let peer = PeerName::new(text, 1).to_string().parse::<PeerName>();
            let peer = peer.map_err(|_| TextError::new(EXPECTED, text))?;
            Ok(Name(peer.host_and_port().0.to_owned()))
        })
    }
}

/// The interval of health checks.
struct Health(Duration);

impl<'de> Deserialize<'de> for Health {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Health, D::Error> {
        let parse = |text: &str| parse_duration(text, &HEALTH_INTERVAL).map(Health);
        deserialize_text(deserializer, "the interval of health checks, such as \"10s\"", parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct File {
        services: Vec<Spanned<RawService>>,
    }

    fn read(text: &str) -> Result<Vec<ServiceSettings>, Diagnostic> {
        let source = Source::new("plait.toml", text);
        services(&source, source.parse::<File>()?.services)
    }

    #[test]
    fn reads_services() {
        let key = PublicKey::new([7; 32]);
        let text = format!(
            "[[services]]\nname = \"Git.example.\"\nto = \"127.0.0.1:80\"\nproxy = \"v2\"\nhealth = \"10s\"\n\
             [[services]]\nname = \"2001:DB8::1\"\nport = 5432\nto = \"unix:/run/pg\"\nclients = [\"{key}\"]\n"
        );
        let found = read(&text).expect("services");
        let [git, postgres] = &found[..] else { panic!("expected two services") };
        assert_eq!((git.name.as_deref(), git.port), (Some("git.example"), None));
        assert_eq!((git.proxy, git.health), (Some(ProxyProtocol::V2), Some(Duration::from_secs(10))));
        assert_eq!((postgres.name.as_deref(), postgres.port), (Some("2001:db8::1"), Some(5432)));
        assert_eq!(postgres.to, "unix:/run/pg".parse().expect("an address"));
        assert_eq!(postgres.clients, Some(vec![key]));
    }

    #[test]
    fn errors_show_the_line_and_what_is_expected() {
        let service = "[[services]]\nto = \"h:1\"\n";
        for (lines, at, words) in [
            ("to = \"h\"", (5, 6), "expected HOST:PORT, or unix:PATH"),
            ("to = \"unix:run/x\"", (5, 6), "absolute path"),
            ("to = 80", (5, 6), "expected HOST:PORT"),
            ("port = 1", (4, 1), "missing field `to`"),
            ("name = \"a b\"\nto = \"h:1\"", (5, 8), "expected the host name or address"),
            ("port = 0\nto = \"h:1\"", (5, 8), "nonzero"),
            ("port = 1\nto = \"h:1\"\nproxy = \"v1\"", (7, 9), "expected v2"),
            ("port = 1\nto = \"h:1\"\nhealth = \"0s\"", (7, 10), "from 1s to 1h"),
            ("port = 1\nto = \"h:1\"\nhealth = 10", (7, 10), "such as \"10s\""),
            ("port = 1\nto = \"h:1\"\nclients = [\"x\"]", (7, 11), "plait-key"),
            ("port = 1\nto = \"h:1\"\nclient = []", (7, 1), "unknown field `client`"),
            ("to = \"h:2\"", (4, 1), "a name or a port of its own"),
        ] {
            let error = read(&format!("{service}\n[[services]]\n{lines}\n")).expect_err(lines);
            assert_eq!((error.line, error.column), at, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = read(&format!("{service}port = 1\nname = \"a\"\n{service}port = 1\nname = \"A.\"\n"));
        assert_eq!(error.expect_err("the same name").line, 8);
    }
}
