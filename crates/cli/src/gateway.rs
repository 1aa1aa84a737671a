//! `plait run`, `plait serve` and `plait proxy`: from arguments to a running gateway and its end.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{self, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use plait_config::{Role, TextError, parse_duration_or_seconds};
use plait_gateway::{
    Config, Credentials, Gateway, Identities, Monitor, Outbound, ProtectionPolicy, ProxyAccess, REKEY_AFTER,
    Requirement, RunError, ServiceName, Settings, Trust, exit_code, run_monitor,
};
use plait_linux::sandbox::{Rules, Sandbox, ThreadGate};
use plait_linux::signal::StopSignal;
use plait_linux::user::User;
use plait_proto::codec::records::Padding;
use plait_proto::option::Mode;
use plait_scheduler::SchedulerConfig;
use rustix::process::{Signal, geteuid};
use tokio::runtime::{Builder, Runtime};

use crate::stderr::eprintln;

#[derive(clap::Args)]
struct Protection {
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
    /// Pad the records of mode sealed to a multiple of so many bytes, which hides shorter differences of length [default: 1,
    /// no padding]
    #[arg(long, value_name = "BYTES", value_parser = padding)]
    pad: Option<Padding>,
    /// Congestion control of the connections, such as reno or plait_lia (see `plait cc`) [default: the host's, or cubic where that is
    /// bbr, with which Linux's MPTCP can deliver wrong bytes when a path is cut]
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// Which subflows carry what this gateway sends, such as ecf or weighted:wlan0=3,lte0=1 (see `plait sched load --help`), with cubic
    /// as congestion control [default: all, as the kernel's scheduler decides]
    #[arg(long, value_name = "NAME[:OPTIONS]", conflicts_with = "congestion_control")]
    scheduler: Option<SchedulerConfig>,
    /// Seconds that live connections may take to end after a stop was requested
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u64,
    /// Connections carried at once; further ones wait
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
    /// File with this gateway's key pair for mode sealed, as `plait identity` creates it [default: that of `plait
    /// identity`, if it exists]
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
}

/// How peers are authenticated.
#[derive(clap::Args)]
struct Peers {
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
}

/// The value of `--require`.
#[derive(Clone, Copy)]
struct RequireValue(Option<Requirement>);

impl Protection {
    /// The settings of a gateway that connects to peers.
    fn outbound(&self, command: &'static str, peers: &Peers, config: &Config) -> anyhow::Result<Settings> {
        let file = self.identity.as_deref().or(config.identity.as_deref());
        let trust = peers.peers.or(config.trust);
        let identities = Identities::new(file, trust, config.pins.clone(), None)?;
        if self.identity.is_some() && !identities.authenticates_peers() {
            bail!(
                "--identity has no effect, because no peer is authenticated: add --peers first-use, or the peer's key to \
                 [peers]"
            );
        }
        let hybrid = peers.hybrid.or(config.hybrid).unwrap_or(true);
        let rekey_after = peers.rekey_after.or(config.rekey);
        Ok(Settings { hybrid, rekey_after, ..self.settings(command, identities, config, None)? })
    }

    /// The settings of a gateway that accepts connections for these services, or without any, for the port that it listens on.
    /// The mode is required by default: a server's connections are meant to be protected.
    fn inbound(
        &self,
        command: &'static str,
        services: Vec<ServiceName>,
        config: &Config,
    ) -> anyhow::Result<Settings> {
        let file = self.identity.as_deref().or(config.identity.as_deref());
        let identities = Identities::new(file, None, BTreeMap::new(), config.clients.clone())?;
        let settings = self.settings(command, identities, config, Some(Requirement::Mode))?;
        Ok(Settings { services, ..settings })
    }

    fn settings(
        &self,
        command: &'static str,
        identities: Identities,
        config: &Config,
        default: Option<Requirement>,
    ) -> anyhow::Result<Settings> {
        let mode = self.mode.or(config.mode).unwrap_or(Mode::Sealed);
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
            policy: ProtectionPolicy::new(mode, require)?,
            identities,
            hybrid: true,
            padding: self.pad.or(config.pad),
            rekey_after: None,
            services: Vec::new(),
            congestion_control,
            scheduler,
            max_connections: self.max_connections as usize,
            max_connections_per_peer: self.max_connections.div_ceil(4) as usize,
            drain: Duration::from_secs(self.drain),
            monitor: None,
        })
    }
}

