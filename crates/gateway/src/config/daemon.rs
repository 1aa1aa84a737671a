//! What `plait daemon` does: `[[inbound]]`, `[proxy]`, `[host]` and `[metrics]` in the configuration file.

use std::net::SocketAddr;
use std::path::PathBuf;

use plait_config::{Diagnostic, Source, Spanned};
use serde::Deserialize;

use super::exit::Net;
use crate::inbound::{ProxyProtocol, ServiceAddress};
use crate::outbound::HostSettings;

/// An address that peers connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundConfig {
    /// `listen`: where connections are accepted.
    pub listen: SocketAddr,
    /// `to`: the service; `None`: those of `[[services]]`.
    pub to: Option<ServiceAddress>,
    /// `proxy`: how the service learns the client's address.
    pub proxy: Option<ProxyProtocol>,
}

/// A proxy for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    /// `listen`: where it accepts clients.
    pub listen: SocketAddr,
    /// `credentials`: the file of what clients must present.
    pub credentials: Option<PathBuf>,
    /// `allow_local`: whether destinations may be local.
    pub allow_local: bool,
}

/// The exporter of metrics.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsConfig {
    /// `listen`: where it serves `/metrics`.
    pub listen: SocketAddr,
}

/// The whole host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// Whose connections are redirected.
    pub scope: HostSettings,
    /// `killswitch`: whether nothing leaves outside of plait.
    pub kill_switch: bool,
    /// `release_on_stop`: whether that ends when the daemon is stopped.
    pub release_on_stop: bool,
}

/// `[[inbound]]` as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawInbound {
    listen: Spanned<SocketAddr>,
    to: Option<ServiceAddress>,
    proxy: Option<ProxyProtocol>,
}

/// `[proxy]` as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawProxy {
    listen: Option<Spanned<SocketAddr>>,
    credentials: Option<PathBuf>,
    #[serde(default)]
    allow_local: bool,
}

/// `[host]` as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHost {
    slices: Option<Spanned<Vec<PathBuf>>>,
    users: Option<Spanned<Vec<u32>>>,
    programs: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    exclude: Vec<Net>,
    #[serde(default = "enabled")]
    lan: bool,
    #[serde(default)]
    killswitch: bool,
    #[serde(default)]
    release_on_stop: bool,
}

fn enabled() -> bool {
    true
}

/// The addresses, no two of which are the same. Without a service of its own, one serves `[[services]]`, if there are any.
pub(super) fn inbound(
    raw: Vec<RawInbound>,
    has_services: bool,
    source: &Source,
) -> Result<Vec<InboundConfig>, Diagnostic> {
    let mut found: Vec<InboundConfig> = Vec::new();
    for RawInbound { listen, to, proxy } in raw {
        let span = listen.span();
        let listen = listen.into_inner();
        if found.iter().any(|other| other.listen == listen) {
            let text = format!("expected another address, got {listen}, which is served already");
            return Err(source.diagnostic(span, text));
        }
        if to.is_none() && (proxy.is_some() || !has_services) {
            let text = format!("expected a service behind {listen}, got none");
            return Err(source
                .diagnostic(span, text)
                .with_help("add to = \"127.0.0.1:80\", or [[services]]"));
        }
        found.push(InboundConfig { listen, to, proxy });
    }
    Ok(found)
}

impl RawProxy {
    pub(super) fn check(self, source: &Source) -> Result<ProxyConfig, Diagnostic> {
        let RawProxy { listen, credentials, allow_local } = self;
        let Some(listen) = listen else {
            let listen = SocketAddr::from(([127, 0, 0, 1], 1080));
            return Ok(ProxyConfig { listen, credentials, allow_local });
        };
        if credentials.is_none() && !listen.get_ref().ip().to_canonical().is_loopback() {
            let text =
                format!("expected `credentials` with {}, which other hosts can reach", listen.get_ref());
            let help = "add credentials = \"FILE\", or listen on 127.0.0.1 or [::1]";
            return Err(source.diagnostic(listen.span(), text).with_help(help));
        }
        Ok(ProxyConfig { listen: listen.into_inner(), credentials, allow_local })
    }
}

