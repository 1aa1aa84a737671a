//! Options of the commands that run gateways, and the settings that they and the configuration file give.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use plait_config::{Role, TextError, parse_duration_or_seconds};
use plait_gateway::{
    Config, DatagramScheduler, ExitUrl, Identities, NegotiationSignal, ProtectionPolicy, REKEY_AFTER,
    Redundancy, Requirement, Route, ServiceName, Settings, Trust,
};
use plait_proto::codec::records::Padding;
use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;
use plait_scheduler::SchedulerConfig;

/// Seconds that live connections may take to end, by default.
const DRAIN: u64 = 10;

/// Connections carried at once, unless the command line says.
const MAX_CONNECTIONS: u32 = 4096;

#[derive(clap::Args)]
pub(crate) struct Protection {
    /// How connections are protected: sealed (confidential and authentic unless an attacker is active on every path),
    /// stream (confidential unless an attacker listens on the trusted path), xor64 (obfuscation only), off; a peer that was
    /// reached sealed once is not connected to in a weaker mode again (see `plait peers`) [default: sealed]
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Refuse connections whose peer does not negotiate the mode, instead of carrying them unprotected; in mode sealed,
    /// `=paths:N` also refuses those in which fewer than N paths take part, and `=all-paths` those in which not every named
    /// interface does, of which there must be two; `=false` carries them unprotected [default: the mode in `plait serve`,
    /// nothing in others]
    #[arg(long, value_name = "all-paths|paths:N", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = requirement)]
    require: Option<RequireValue>,
    /// What negotiates the mode in the TCP handshake: a TCP option of plait's own, or, for mode xor64 alone, a flag of
    /// MP_CAPABLE, which any peer but one with this choice takes for plain TCP [default: option]
    #[arg(long, value_name = "option|flag")]
    negotiate: Option<NegotiationSignal>,
    /// Pad the records of mode sealed to a multiple of so many bytes, which hides shorter differences of length [default: 1,
    /// no padding]
    #[arg(long, value_name = "BYTES", value_parser = padding)]
    pad: Option<Padding>,
    /// Also send every write of at most so many bytes, or `all`, on a connection of its own over each of two or more paths, in
    /// mode sealed and if the peer does so as well: the first that arrives counts [default: 0, none]
    #[arg(long, value_name = "BYTES|all")]
    redundant: Option<Redundancy>,
    /// Congestion control of the connections, such as reno or plait_lia (see `plait cc`), with the kernel's scheduler [default: the host's,
    /// or cubic where that is bbr, with which Linux's MPTCP can deliver wrong bytes when a path is cut]
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// Which subflows carry what this gateway sends, such as ecf or weighted:wlan0=3,lte0=1 (see `plait sched load --help`), with cubic
    /// as congestion control; `off`: all [default: ecf in modes sealed and off, if the host's congestion control is cubic or bbr and the
    /// kernel can]
    #[arg(long, value_name = "NAME[:OPTIONS]", conflicts_with = "congestion_control")]
    scheduler: Option<SchedulerConfig>,
    /// Seconds that live connections may take to end after a stop was requested
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN)]
    drain: u64,
    /// Connections carried at once; further ones wait [default: 4096; of a router, 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_connections: Option<u32>,
    /// File with this gateway's key pair for mode sealed, as `plait identity` creates it [default: that of `plait
    /// identity`, if it exists]
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
}

/// How peers are authenticated.
#[derive(clap::Args)]
pub(crate) struct Peers {
    /// How peers without a key in [peers] are authenticated in mode sealed: not at all (any), by the key of their first
    /// use (first-use), or rejected (pinned) [default: pinned if [peers] has any key, else any]
    #[arg(long, value_name = "any|first-use|pinned")]
    peers: Option<Trust>,
    /// Exchange keys with ML-KEM-768 as well as with X25519 in mode sealed, against quantum computers of the future
    /// [default: true]
    #[arg(long, value_name = "true|false")]
    hybrid: Option<bool>,
    /// Time after which a connection in mode sealed gets new keys by a new key exchange, from 1s to 1h; after 2^20 records in any
    /// case [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = rekey_after)]
    rekey_after: Option<Duration>,
    /// Connect to everything through this exit, always in mode sealed: `plait exit init` prints the URL there. Destinations and
    /// names reach the exit only, which resolves the names
    #[arg(long, value_name = "plait://HOST:PORT#KEY")]
    exit: Option<ExitUrl>,
}