/// The configuration file.
#[derive(clap::Args)]
struct ConfigFile {
    /// File with mode, require, hybrid, pad, rekey, congestion_control, scheduler, roles of interfaces in [paths], and keys in [identity] and [peers]; options of the command
    /// line take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    fn read(&self) -> anyhow::Result<Config> {
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

/// Arguments of `plait run`.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    paths: Paths,
    /// User as whom the program runs, by name or number [default: the user who called sudo, or else that of plait]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Arguments of `plait serve`.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// Address and port to accept connections on; [::] accepts further subflows on every address of this host
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address_and_port)]
    listen: SocketAddr,
    /// Service that connections are carried to
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    to: String,
    /// What clients may ask for in mode sealed, where it differs from the port of --listen, as behind a port forwarding; with
    /// a name, clients must use that name; may be repeated
    #[arg(long, value_name = "[NAME:]PORT")]
    service: Vec<ServiceName>,
    /// Connections from one peer at once, by its IPv4 address or /64 of IPv6; further ones are refused [default: a quarter
    /// of --max-connections]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections_per_peer: Option<u32>,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    file: ConfigFile,
}

/// Arguments of `plait proxy`.
#[derive(clap::Args)]
pub(crate) struct ProxyArgs {
    /// Address and port to accept clients on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1080", value_parser = address_and_port)]
    listen: SocketAddr,
    /// File with one line USER:PASSWORD that clients must present; required unless --listen is a loopback address
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// Also connect to loopback and link-local addresses of this host
    #[arg(long)]
    allow_local: bool,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    paths: Paths,
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

fn host_and_port(text: &str) -> Result<String, String> {
    let expected = || format!("expected HOST:PORT, got '{text}'");
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(expected());
    }
    Ok(text.to_owned())
}

/// An address to listen on.
pub(crate) fn address_and_port(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected ADDRESS:PORT with a numeric address, such as 127.0.0.1:1080 or [::]:8443".to_owned()
    })
}

/// How long tasks and threads may take to end after a gateway has. A running name lookup cannot be cancelled.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    done
}

/// SIGTERM and SIGINT; SIGHUP ends a gateway at once.
pub(crate) fn stop_signal() -> anyhow::Result<StopSignal> {
    StopSignal::listen_for(&[Signal::TERM, Signal::INT]).context("cannot listen for signals")
}

/// Runs a gateway, whose threads wait until it confines itself through the gate, once it is set up. If this is root, a monitor
/// keeps what only root can do.
fn block_on_gated<T>(
    mut settings: Settings,
    work: impl AsyncFnOnce(Settings, &ThreadGate) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let monitor = geteuid().is_root().then(|| start_monitor(&settings)).transpose()?;
    settings.monitor = monitor.clone();
    let gate = Arc::new(ThreadGate::default());
    let of_threads = Arc::clone(&gate);
    let runtime = Builder::new_multi_thread().enable_all().on_thread_start(move || of_threads.pass()).build();
    let runtime = runtime.context("cannot start the runtime")?;
    let done = runtime.block_on(work(settings, &gate));
    // If it failed before, its threads have to end.
    gate.open();
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    if let Some(monitor) = monitor {
        monitor.clean_up();
    }
    done
}

/// Runs this executable as the monitor of this process.
fn start_monitor(settings: &Settings) -> anyhow::Result<Arc<Monitor>> {
    let mut command = Command::new(env::current_exe().context("cannot find this executable")?);
    command.arg("monitor");
    if let Some(file) = settings.identities.known_peers() {
        let file = path::absolute(file).context("cannot find the file of known peers")?;
        command.arg("--known-peers").arg(file);
    }
    // The others keep the capability that it takes.
    if settings.command == "serve" {
        command.arg("--close-subflows");
    }
    Monitor::start(command).context("cannot start the monitor of this gateway")
}

