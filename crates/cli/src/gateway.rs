//! `plait run`, `plait serve` and `plait proxy`: from arguments to a running gateway and its end.

mod router;

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
    Config, Credentials, DatagramScheduler, ExitClients, ExitSettings, ExitUrl, Gateway, Identities, Monitor,
    MonitorTasks, NegotiationSignal, Outbound, ProtectionPolicy, ProxyAccess, ProxyProtocol, REKEY_AFTER,
    Redundancy, Requirement, Route, RunError, ServiceAddress, ServiceName, Settings, Trust, exit_code,
    run_monitor, warn_of_missing_interfaces,
};
use plait_linux::sandbox::{Rules, Sandbox, ThreadGate};
use plait_linux::signal::StopSignal;
use plait_linux::user::User;
use plait_proto::codec::records::Padding;
use plait_proto::identity::PublicKey;
use plait_proto::option::Mode;
use plait_scheduler::SchedulerConfig;
use rustix::process::{Signal, geteuid};
use tokio::runtime::{Builder, Runtime};

pub(crate) use router::{MAX_ROUTER_CONNECTIONS, RouterArgs, network, router, router_settings};

use crate::stderr::eprintln;

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
    /// Congestion control of the connections, such as reno or plait_lia (see `plait cc`) [default: the host's, or cubic where that is
    /// bbr, with which Linux's MPTCP can deliver wrong bytes when a path is cut]
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// Which subflows carry what this gateway sends, such as ecf or weighted:wlan0=3,lte0=1 (see `plait sched load --help`), with cubic
    /// as congestion control [default: all, as the kernel's scheduler decides]
    #[arg(long, value_name = "NAME[:OPTIONS]", conflicts_with = "congestion_control")]
    scheduler: Option<SchedulerConfig>,
    /// Seconds that live connections may take to end after a stop was requested
    #[arg(long, value_name = "SECONDS", default_value_t = DRAIN)]
    drain: u64,
    /// Connections carried at once; further ones wait [default: 4096; of a router, 20000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: Option<u32>,
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
    /// Connect to everything through this exit, always in mode sealed: `plait exit init` prints the URL there. Destinations and
    /// names reach the exit only, which resolves the names
    #[arg(long, value_name = "plait://HOST:PORT#KEY")]
    exit: Option<ExitUrl>,
}

impl Peers {
    /// Where connections go.
    fn route(&self, config: &Config) -> Route {
        let exit = self.exit.as_ref().or(config.exit.url.as_ref());
        exit.map_or(Route::Direct, |exit| Route::Exit(exit.clone()))
    }
}

/// The value of `--require`.
#[derive(Clone, Copy)]
struct RequireValue(Option<Requirement>);

impl Protection {
    /// The settings of a gateway that connects to peers.
    fn outbound(&self, command: &'static str, peers: &Peers, config: &Config) -> anyhow::Result<Settings> {
        let file = self.identity.as_deref().or(config.identity.as_deref());
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
        Ok(Settings { hybrid, rekey_after, ..self.settings(command, identities, config, default)? })
    }

