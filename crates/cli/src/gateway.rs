//! `plait run`, `plait serve` and `plait proxy`: from arguments to a running gateway and its end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use plait_gateway::{
    Config, Credentials, Gateway, Identities, Outbound, Policy, Requirement, RunError, Settings, Trust,
    exit_code,
};
use plait_linux::signal::StopSignal;
use plait_proto::option::Mode;
use plait_wire::Role;
use rustix::process::Signal;
use tokio::runtime::Runtime;

#[derive(clap::Args)]
struct Protection {
    /// How connections are protected: sealed (secret and unchanged, unless somebody is active on every path), stream
    /// (secret from who does not listen on the trusted path), xor64 (obfuscation, not secrecy), off [default: sealed]
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// Refuse connections whose peer does not agree on the mode, instead of carrying them plain; with `=all-paths`, and
    /// mode sealed, also those that one of the paths does not witness; `=false` takes back what the file demands
    #[arg(long, value_name = "all-paths", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = requirement)]
    require: Option<Demanded>,
    /// Seconds that live connections may take to end when asked to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    drain: u64,
    /// Connections carried at once; more wait
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
    /// File with this gateway's key pair, of mode sealed, as `plait identity` makes it [default: that of `plait
    /// identity`, if it is there]
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
}

/// By which keys peers are known.
#[derive(clap::Args)]
struct Peers {
    /// How peers are known that have no key in the file's [peers], in mode sealed: not at all (any), by the first key
    /// that they show (first-use); or they are refused (pinned) [default: pinned if [peers] has any, else any]
    #[arg(long, value_name = "any|first-use|pinned")]
    peers: Option<Trust>,
}

/// What `--require` says.
#[derive(Clone, Copy)]
struct Demanded(Option<Requirement>);

impl Protection {
    /// Of a gateway that connects to peers.
    fn outbound(&self, command: &'static str, peers: &Peers, config: &Config) -> anyhow::Result<Settings> {
        let file = self.identity.as_deref().or(config.identity.as_deref());
        let trust = peers.peers.or(config.trust);
        let identities = Identities::new(file, trust, config.pins.clone(), None)?;
        if self.identity.is_some() && !identities.judge_peers() {
            bail!(
                "--identity shows a key, and only to peers whose own key is looked at: add --peers first-use, or the \
                 peer to [peers]"
            );
        }
        self.settings(command, identities, config)
    }

    /// Of a gateway that peers connect to.
    fn inbound(&self, command: &'static str, config: &Config) -> anyhow::Result<Settings> {
        let file = self.identity.as_deref().or(config.identity.as_deref());
        let identities = Identities::new(file, None, BTreeMap::new(), config.clients.clone())?;
        self.settings(command, identities, config)
    }

    fn settings(
        &self,
        command: &'static str,
        identities: Identities,
        config: &Config,
    ) -> anyhow::Result<Settings> {
        let mode = self.mode.or(config.mode).unwrap_or(Mode::Sealed);
        let require = self.require.map_or(config.require, |Demanded(require)| require);
        Ok(Settings {
            command,
            policy: Policy::new(mode, require)?,
            identities,
            most_connections: self.max_connections as usize,
            drain: Duration::from_secs(self.drain),
        })
    }
}

/// The configuration file.
#[derive(clap::Args)]
struct ConfigFile {
    /// File with mode, require, the roles of interfaces in its table [paths], and identities in [identity] and [peers];
    /// what the command line says counts more
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    fn read(&self) -> anyhow::Result<Config> {
        Ok(self.config.as_deref().map(Config::from_file).transpose()?.unwrap_or_default())
    }
}

/// Which interfaces lead to a trusted path.
#[derive(clap::Args)]
pub(crate) struct Paths {
    /// Interface of the trusted path, where every connection begins
    #[arg(long, value_name = "IFACE")]
    trusted: Vec<String>,
    /// Interface of an untrusted path [default: all others]
    #[arg(long, value_name = "IFACE")]
    untrusted: Vec<String>,
    #[command(flatten)]
    file: ConfigFile,
}

