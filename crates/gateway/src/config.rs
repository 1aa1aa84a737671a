//! The configuration file of gateways, by convention plait.toml. Options of the command line take precedence.

mod daemon;
mod exit;
mod paths;
mod router;
mod services;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plait_config::{LoadError, Source, Spanned, TextError, parse_duration};
use plait_proto::codec::records::Padding;
use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;
use plait_scheduler::{Scheduler, SchedulerConfig};
use serde::Deserialize;

pub use daemon::{HostConfig, InboundConfig, MetricsConfig, ProxyConfig};
pub use exit::ExitConfig;
pub use router::RouterConfig;

use paths::RawPaths;
use services::RawService;

use daemon::{RawHost, RawInbound, RawProxy};

use crate::datagrams::DatagramScheduler;
use crate::inbound::ServiceSettings;
use crate::paths::Roles;
use crate::protection::{NegotiationSignal, Requirement};
use crate::settings::REKEY_AFTER;
use crate::side_connections::Redundancy;
use crate::trust::{PeerName, Trust};
use router::RawRouter;

/// The contents of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `mode`: how connections are protected.
    pub mode: Option<Mode>,
    /// `require`: what is required, if the file says; `Some(None)`: nothing.
    pub require: Option<Option<Requirement>>,
    /// `negotiate`: what negotiates the mode.
    pub negotiate: Option<NegotiationSignal>,
    /// `hybrid`: whether to exchange keys with ML-KEM-768 as well.
    pub hybrid: Option<bool>,
    /// `pad`: the padding of records.
    pub pad: Option<Padding>,
    /// `redundant`: the writes that are copied.
    pub redundant: Option<Redundancy>,
    /// `datagram_scheduler`: the paths of datagrams to an exit.
    pub datagram_scheduler: Option<DatagramScheduler>,
    /// `rekey`: the time after which keys are renewed.
    pub rekey: Option<Duration>,
    /// `congestion_control`: the congestion control of connections.
    pub congestion_control: Option<String>,
    /// `scheduler`: the scheduler of connections.
    pub scheduler: Option<SchedulerConfig>,
    /// `exit` or `[exit]`: the exit that this host uses, and the one that it is.
    pub exit: ExitConfig,
    /// `[[services]]`: the services behind the port of `plait serve`.
    pub services: Vec<ServiceSettings>,
    /// `[router]`: the interfaces behind which hosts are whose connections this host carries.
    pub router: Option<RouterConfig>,
    /// `[paths]`: the roles of interfaces, given by their names or addresses.
    /// `[paths]`: the roles of interfaces, given by their names or addresses; `[[paths]]`: rules of interfaces.
    pub roles: Roles,
    /// `[identity]`, `file`: the file of the gateway's key pair; `None` for the default.
    pub identity: Option<PathBuf>,
    /// `[identity]`, `peers`: how peers without a pinned key are authenticated.
    pub trust: Option<Trust>,
    /// `[identity]`, `clients`: the keys of clients that may connect; `None`: anybody.
    pub clients: Option<Vec<PublicKey>>,
    /// `[peers]`: the pinned keys of peers.
    pub pins: BTreeMap<PeerName, PublicKey>,
    /// `[[inbound]]`: the services that peers reach.
    pub inbound: Vec<InboundConfig>,
    /// `[proxy]`: a proxy for programs.
    pub proxy: Option<ProxyConfig>,
    /// `[host]`: the whole host.
    pub host: Option<HostConfig>,
    /// `[metrics]`: an exporter of metrics.
    pub metrics: Option<MetricsConfig>,
}

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    mode: Option<Mode>,
    require: Option<Require>,
    negotiate: Option<NegotiationSignal>,
    hybrid: Option<bool>,
    pad: Option<Padding>,
    redundant: Option<Redundancy>,
    datagram_scheduler: Option<DatagramScheduler>,
    rekey: Option<Rekey>,
    congestion_control: Option<String>,
    scheduler: Option<SchedulerConfig>,
    #[serde(default)]
    exit: ExitConfig,
    router: Option<RawRouter>,
    #[serde(default)]
    services: Vec<Spanned<RawService>>,
    #[serde(default)]
    paths: RawPaths,
    #[serde(default)]
    identity: RawIdentity,
    #[serde(default)]
    peers: BTreeMap<PeerName, PublicKey>,
    #[serde(default)]
    inbound: Vec<RawInbound>,
    proxy: Option<RawProxy>,
    host: Option<RawHost>,
    metrics: Option<MetricsConfig>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawIdentity {
    file: Option<PathBuf>,
    peers: Option<Trust>,
    clients: Option<Vec<PublicKey>>,
}