    /// The settings of a gateway that accepts connections of these clients for these services, or without any, for the port that it
    /// listens on. The mode is required by default: a server's connections are meant to be protected.
    fn inbound(
        &self,
        command: &'static str,
        services: Vec<ServiceName>,
        clients: Option<Vec<PublicKey>>,
        config: &Config,
    ) -> anyhow::Result<Settings> {
        let file = self.identity.as_deref().or(config.identity.as_deref());
        let identities = Identities::new(file, None, BTreeMap::new(), clients)?;
        let settings = self.settings(command, identities, config, Some(Requirement::Mode))?;
        Ok(Settings { services, ..settings })
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
struct ConfigFile {
    /// File with mode, require, negotiate, hybrid, pad, redundant, datagram_scheduler, rekey, congestion_control, scheduler, exit, [[services]], [router], roles of interfaces in [paths] or rules in [[paths]], and keys in [identity] and [peers]; options of the command
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
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address_and_port,
          required_unless_present_any = ["exit", "config"])]
    listen: Option<SocketAddr>,
    /// Service that connections are carried to, by TCP or by a unix socket [default: those of [[services]] in the file of --config,
    /// of which each client asks for one]
    #[arg(long, value_name = "HOST:PORT|unix:PATH", requires = "listen")]
    to: Option<ServiceAddress>,
    /// Tell the service the client's address by the PROXY protocol, version 2, which nginx (`listen ... proxy_protocol`), HAProxy
    /// (`accept-proxy`) and others read
    #[arg(long, value_name = "v2", requires = "to")]
    proxy_protocol: Option<ProxyProtocol>,
    /// Accept connections on this address and port, and carry them to the destinations that clients name: for clients with
    /// `--exit`, as [exit] in the file of --config says [default: `listen` of [exit]]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address_and_port, conflicts_with_all = ["listen", "to"])]
    exit: Option<SocketAddr>,
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

impl ServeArgs {
    /// Fails if it would not be clear what is served, or part of it would be ignored.
    fn check(&self, config: &Config) -> anyhow::Result<()> {
        let (has_services, has_exit) = (!config.services.is_empty(), config.exit.listen.is_some());
        if self.to.is_some() && has_services {
            bail!("expected --to, or [[services]] in the file of --config, got both: remove one of them");
        }
        if self.listen.is_some() && self.to.is_none() && !has_services {
            bail!("expected --to, or [[services]] in the file of --config, with --listen, got neither");
        }
        if self.listen.is_none() && self.exit.is_none() && has_services {
            let exit = if has_exit { ", or --exit for the exit in it" } else { "" };
            bail!("expected --listen ADDRESS:PORT for [[services]] in the file of --config{exit}, got none");
        }
        match self.service.is_empty() {
            false if has_services => bail!(
                "expected --service, or [[services]] in the file of --config, got both: state `name` and `port` in [[services]]"
            ),
            false if has_exit && self.exit.is_none() => bail!(
                "expected --service, or an exit in the file of --config, got both: add --exit if the exit is meant, or remove \
                 [exit] from the file"
            ),
            _ => Ok(()),
        }
    }
}

/// The paths of datagrams.
#[derive(clap::Args)]
struct Datagrams {
    /// Paths of datagrams to the exit: lowest-rtt, the one with the shortest round trip; redundant, all at once; or bonded, all in
    /// turn, put in order again at the other end [default: lowest-rtt]
    #[arg(long, value_name = "lowest-rtt|redundant|bonded")]
    datagram_scheduler: Option<DatagramScheduler>,
}

impl Datagrams {
    fn scheduler(&self, config: &Config) -> DatagramScheduler {
        self.datagram_scheduler.or(config.datagram_scheduler).unwrap_or_default()
    }
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
    datagrams: Datagrams,
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
    settings: Settings,
    work: impl AsyncFnOnce(Settings, &ThreadGate) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    block_on_gated_with(settings, &[], work)
}

/// The same, with further arguments for the monitor.
pub(crate) fn block_on_gated_with<T>(
    mut settings: Settings,
    monitor: &[OsString],
    work: impl AsyncFnOnce(Settings, &ThreadGate) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let monitor = geteuid().is_root().then(|| start_monitor(&settings, monitor)).transpose()?;
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
fn start_monitor(settings: &Settings, further: &[OsString]) -> anyhow::Result<Arc<Monitor>> {
    let mut command = Command::new(env::current_exe().context("cannot find this executable")?);
    command.arg("monitor").args(further);
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

    /// Configuration file to read for the gateway
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Remove the kill switch in the end
    #[arg(long)]
    release_kill_switch: bool,

    /// Remove this file in the run directory in the end
    #[arg(long, value_name = "FILE")]
    host_lock: Option<PathBuf>,

    /// The process whose control group the gateway enters
    #[arg(long, value_name = "PID")]
    predecessor: Option<u32>,
}

pub(crate) fn monitor(args: MonitorArgs) -> anyhow::Result<()> {
    let MonitorArgs { known_peers, close_subflows, config, release_kill_switch, host_lock, predecessor } =
        args;
    Ok(run_monitor(MonitorTasks {
        known_peers,
        close_subflows,
        config,
        release_kill_switch,
        host_lock,
        predecessor,
    })?)
}

/// Gives up all privileges that the rules do not name.
pub(crate) fn confine(gate: &ThreadGate, rules: io::Result<Rules>) -> anyhow::Result<()> {
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
    let route = args.peers.route(&config);
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
        let outbound = Outbound::start(&gateway, config.roles)?.with_route(route)?;
        let outbound = Arc::new(outbound.with_early_data(config.exit.early_data));
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
    let config = args.file.read()?;
    args.check(&config)?;
    // It uses none, but the file may be shared with a client, and have a mistake.
    warn_of_missing_interfaces(&config.roles);
    let Some(listen) = args.listen else { return serve_exit(args, &config) };
    let listed = config.services.iter().filter_map(|service| service.clients.as_ref());
    let listed = listed.count() > 0;
    let mut settings = args.protection.inbound("serve", args.service, config.clients.clone(), &config)?;
    if let Some(max) = args.max_connections_per_peer {
        settings.max_connections_per_peer = max as usize;
    }
    if listed && !settings.identities.has_key_pair() {
        bail!(
            "expected a key pair, with which clients authenticate this host, for `clients` in [[services]], got none: create one \
             by `plait identity`"
        );
    }
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let listener = gateway.bind(listen)?;
        confine(gate, gateway.sandbox_rules())?;
        let Some(to) = args.to else {
            let mut served = Ok(());
            let serve = async { served = gateway.serve_services(listener, &config.services).await };
            until_stopped(&gateway, serve).await?;
            return Ok(served?);
        };
        until_stopped(&gateway, gateway.serve(listener, to, args.proxy_protocol)).await
    })
}