impl Paths {
    /// What the file says, with the roles that the command line gives in place of the file's.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let mut config = self.file.read()?;
        for name in &self.trusted {
            config.roles.name(name, Role::Trusted);
        }
        for name in &self.untrusted {
            config.roles.name(name, Role::Untrusted);
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
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Arguments of `plait serve`.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// Address and port to accept connections on; with [::] further subflows arrive at every address of this host
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// The service that connections are carried to
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    to: String,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    file: ConfigFile,
}

/// Arguments of `plait proxy`.
#[derive(clap::Args)]
pub(crate) struct ProxyArgs {
    /// Address and port to accept clients on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:1080")]
    listen: SocketAddr,
    /// File with one line USER:PASSWORD that clients must know
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    #[command(flatten)]
    protection: Protection,
    #[command(flatten)]
    peers: Peers,
    #[command(flatten)]
    paths: Paths,
}

fn requirement(text: &str) -> Result<Demanded, String> {
    match text {
        "true" => Ok(Demanded(Some(Requirement::Mode))),
        "all-paths" => Ok(Demanded(Some(Requirement::AllPaths))),
        "false" => Ok(Demanded(None)),
        other => Err(format!("expected --require, --require=all-paths or --require=false, found '{other}'")),
    }
}

fn host_and_port(text: &str) -> Result<String, String> {
    let expected = || format!("expected HOST:PORT, found '{text}'");
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    if host.is_empty() || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Err(expected());
    }
    Ok(text.to_owned())
}

/// How long tasks and threads may take to end behind a gateway. A name lookup in progress cannot be ended.
const END_LIMIT: Duration = Duration::from_secs(1);

pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Runtime::new().context("cannot start the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(END_LIMIT);
    done
}

/// SIGTERM and SIGINT; SIGHUP ends a gateway at once.
pub(crate) fn stop_signal() -> anyhow::Result<StopSignal> {
    StopSignal::listen_for(&[Signal::TERM, Signal::INT]).context("cannot listen for signals")
}

/// Runs a service until SIGTERM or SIGINT; a second one of them does not wait for the drain.
async fn until_stopped<F>(gateway: &Arc<Gateway>, service: F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let mut stop = stop_signal()?;
    tokio::select! {
        ended = service => ended?,
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
    block_on(async {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let outbound = Arc::new(Outbound::start(&gateway, config.roles)?);
        let mut command = args.command.into_iter();
        let program = command.next().context("no program given")?;
        let status = outbound.run(program, command.collect()).await;
        let mut stop = stop_signal()?;
        tokio::select! {
            () = gateway.shut_down_patiently() => {}
            _ = stop.next() => {}
        }
        match status {
            // As every program that runs another one says it.
            Err(error @ RunError::Spawn { .. }) => {
                eprintln!("plait: {error}");
                Ok(ExitCode::from(if error.is_not_found() { 127 } else { 126 }))
            }
            status => Ok(ExitCode::from(exit_code(status?))),
        }
    })
}

pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let settings = args.protection.inbound("serve", &args.file.read()?)?;
    block_on(async {
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        until_stopped(&gateway, async { Ok(gateway.serve(args.listen, &args.to).await?) }).await
    })
}

pub(crate) fn proxy(args: ProxyArgs) -> anyhow::Result<()> {
    let config = args.paths.config()?;
    let settings = args.protection.outbound("proxy", &args.peers, &config)?;
    let credentials = args.credentials.as_deref().map(Credentials::from_file).transpose()?;
    block_on(async {
        let listener = Outbound::proxy_listener(args.listen).await?;
        let gateway = Gateway::start(settings)?;
        gateway.publish();
        let outbound = Arc::new(Outbound::start(&gateway, config.roles)?);
        until_stopped(&gateway, async {
            outbound.proxy(listener, credentials).await;
            Ok(())
        })
        .await
    })
}
