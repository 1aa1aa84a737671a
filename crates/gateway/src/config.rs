//! The configuration file of gateways, by convention plait.toml. Options of the command line take precedence.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plait_config::{LoadError, Role, TextError, parse_duration};
use plait_proto::codec::records::Padding;
use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;
use plait_scheduler::SchedulerConfig;
use serde::Deserialize;

use crate::gateway::REKEY_AFTER;
use crate::paths::Roles;
use crate::protection::Requirement;
use crate::trust::{PeerName, Trust};

/// The contents of a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `mode`: how connections are protected.
    pub mode: Option<Mode>,
    /// `require`: what is required, if the file says; `Some(None)`: nothing.
    pub require: Option<Option<Requirement>>,
    /// `hybrid`: whether to exchange keys with ML-KEM-768 as well.
    pub hybrid: Option<bool>,
    /// `pad`: the padding of records.
    pub pad: Option<Padding>,
    /// `rekey`: the time after which keys are renewed.
    pub rekey: Option<Duration>,
    /// `congestion_control`: the congestion control of connections.
    pub congestion_control: Option<String>,
    /// `scheduler`: the scheduler of connections.
    pub scheduler: Option<SchedulerConfig>,
    /// `[paths]`: the roles of interfaces, given by their names or addresses.
    pub roles: Roles,
    /// `[identity]`, `file`: the file of the gateway's key pair; `None` for the default.
    pub identity: Option<PathBuf>,
    /// `[identity]`, `peers`: how peers without a pinned key are authenticated.
    pub trust: Option<Trust>,
    /// `[identity]`, `clients`: the keys of clients that may connect; `None`: anybody.
    pub clients: Option<Vec<PublicKey>>,
    /// `[peers]`: the pinned keys of peers.
    pub pins: BTreeMap<PeerName, PublicKey>,
}

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    mode: Option<Mode>,
    require: Option<Require>,
    hybrid: Option<bool>,
    pad: Option<Padding>,
    rekey: Option<Rekey>,
    congestion_control: Option<String>,
    scheduler: Option<SchedulerConfig>,
    #[serde(default)]
    paths: BTreeMap<String, Role>,
    #[serde(default)]
    identity: RawIdentity,
    #[serde(default)]
    peers: BTreeMap<PeerName, PublicKey>,
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
        let raw: RawConfig = plait_config::load(path)?;
        let RawConfig {
            mode,
            require,
            hybrid,
            pad,
            rekey,
            congestion_control,
            scheduler,
            paths,
            identity,
            peers,
        } = raw;
        let require = require.map(|Require(require)| require);
        let rekey = rekey.map(|Rekey(rekey)| rekey);
        let mut roles = Roles::default();
        paths.iter().for_each(|(interface, role)| roles.set(interface, *role));
        let RawIdentity { file, peers: trust, clients } = identity;
        Ok(Config {
            mode,
            require,
            hybrid,
            pad,
            rekey,
            congestion_control,
            scheduler,
            roles,
            identity: file,
            trust,
            clients,
            pins: peers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("scheduler = \"blest\"\n", ["blest", "ecf, lowest-rtt"]),
            ("scheduler = \"weighted:wlan0=x\"\n", ["wlan0=x", "from 1 to 1000"]),
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