impl Peers {
    /// Where connections go.
    pub(crate) fn route(&self, config: &Config) -> Route {
        let exit = self.exit.as_ref().or(config.exit.url.as_ref());
        exit.map_or(Route::Direct, |exit| Route::Exit(exit.clone()))
    }
}

/// The value of `--require`.
#[derive(Clone, Copy)]
pub(crate) struct RequireValue(Option<Requirement>);

impl Protection {
    /// The settings of a gateway that connects to peers.
    pub(crate) fn outbound(
        &self,
        command: &'static str,
        peers: &Peers,
        config: &Config,
    ) -> anyhow::Result<Settings> {
        let file = self.key_file(config);
        let trust = peers.peers.or(config.trust);
        let mut pins = config.pins.clone();
        // Like a server's, connections to an exit are meant to be protected.
        let mut default = None;
        if let Route::Exit(exit) = peers.route(config) {
            pins.insert(exit.peer().clone(), exit.key());
            default = Some(Requirement::Mode);
        }
        let identities = Identities::new(file, trust, pins, None)?;
        if self.identity.is_some() && !identities.authenticates_peers() {
            bail!(
                "--identity has no effect, because no peer is authenticated: add --peers first-use, or the peer's key to \
                 [peers]"
            );
        }
        let hybrid = peers.hybrid.or(config.hybrid).unwrap_or(true);
        let rekey_after = peers.rekey_after.or(config.rekey);
        let settings = self.settings(command, identities, config, default)?;
        Ok(Settings { opens_connections: true, hybrid, rekey_after, ..settings })
    }

    /// The settings of a gateway that accepts connections of these clients for these services, or without any, for the port that it
    /// listens on. The mode is required by default: a server's connections are meant to be protected.
    pub(crate) fn inbound(
        &self,
        command: &'static str,
        services: Vec<ServiceName>,
        clients: Option<Vec<PublicKey>>,
        config: &Config,
    ) -> anyhow::Result<Settings> {
        let identities = Identities::new(self.key_file(config), None, BTreeMap::new(), clients)?;
        let settings = self.settings(command, identities, config, Some(Requirement::Mode))?;
        Ok(Settings { services, ..settings })
    }

    /// The file of the gateway's key pair, if one is named.
    pub(crate) fn key_file<'a>(&'a self, config: &'a Config) -> Option<&'a Path> {
        self.identity.as_deref().or(config.identity.as_deref())
    }

    /// What a file says, without any options.
    pub(crate) fn of_file() -> Protection {
        Protection {
            mode: None,
            require: None,
            negotiate: None,
            pad: None,
            redundant: None,
            congestion_control: None,
            scheduler: None,
            drain: DRAIN,
            max_connections: None,
            identity: None,
        }
    }

