//! The configuration file, by convention plait.toml: what a gateway is told once, in place of options. What the command
//! line says counts more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;
use plait_wire::Role;
use serde::Deserialize;

use crate::paths::Roles;
use crate::protection::Requirement;
use crate::trust::{PeerName, Trust};

/// What a configuration file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `mode`: how connections are protected; `None` if it says nothing.
    pub mode: Option<Mode>,
    /// `require`: what of that is demanded; `None` if nothing is.
    pub require: Option<Requirement>,
    /// `[paths]`: the roles of interfaces.
    pub roles: Roles,
    /// `[identity]`, `file`: where the gateway's own key pair is; `None` for the default.
    pub identity: Option<PathBuf>,
    /// `[identity]`, `peers`: how keys of peers are judged that are not pinned.
    pub trust: Option<Trust>,
    /// `[identity]`, `clients`: the keys of those that may connect; `None`: anybody.
    pub clients: Option<Vec<PublicKey>>,
    /// `[peers]`: the keys that peers must have.
    pub pins: BTreeMap<PeerName, PublicKey>,
}

/// The configuration file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The file is not what was expected.
    #[error("{path}: {reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What was expected and found, and where.
        reason: Box<toml::de::Error>,
    },
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    mode: Option<Mode>,
    #[serde(default)]
    require: Require,
    #[serde(default)]
    paths: BTreeMap<String, Role>,
    #[serde(default)]
    identity: Identity,
    #[serde(default)]
    peers: BTreeMap<PeerName, PublicKey>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    file: Option<PathBuf>,
    peers: Option<Trust>,
    clients: Option<Vec<PublicKey>>,
}

/// `true`, `false` or `"all-paths"`.
#[derive(Default)]
struct Require(Option<Requirement>);

impl<'de> Deserialize<'de> for Require {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Require, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Require;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("true, false or \"all-paths\"")
            }

            fn visit_bool<E>(self, demanded: bool) -> Result<Require, E> {
                Ok(Require(demanded.then_some(Requirement::Mode)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Require, E> {
                match text {
                    "all-paths" => Ok(Require(Some(Requirement::AllPaths))),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Config {
    /// Reads a configuration file. What it does not know is an error.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else than what was expected.
    pub fn from_file(path: &Path) -> Result<Config, ConfigError> {
        let text =
            fs::read_to_string(path).map_err(|reason| ConfigError::Read { path: path.to_owned(), reason })?;
        let written: Written = toml::from_str(&text)
            .map_err(|reason| ConfigError::Parse { path: path.to_owned(), reason: Box::new(reason) })?;
        let Written { mode, require: Require(require), paths, identity, peers } = written;
        let mut roles = Roles::default();
        paths.iter().for_each(|(interface, role)| roles.set(interface, *role));
        let Identity { file, peers: trust, clients } = identity;
        Ok(Config { mode, require, roles, identity: file, trust, clients, pins: peers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a file with this text is read as.
    fn read(text: &str) -> Result<Config, String> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("plait-config-{}-{number}", std::process::id()));
        fs::write(&file, text).expect("a temporary directory");
        let config = Config::from_file(&file).map_err(|error| error.to_string());
        fs::remove_file(&file).expect("it was written");
        config
    }

    #[test]
    fn roles_mode_and_requirement_are_read() {
        let config = read("mode = \"sealed\"\nrequire = \"all-paths\"\n[paths]\nwlan0 = \"untrusted\"\n");
        let config = config.expect("a configuration");
        assert_eq!((config.mode, config.require), (Some(Mode::Sealed), Some(Requirement::AllPaths)));
        assert_eq!(config.roles.of("wlan0"), Some(Role::Untrusted));
        let of = |text| read(text).map(|config| config.require);
        assert_eq!(of("require = true"), Ok(Some(Requirement::Mode)));
        assert_eq!(of("require = false"), Ok(None));
        assert_eq!(read(""), Ok(Config::default()));
    }

    #[test]
    fn identities_are_read() {
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
    fn a_file_says_what_it_did_not_understand() {
        for (text, words) in [
            ("[paths]\neth0 = \"friendly\"\n", ["friendly", "trusted"]),
            ("[pahts]\n", ["pahts", "paths"]),
            ("mode = \"sealt\"\n", ["sealt", "sealed"]),
            ("require = \"always\"\n", ["always", "all-paths"]),
            ("require = 1\n", ["1", "all-paths"]),
            ("[identity]\npeers = \"all\"\n", ["all", "first-use"]),
            ("[identity]\nclients = [\"plait-key:x\"]\n", ["plait-key:x", "plait identity"]),
            ("[peers]\n\"server.example\" = \"x\"\n", ["server.example", "HOST:PORT"]),
            // Below a table, it would be an interface called so.
            ("[paths]\neth0 = \"trusted\"\nrequire = true\n", ["require", "true"]),
        ] {
            let error = read(text).expect_err("a mistake");
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        let nowhere = Path::new("/nowhere/plait.toml");
        assert!(matches!(Config::from_file(nowhere), Err(ConfigError::Read { .. })));
    }
}
