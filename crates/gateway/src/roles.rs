//! Which of this host's interfaces lead to a trusted path.
//!
//! A path's role comes from the interface it leaves by: named on the command line, or in the configuration file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use plait_wire::Role;
use serde::Deserialize;

/// The roles of this host's interfaces, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    named: BTreeMap<String, Role>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    paths: BTreeMap<String, Role>,
}

impl Roles {
    /// The table `[paths]` of a configuration file: `INTERFACE = "trusted"` or `"untrusted"`.
    pub fn from_file(path: &Path) -> Result<Roles, ConfigError> {
        let text =
            fs::read_to_string(path).map_err(|reason| ConfigError::Read { path: path.to_owned(), reason })?;
        let config: Config = toml::from_str(&text)
            .map_err(|reason| ConfigError::Parse { path: path.to_owned(), reason: Box::new(reason) })?;
        Ok(Roles { named: config.paths })
    }

    /// Gives an interface a role, in place of what was said of it before.
    pub fn name(&mut self, interface: &str, role: Role) {
        self.named.insert(interface.to_owned(), role);
    }

    /// The interfaces with role trusted, by name.
    pub fn trusted(&self) -> impl Iterator<Item = &str> {
        self.named.iter().filter(|(_, role)| **role == Role::Trusted).map(|(name, _)| name.as_str())
    }

    /// The interfaces of which a role was said.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    /// The role of an interface: what was said of it. When no interface was called untrusted, every one that was not
    /// called trusted is; else the ones that were not named are not used (`None`).
    pub fn of(&self, interface: &str) -> Option<Role> {
        let spoken_for = self.named.get(interface).copied();
        let names_untrusted = self.named.values().any(|role| *role == Role::Untrusted);
        spoken_for.or((!names_untrusted).then_some(Role::Untrusted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_untrusted_unless_the_untrusted_are_named() {
        let mut roles = Roles::default();
        roles.name("eth0", Role::Trusted);
        assert_eq!(roles.of("eth0"), Some(Role::Trusted));
        assert_eq!(roles.of("wlan0"), Some(Role::Untrusted));
        roles.name("wlan0", Role::Untrusted);
        assert_eq!(roles.of("docker0"), None);
        assert_eq!(roles.trusted().collect::<Vec<_>>(), ["eth0"]);
    }

    #[test]
    fn a_file_says_what_it_did_not_understand() {
        let folder = std::env::temp_dir().join(format!("plait-roles-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("plait.toml");
        fs::write(&file, "[paths]\neth0 = \"trusted\"\nwlan0 = \"untrusted\"\n").unwrap();
        assert_eq!(Roles::from_file(&file).unwrap().of("wlan0"), Some(Role::Untrusted));
        fs::write(&file, "[paths]\neth0 = \"friendly\"\n").unwrap();
        let error = Roles::from_file(&file).unwrap_err().to_string();
        assert!(error.contains("friendly") && error.contains("trusted"), "{error}");
        fs::write(&file, "[pahts]\n").unwrap();
        assert!(Roles::from_file(&file).unwrap_err().to_string().contains("pahts"));
        fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(Roles::from_file(&file), Err(ConfigError::Read { .. })));
    }
}
