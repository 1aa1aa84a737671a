//! Who may read the page's data, and who may start captures.
//!
//! A browser on this host may read if it runs as the same user as `plait web`, or as root. Everybody else, and everybody who
//! changes something, shows the token that `plait web` printed when it started. The address that a browser asked for must not
//! be a name other than localhost: a foreign page could have its name resolved to this host's address.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use plait_linux::diag::Sockets;
use rand::TryRng as _;
use rand::rngs::SysRng;
use rustix::process::geteuid;
use subtle::ConstantTimeEq as _;

/// Bytes of a token.
const TOKEN: usize = 16;

/// A connection of a browser.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) remote: SocketAddr,
    pub(super) local: SocketAddr,
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    Read,
    Change,
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("expected the address of this host or localhost, got another name")]
    Name,
    #[error("expected the token that plait web printed: open the address that it printed")]
    Token,
}

/// The rules.
pub(super) struct Access {
    token: String,
    /// `None` if the kernel does not tell whose sockets are.
    sockets: Option<Mutex<Sockets>>,
}

impl Access {
    /// With a new token.
    pub(super) fn new() -> anyhow::Result<Access> {
        let mut token = [0; TOKEN];
        SysRng.try_fill_bytes(&mut token).context("cannot get random bytes")?;
        Ok(Access { token: hex::encode(token), sockets: Sockets::open().ok().map(Mutex::new) })
    }

    /// What allows changes.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// Whether a client has the permission; `host` is the name it asked for, `token` what it showed.
    pub(super) fn check(
        &self,
        client: Client,
        host: Option<&str>,
        token: Option<&str>,
        permission: Permission,
    ) -> Result<(), Refusal> {
        if !host.is_some_and(is_address) {
            return Err(Refusal::Name);
        }
        let is_allowed = match token {
            Some(token) => token.as_bytes().ct_eq(self.token.as_bytes()).into(),
            None => permission == Permission::Read && self.is_of_this_user(client),
        };
        if is_allowed { Ok(()) } else { Err(Refusal::Token) }
    }

    fn is_of_this_user(&self, client: Client) -> bool {
        let Some(sockets) = self.sockets.as_ref().filter(|_| client.remote.ip().is_loopback()) else {
            return false;
        };
        let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = sockets.owner(client.remote, client.local).ok().flatten();
        owner.is_some_and(|owner| owner.uid == 0 || owner.uid == geteuid().as_raw())
    }
}

/// Whether a Host field has an address or localhost, with or without a port.
fn is_address(host: &str) -> bool {
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: &str = "192.0.2.1:5000";

    fn check(host: &str, token: Option<&str>, permission: Permission) -> Result<(), Refusal> {
        let access = Access { token: "secret".into(), sockets: None };
        let client = Client {
            remote: REMOTE.parse().expect("an address"),
            local: "192.0.2.2:9465".parse().expect("an address"),
        };
        access.check(client, Some(host), token, permission)
    }

    #[test]
    fn names_other_than_localhost_are_refused() {
        for host in ["localhost", "localhost:9465", "127.0.0.1:9465", "[::1]:9465", "[::1]", "192.0.2.2"] {
            assert_eq!(check(host, Some("secret"), Permission::Read), Ok(()), "{host}");
        }
        for host in ["example.org", "example.org:9465", "localhost.example.org", "", "[::1"] {
            assert_eq!(check(host, Some("secret"), Permission::Read), Err(Refusal::Name), "{host}");
        }
    }

    #[test]
    fn other_hosts_and_changes_take_the_token() {
        for permission in [Permission::Read, Permission::Change] {
            assert_eq!(check("192.0.2.2", Some("secret"), permission), Ok(()));
            assert_eq!(check("192.0.2.2", Some("secre"), permission), Err(Refusal::Token));
            assert_eq!(check("192.0.2.2", Some("Secret"), permission), Err(Refusal::Token));
            assert_eq!(check("192.0.2.2", None, permission), Err(Refusal::Token));
        }
    }
}