impl RawHost {
    pub(super) fn check(self, source: &Source) -> Result<HostConfig, Diagnostic> {
        let RawHost { slices, users, programs, exclude, lan, killswitch, release_on_stop } = self;
        let parts = [
            slices.as_ref().map(Spanned::span),
            users.as_ref().map(Spanned::span),
            programs.as_ref().map(Spanned::span),
        ];
        if let Some(span) = parts.into_iter().flatten().next().filter(|_| killswitch) {
            let text = "expected the whole host with killswitch = true, got a part of it: the rest could not connect to anything";
            return Err(source.diagnostic(span, text));
        }
        let exclude = exclude.into_iter().map(|Net(network)| network).collect();
        let scope = HostSettings {
            slices: slices.map(Spanned::into_inner).unwrap_or_default(),
            users: users.map(Spanned::into_inner).unwrap_or_default(),
            programs: programs.map(Spanned::into_inner).unwrap_or_default(),
            exclude,
            lan,
            forward: Vec::new(),
        };
        Ok(HostConfig { scope, kill_switch: killswitch, release_on_stop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn read(text: &str) -> Result<Config, String> {
        Config::parse(&Source::new("plait.toml", text)).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_what_the_daemon_does() {
        let config = read(
            "[[inbound]]\nlisten = '[::]:8443'\nto = 'localhost:80'\n[proxy]\n[metrics]\nlisten = '127.0.0.1:9464'\n\
             [host]\nkillswitch = true\nexclude = ['10.0.0.0/8', 'fd00::1']\nlan = false\n",
        );
        let config = config.expect("a configuration");
        let listen = "[::]:8443".parse().expect("an address");
        let to = Some("localhost:80".parse().expect("an address"));
        assert_eq!(config.inbound, [InboundConfig { listen, to, proxy: None }]);
        let proxy = config.proxy.expect("a proxy");
        assert_eq!(
            (proxy.listen.to_string().as_str(), proxy.credentials, proxy.allow_local),
            ("127.0.0.1:1080", None, false)
        );
        assert_eq!(config.metrics.map(|metrics| metrics.listen.port()), Some(9464));
        let host = config.host.expect("the whole host");
        assert!(host.kill_switch && !host.release_on_stop && !host.scope.lan);
        let exclude: Vec<_> = host.scope.exclude.iter().map(ToString::to_string).collect();
        assert_eq!(exclude, ["10.0.0.0/8", "fd00::1/128"]);
        let host = read("[host]\nusers = [1000]\nprograms = ['curl']\nslices = ['user.slice']\n");
        let scope = host.expect("a configuration").host.expect("a part of the host").scope;
        assert_eq!((scope.users, scope.programs, scope.lan), (vec![1000], vec!["curl".to_owned()], true));
        assert_eq!(scope.slices, [PathBuf::from("user.slice")]);
    }

    #[test]
    fn errors_show_the_line() {
        for (text, line, words) in [
            ("[host]\nkillswich = true\n", 2, "killswich"),
            ("[host]\nexclude = ['10.0.0.0/33']\n", 2, "10.0.0.0/8"),
            ("[host]\nkillswitch = true\nslices = ['user.slice']\n", 3, "the whole host"),
            ("[proxy]\nlisten = '[::]:1080'\n", 2, "credentials"),
            ("[[inbound]]\nlisten = '[::]:1'\nto = 'localhost'\n", 3, "HOST:PORT"),
            (
                "[[inbound]]\nlisten='[::]:1'\nto='a:1'\n[[inbound]]\nlisten='[::]:1'\nto='b:1'\n",
                5,
                "another address",
            ),
            ("[[inbound]]\nlisten = '[::]:1'\n", 2, "[[services]]"),
            ("[[inbound]]\nlisten = '[::]:1'\nproxy = 'v2'\n[[services]]\nto = 'a:1'\n", 2, "a service"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(words) && error.contains(&format!("--> plait.toml:{line}:")), "{error}");
        }
        assert!(read("[proxy]\nlisten = '[::]:1080'\ncredentials = '/etc/plait/users'\n").is_ok());
        assert!(read("[proxy]\nlisten = '[::ffff:127.0.0.1]:1080'\n").is_ok());
    }
}