/// A time within [`REKEY_AFTER`].
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Rekey(Duration);

impl TryFrom<String> for Rekey {
    type Error = TextError;

    fn try_from(text: String) -> Result<Rekey, TextError> {
        parse_duration(&text, &REKEY_AFTER).map(Rekey)
    }
}

/// `true`, `false`, `"all-paths"` or `"paths:N"`.
struct Require(Option<Requirement>);

impl<'de> Deserialize<'de> for Require {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Require, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Require;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("true, false, \"all-paths\", or \"paths:N\" with N from 2 to 16")
            }

            fn visit_bool<E>(self, demanded: bool) -> Result<Require, E> {
                Ok(Require(demanded.then_some(Requirement::Mode)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Require, E> {
                let invalid = |_| E::invalid_value(serde::de::Unexpected::Str(text), &self);
                text.parse().map(|requirement| Require(Some(requirement))).map_err(invalid)
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// The file cannot be read, or has an unknown key or an unexpected value.
    pub fn from_file(path: &Path) -> Result<Config, LoadError> {
        Config::parse(&Source::read(path)?)
    }

    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// It has an unknown key or an unexpected value.
    pub fn parse(source: &Source) -> Result<Config, LoadError> {
        let RawConfig {
            mode,
            require,
            negotiate,
            hybrid,
            pad,
            redundant,
            datagram_scheduler,
            rekey,
            congestion_control,
            scheduler,
            exit,
            services,
            router,
            paths,
            identity,
            peers,
            inbound,
            proxy,
            host,
            metrics,
        } = source.parse()?;
        let require = require.map(|Require(require)| require);
        let rekey = rekey.map(|Rekey(rekey)| rekey);
        let roles = paths.check(source)?;
        // An explicit choice is checked against the rules when a gateway starts.
        let scheduler = scheduler.or_else(|| match congestion_control {
            Some(_) => None,
            None => scheduler_of(&roles),
        });
        let RawIdentity { file, peers: trust, clients } = identity;
        let has_services = !services.is_empty();
        Ok(Config {
            mode,
            require,
            negotiate,
            hybrid,
            pad,
            redundant,
            datagram_scheduler,
            rekey,
            congestion_control,
            scheduler,
            exit,
            services: services::services(source, services)?,
            router: router.map(Into::into),
            roles,
            identity: file,
            trust,
            clients,
            pins: peers,
            inbound: daemon::inbound(inbound, has_services, source)?,
            proxy: proxy.map(|proxy| proxy.check(source)).transpose()?,
            host: host.map(|host| host.check(source)).transpose()?,
            metrics,
        })
    }
}

/// The scheduler for which rules of paths have options.
fn scheduler_of(roles: &Roles) -> Option<SchedulerConfig> {
    let scheduler = match roles.rules() {
        rules if rules.iter().any(|rule| rule.tier.is_some()) => Scheduler::Tiers,
        rules if rules.iter().any(|rule| rule.weight.is_some()) => Scheduler::Weighted,
        _ => return None,
    };
    Some(scheduler.into())
}

#[cfg(test)]
mod tests {
    use plait_config::Role;

    use super::*;
    use crate::inbound::ExitClients;

    /// The configuration in a file with this text.
    fn read(text: &str) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(&file, text).expect("writable");
        Config::from_file(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_roles_mode_and_requirement() {
        let config = read("mode = \"sealed\"\nrequire = \"all-paths\"\n[paths]\nwlan0 = \"untrusted\"\n");
        let config = config.expect("a configuration");
        assert_eq!((config.mode, config.require), (Some(Mode::Sealed), Some(Some(Requirement::AllPaths))));
        let mut roles = Roles::default();
        roles.set("wlan0", Role::Untrusted);
        assert_eq!(config.roles, roles);
        roles.set("2001:db8::1", Role::Trusted);
        let config = read("[paths]\nwlan0 = \"untrusted\"\n\"2001:db8::1\" = \"trusted\"\n");
        assert_eq!(config.expect("a configuration").roles, roles);
        let of = |text| read(text).map(|config| config.require);
        assert_eq!(of("require = true"), Ok(Some(Some(Requirement::Mode))));
        assert_eq!(of("require = false"), Ok(Some(None)));
        assert_eq!(of("mode = \"stream\""), Ok(None));
        assert_eq!(of("require = \"paths:3\""), Ok(Some(Some(Requirement::Paths(3)))));
        assert_eq!(read("hybrid = false").map(|config| config.hybrid), Ok(Some(false)));
        let config = read("pad = 100\nrekey = \"10m\"\n").expect("a configuration");
        assert_eq!(config.pad, Padding::new(100));
        assert_eq!(config.rekey, Some(Duration::from_secs(600)));
        let of = |text| read(text).map(|config| config.redundant);
        assert_eq!(of("redundant = 1000\n"), Ok(Some(Redundancy::UpTo(1000))));
        assert_eq!(of("redundant = \"all\"\n"), Ok(Some(Redundancy::All)));
        let config = read("congestion_control = \"cubic\"\n").expect("a configuration");
        assert_eq!(config.congestion_control.as_deref(), Some("cubic"));
        let of = |text| read(text).map(|config| config.scheduler.map(|scheduler| scheduler.to_string()));
        assert_eq!(of("scheduler = \"ecf\"\n"), Ok(Some("ecf".into())));
        assert_eq!(of("scheduler = \"tiers:lte0=2,wlan0=1\"\n"), Ok(Some("tiers:lte0=2,wlan0=1".into())));
        assert_eq!(read(""), Ok(Config::default()));
    }

    #[test]
    fn reads_identities() {
        let key = PublicKey::new([7; 32]);
        let text = format!(
            "[identity]\nfile = \"/x/identity.key\"\npeers = \"first-use\"\nclients = [\"{key}\"]\n\
             [peers]\n\"Server.example:443\" = \"{key}\"\n"
        );
        let config = read(&text).expect("a configuration");
        assert_eq!(config.identity.as_deref(), Some(Path::new("/x/identity.key")));
        assert_eq!((config.trust, config.clients), (Some(Trust::FirstUse), Some(vec![key])));
        assert_eq!(config.pins, BTreeMap::from([("server.example:443".parse().expect("a peer"), key)]));
    }

    #[test]
    fn reads_the_exit_that_is_used_and_the_one_that_it_is() {
        let url = format!("plait://server.example:8443#{}", "A".repeat(43));
        let config = read(&format!("exit = \"{url}\"\n")).expect("a configuration").exit;
        assert_eq!(config, ExitConfig { url: Some(url.parse().expect("an URL")), ..ExitConfig::default() });
        let key = PublicKey::new([7; 32]);
        let text = format!(
            "[exit]\nurl = \"{url}\"\nlisten = \"[::]:8443\"\nclients = [\"{key}\"]\nallow = [\"10.0.0.0/8\", \"fd00::1\"]\n\
             max_connections = 5\nmax_rate = \"8mbit\"\nmax_bytes_per_day = \"1GB\"\n\
             [exit.client.\"{key}\"]\nallow = []\nmax_connections = 7\n"
        );
        let config = read(&text).expect("a configuration").exit;
        assert_eq!(config.url.map(|url| url.to_string()), Some(url));
        assert_eq!(config.listen, "[::]:8443".parse().ok());
        assert_eq!(config.clients, Some(ExitClients::Listed(vec![key])));
        assert_eq!(
            config.each.allow.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.0.0.0/8", "fd00::1/128"]
        );
        let limits = config.each.limits;
        assert_eq!((limits.max_connections, limits.max_bytes_per_day), (Some(5), Some(1_000_000_000)));
        assert_eq!(limits.max_rate.map(|rate| rate.bits_per_second()), Some(8_000_000));
        let one = &config.by_client[&key];
        assert_eq!((one.allow.len(), one.limits.max_connections), (0, Some(7)));
        assert_eq!(one.limits.max_rate, limits.max_rate, "what is not said is that of each");
        let any = read("[exit]\nclients = \"any\"\n").expect("a configuration").exit.clients;
        assert_eq!(any, Some(ExitClients::Any));
    }

    #[test]
    fn reads_the_router() {
        let config = read("[router]\ninterfaces = [\"lan0\"]\nexclude = [\"10.9.0.0/16\", \"192.0.2.7\"]\n");
        let router = config.expect("a configuration").router.expect("a router");
        assert_eq!(router.interfaces, ["lan0"]);
        let exclude: Vec<_> = router.exclude.iter().map(ToString::to_string).collect();
        assert_eq!(exclude, ["10.9.0.0/16", "192.0.2.7/32"]);
        assert_eq!(read("").expect("a configuration").router, None);
    }

    #[test]
    fn errors_name_the_expected_and_the_actual_value() {
        for (text, words) in [
            ("[paths]\neth0 = \"friendly\"\n", ["friendly", "trusted"]),
            ("[pahts]\n", ["pahts", "paths"]),
            ("mode = \"sealt\"\n", ["sealt", "sealed"]),
            ("require = \"always\"\n", ["always", "all-paths"]),
            ("require = 1\n", ["1", "all-paths"]),
            ("require = \"paths:1\"\n", ["paths:1", "N from 2 to 16"]),
            ("pad = 16385\n", ["16385", "from 1"]),
            ("pad = 0\n", ["got 0", "16384"]),
            ("redundant = \"some\"\n", ["some", "such as 1000"]),
            ("redundant = -1\n", ["-1", "such as 1000"]),
            ("scheduler = \"blest\"\n", ["blest", "ecf, lowest-rtt"]),
            ("scheduler = \"weighted:wlan0=x\"\n", ["wlan0=x", "from 1 to 1000"]),
            ("exit = \"plait://server.example\"\n", ["plait://server.example", "plait://HOST:PORT#KEY"]),
            ("[exit]\nclients = \"all\"\n", ["all", "any"]),
            ("[exit]\nallow = [\"10.0.0.0/33\"]\n", ["10.0.0.0/33", "10.0.0.0/8"]),
            ("[exit]\nmax_connections = 0\n", ["0", "nonzero"]),
            ("[exit]\nmax_rate = \"fast\"\n", ["fast", "4mbit"]),
            ("[exit]\nopen = true\n", ["open", "clients"]),
            ("[router]\nexclude = [\"10.0.0.0/33\"]\n", ["10.0.0.0/33", "10.0.0.0/8"]),
            ("[router]\ninterface = \"lan0\"\n", ["interface", "interfaces"]),
            ("rekey = \"2h\"\n", ["2h", "from 1s to 1h"]),
            ("[identity]\npeers = \"all\"\n", ["all", "first-use"]),
            ("[identity]\nclients = [\"plait-key:x\"]\n", ["plait-key:x", "plait identity"]),
            ("[peers]\n\"server.example\" = \"x\"\n", ["server.example", "HOST:PORT"]),
            // Within a table it is the name of an interface.
            ("[paths]\neth0 = \"trusted\"\nrequire = true\n", ["require", "true"]),
        ] {
            let error = read(text).expect_err("a mistake");
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        let nowhere = Path::new("/nowhere/plait.toml");
        assert!(matches!(Config::from_file(nowhere), Err(LoadError::Read { .. })));
    }
}