/// Arguments of `plait monitor`, which only gateways start.
#[derive(clap::Args)]
pub(crate) struct MonitorArgs {
    /// File of the keys of peers that are trusted on first use
    #[arg(long, value_name = "FILE")]
    known_peers: Option<PathBuf>,

    /// Close subflows on silent paths for the gateway
    #[arg(long)]
    close_subflows: bool,
}

pub(crate) fn monitor(args: MonitorArgs) -> anyhow::Result<()> {
    Ok(run_monitor(args.known_peers, args.close_subflows)?)
}

/// Gives up all privileges that the rules do not name.
fn confine(gate: &ThreadGate, rules: io::Result<Rules>) -> anyhow::Result<()> {
    let rules = rules.context("cannot prepare to give up privileges")?;
    let missing = gate.confine(Sandbox::new(rules)?)?;
    for feature in missing {
        tracing::warn!("this gateway keeps more access than it needs, because this host lacks {feature}");
    }
    Ok(())
}

/// Runs a service until SIGTERM or SIGINT; a second one skips the drain.
async fn until_stopped<F>(gateway: &Arc<Gateway>, service: F) -> anyhow::Result<()>
where
    F: Future<Output = ()>,
{
    let mut stop = stop_signal()?;
    tokio::select! {
        () = service => {}
        _ = stop.next() => {}
    }
    tokio::select! {
        () = gateway.shut_down() => {}
        _ = stop.next() => {}
    }
    Ok(())
}

pub(crate) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let config = args.paths.config()?;
    let settings = args.protection.outbound("run", &args.peers, &config)?;
    let user = args.user.as_deref().map(|name| User::find(name).map(Some)).unwrap_or_else(User::caller)?;
    if let Some((user, missing)) = user.as_ref().and_then(|user| Some((user, user.missing_capabilities()?))) {
        bail!(
            "cannot run the program as {}: this process lacks {missing}: run plait as root, as by sudo",
            user.name()
        );
    }
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let outbound = Arc::new(Outbound::start(&gateway, config.roles)?);
        let mut command = args.command.into_iter();
        let program = command.next().context("no program given")?;
        let started = |program| {
            confine(gate, outbound.sandbox_rules(program))
                .map_err(|error| io::Error::other(format!("{error:#}")))
        };
        let status = outbound.run(program, command.collect(), user, started).await;
        // If the program did not start, the gateway is not confined, and has only to stop.
        gate.open();
        let mut stop = stop_signal()?;
        tokio::select! {
            () = gateway.shut_down_when_idle() => {}
            _ = stop.next() => {}
        }
        match status {
            // The exit statuses of env and nohup.
            Err(error @ RunError::Spawn { .. }) => {
                eprintln!("plait: {error}");
                Ok(ExitCode::from(if error.is_not_found() { 127 } else { 126 }))
            }
            status => Ok(ExitCode::from(exit_code(status?))),
        }
    })
}

pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let mut settings = args.protection.inbound("serve", args.service, &args.file.read()?)?;
    if let Some(max) = args.max_connections_per_peer {
        settings.max_connections_per_peer = max as usize;
    }
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let listener = gateway.bind(args.listen)?;
        confine(gate, gateway.sandbox_rules())?;
        until_stopped(&gateway, gateway.serve(listener, &args.to)).await
    })
}

pub(crate) fn proxy(args: ProxyArgs) -> anyhow::Result<()> {
    let config = args.paths.config()?;
    let settings = args.protection.outbound("proxy", &args.peers, &config)?;
    let credentials = args.credentials.as_deref().map(Credentials::from_file).transpose()?;
    if credentials.is_none() && !args.listen.ip().to_canonical().is_loopback() {
        bail!(
            "expected --credentials with --listen {}, because other hosts can reach this address: add --credentials FILE, \
             or listen on 127.0.0.1 or [::1]",
            args.listen
        );
    }
    let access = ProxyAccess { credentials, local_destinations: args.allow_local };
    block_on_gated(settings, async |settings, gate| {
        let listener = Outbound::proxy_listener(args.listen).await?;
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let outbound = Arc::new(Outbound::start(&gateway, config.roles)?);
        confine(gate, outbound.sandbox_rules(None))?;
        until_stopped(&gateway, outbound.proxy(listener, access)).await
    })
}