fn serve_exit(args: ServeArgs, config: &Config) -> anyhow::Result<()> {
    let Some(listen) = args.exit.or(config.exit.listen) else {
        bail!("expected --listen and --to, --exit, or `listen` in [exit] of the file, got none of them");
    };
    let exit = exit_settings(config)?;
    let clients = match &exit.clients {
        ExitClients::Any => None,
        ExitClients::Listed(clients) => Some(clients.clone()),
    };
    let listed = clients.is_some();
    let mut settings = args.protection.inbound("serve", args.service, clients, config)?;
    if !settings.identities.has_key_pair() {
        bail!(
            "expected a key pair, by which clients recognize this exit, got none: create one by `plait exit init`"
        );
    }
    if !(settings.policy.requires() && settings.policy.mode() == Mode::Sealed) {
        bail!("expected mode 'sealed', required, for an exit: omit --mode and --require=false");
    }
    settings.max_connections_per_peer = match args.max_connections_per_peer {
        Some(max) => max as usize,
        // Its own limit of connections is that of a key.
        None if listed => settings.max_connections,
        None => settings.max_connections_per_peer,
    };
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let listener = gateway.bind_exit(listen)?;
        confine(gate, gateway.sandbox_rules())?;
        until_stopped(&gateway, gateway.serve_exit(listener, exit)).await
    })
}

/// What the exit of a configuration is. Who may use it must be said.
pub(crate) fn exit_settings(config: &Config) -> anyhow::Result<ExitSettings> {
    let listed = config.clients.clone().map(ExitClients::Listed);
    let Some(clients) = config.exit.clients.clone().or(listed) else {
        bail!(
            "expected `clients` in [exit] of the file (--config), got none: list the keys that `plait identity` prints at \
             the clients, or write clients = \"any\" to carry everybody's connections"
        );
    };
    let by_client = config.exit.by_client.clone();
    let is_listed = |key: &PublicKey| matches!(&clients, ExitClients::Listed(listed) if listed.contains(key));
    if let Some(key) = by_client.keys().find(|key| !is_listed(key)) {
        bail!(
            "expected the keys of [exit.client] to be listed in `clients` of [exit], got {key}, which is not"
        );
    }
    Ok(ExitSettings { clients, each: config.exit.each.clone(), by_client })
}

pub(crate) fn proxy(args: ProxyArgs) -> anyhow::Result<()> {
    let config = args.paths.config()?;
    let settings = args.protection.outbound("proxy", &args.peers, &config)?;
    let (route, datagrams) = (args.peers.route(&config), args.datagrams.scheduler(&config));
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
        let outbound = Outbound::start(&gateway, config.roles)?.with_route(route)?;
        let outbound = outbound.with_early_data(config.exit.early_data);
        let outbound = Arc::new(outbound.with_datagram_scheduler(datagrams));
        confine(gate, outbound.sandbox_rules(None))?;
        until_stopped(&gateway, outbound.proxy(listener, access)).await
    })
}