    /// The settings of a gateway with these identities. `default` is what is required if nothing says so.
    pub(crate) fn settings(
        &self,
        command: &'static str,
        identities: Identities,
        config: &Config,
        default: Option<Requirement>,
    ) -> anyhow::Result<Settings> {
        let mode = self.mode.or(config.mode).unwrap_or(Mode::Sealed);
        let max_connections = self.max_connections.unwrap_or(MAX_CONNECTIONS);
        let given = self.require.map(|RequireValue(require)| require).or(config.require);
        // Mode off cannot be required.
        let require = given.unwrap_or(default.filter(|_| mode != Mode::Off));
        // An option takes precedence over both keys.
        let (congestion_control, scheduler) = match (&self.congestion_control, &self.scheduler) {
            (None, None) => (config.congestion_control.clone(), config.scheduler.clone()),
            (congestion_control, scheduler) => (congestion_control.clone(), scheduler.clone()),
        };
        Ok(Settings {
            command,
            opens_connections: false,
            policy: ProtectionPolicy::new(mode, require)?,
            signal: self.negotiate.or(config.negotiate).unwrap_or_default(),
            identities,
            hybrid: true,
            padding: self.pad.or(config.pad),
            rekey_after: None,
            redundancy: self.redundant.or(config.redundant).filter(|copied| *copied != Redundancy::NONE),
            services: Vec::new(),
            congestion_control,
            scheduler,
            max_connections: max_connections as usize,
            max_connections_per_peer: max_connections.div_ceil(4) as usize,
            drain: Duration::from_secs(self.drain),
            monitor: None,
        })
    }
}

/// The configuration file.
#[derive(clap::Args)]
pub(crate) struct ConfigFile {
    /// File with mode, require, negotiate, hybrid, pad, redundant, datagram_scheduler, rekey, congestion_control, scheduler, exit, [[services]], [router], roles of interfaces in [paths] or rules in [[paths]], and keys in [identity] and [peers]; options of the command
    /// line take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    pub(crate) fn read(&self) -> anyhow::Result<Config> {
        Ok(self.config.as_deref().map(Config::from_file).transpose()?.unwrap_or_default())
    }
}

/// The roles of interfaces.
#[derive(clap::Args)]
pub(crate) struct Paths {
    /// The trusted path, on which every connection starts: an interface, or an address of it
    #[arg(long, value_name = "IFACE|ADDRESS")]
    trusted: Vec<String>,
    /// An untrusted path, likewise [default: all others]
    #[arg(long, value_name = "IFACE|ADDRESS")]
    untrusted: Vec<String>,
    #[command(flatten)]
    file: ConfigFile,
}

impl Paths {
    /// The file's configuration, with the roles given on the command line.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let mut config = self.file.read()?;
        for name in &self.trusted {
            config.roles.set(name, Role::Trusted);
        }
        for name in &self.untrusted {
            config.roles.set(name, Role::Untrusted);
        }
        Ok(config)
    }
}

/// The paths of datagrams.
#[derive(clap::Args)]
pub(crate) struct Datagrams {
    /// Paths of datagrams to the exit: lowest-rtt, the one with the shortest round trip; redundant, all at once; or bonded, all in
    /// turn, put in order again at the other end [default: lowest-rtt]
    #[arg(long, value_name = "lowest-rtt|redundant|bonded")]
    datagram_scheduler: Option<DatagramScheduler>,
}

impl Datagrams {
    pub(crate) fn scheduler(&self, config: &Config) -> DatagramScheduler {
        self.datagram_scheduler.or(config.datagram_scheduler).unwrap_or_default()
    }
}

fn requirement(text: &str) -> Result<RequireValue, String> {
    match text {
        "true" => Ok(RequireValue(Some(Requirement::Mode))),
        "false" => Ok(RequireValue(None)),
        other => other
            .parse::<Requirement>()
            .map(|requirement| RequireValue(Some(requirement)))
            .map_err(|error| format!("{error}; --require alone requires the mode, --require=false nothing")),
    }
}

fn padding(text: &str) -> Result<Padding, String> {
    let unit: i64 = text.parse().map_err(|_| format!("expected a number of bytes, got '{text}'"))?;
    Padding::try_from(unit).map_err(|error| error.to_string())
}

fn rekey_after(text: &str) -> Result<Duration, TextError> {
    parse_duration_or_seconds(text, &REKEY_AFTER)
}

/// An address to listen on.
pub(crate) fn address_and_port(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected ADDRESS:PORT with a numeric address, such as 127.0.0.1:1080 or [::]:8443".to_owned()
    })
}
