//! `plait exit`: makes this host an exit, and invites its clients.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{self, Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail};
use plait_config::Source;
use plait_gateway::{
    Config, ExitClients, ExitConfig, ExitUrl, Gateway, Identities, InvitationUrl, InvitedClient,
    InvitedClients, Outbound, PeerName, Requirement, Route, Trust, identity,
};
use plait_linux::netns;
use plait_proto::identity::{KeyPair, PublicKey};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::json;

use crate::daemon::{self, background};
use crate::gateway::{Protection, block_on_gated, confine};
use crate::stderr::eprintln;
use crate::stdout::{print_json, print_text};

const DEFAULT_CONFIG: &str = "/etc/plait/plait.toml";

/// The service of the packages, which runs with the default file.
const SERVICE_UNIT: &str = "plait.service";

/// Present if systemd is the init system (`sd_booted(3)`).
const SYSTEMD_DIRECTORY: &str = "/run/systemd/system";

/// Subcommands of `plait exit`.
#[derive(clap::Subcommand)]
pub(crate) enum ExitCommand {
    /// Create what an exit needs, start it, and print the URL for a client
    Init(InitArgs),
    /// Print the URL for one more client
    Invite(InviteArgs),
    /// Have the exit admit this host by the invitation in an URL, and print the URL without it
    Join(JoinArgs),
    /// List the clients that were admitted by invitations, and open invitations
    Clients(ClientsArgs),
    /// Remove a client that was admitted by an invitation, or an invitation
    Remove(RemoveArgs),
}

/// Arguments of `plait exit init`.
#[derive(clap::Args)]
pub(crate) struct InitArgs {
    /// Port to accept connections on
    #[arg(long, value_name = "PORT", default_value_t = 8443, value_parser = clap::value_parser!(u16).range(1..))]
    listen: u16,
    /// Do not start the daemon
    #[arg(long)]
    no_start: bool,
    #[command(flatten)]
    invite: InviteArgs,
}

/// Arguments of `plait exit invite`.
#[derive(clap::Args)]
pub(crate) struct InviteArgs {
    /// Name or address by which clients reach this host [default: its address towards the Internet]
    #[arg(long, value_name = "HOST")]
    name: Option<String>,
    #[command(flatten)]
    file: FileArgs,
}

/// The file of the exit.
#[derive(clap::Args)]
pub(crate) struct FileArgs {
    /// Configuration file; `init` creates it, or appends a section [exit] if it has none
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,
}

/// Arguments of `plait exit join`.
#[derive(clap::Args)]
pub(crate) struct JoinArgs {
    /// The URL, as `plait exit init` or `plait exit invite` prints it at the exit
    #[arg(value_name = "plait://HOST:PORT#KEY.INVITATION")]
    url: InvitationUrl,
}

/// Arguments of `plait exit clients`.
#[derive(clap::Args)]
pub(crate) struct ClientsArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `plait exit remove`.
#[derive(clap::Args)]
pub(crate) struct RemoveArgs {
    /// Its key, as `plait exit clients` prints it
    #[arg(value_name = "KEY")]
    key: PublicKey,
    #[command(flatten)]
    file: FileArgs,
}

pub(crate) fn run(command: ExitCommand) -> anyhow::Result<()> {
    match command {
        ExitCommand::Init(args) => init(&args),
        ExitCommand::Invite(args) => invite(&args),
        ExitCommand::Join(args) => join(args.url),
        ExitCommand::Clients(args) => clients(&args),
        ExitCommand::Remove(args) => remove(&args),
    }
}

fn init(args: &InitArgs) -> anyhow::Result<()> {
    let InitArgs { listen, no_start, invite: InviteArgs { name, file: FileArgs { config: file } } } = args;
    let file = &path::absolute(file).context("cannot find the configuration file")?;
    // Before anything is created.
    let host = reachable_as(name.as_deref(), *listen)?;
    let config = if file.exists() { Config::from_file(file)? } else { Config::default() };
    let has_exit = config.exit != ExitConfig::default();
    if !has_exit {
        append(file, &section(*listen)).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("plait: wrote [exit] to {}", file.display());
    }
    let key_file = config.identity.map_or_else(identity::default_file, Ok)?;
    let (_, created) = identity::load_or_create(&key_file)?;
    if created {
        eprintln!("plait: created a key pair in {}", key_file.display());
    }
    let exit = ConfiguredExit::of_file(file)?;
    // First, so that there is no invitation to an exit that does not start.
    if !no_start {
        start(file, !has_exit)?;
    }
    exit.print_invitation(&host)
}

fn invite(args: &InviteArgs) -> anyhow::Result<()> {
    let exit = ConfiguredExit::of_file(&args.file.config)?;
    let host = reachable_as(args.name.as_deref(), exit.port)?;
    exit.print_invitation(&host)
}

fn join(url: InvitationUrl) -> anyhow::Result<()> {
    let InvitationUrl { exit, invitation } = url;
    if let Some(invitation) = invitation {
        let own = identity::load_or_create(&identity::default_file()?)?.0.public();
        // While this process may still open it.
        let file = redeemed_file()?;
        let redeemed = OpenOptions::new().append(true).create(true).mode(0o600).open(&file);
        let redeemed = redeemed.with_context(|| format!("cannot write {}", file.display()))?;
        redeem(&exit, &invitation, own)?;
        remember(redeemed, &exit, &invitation).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("plait: {} has admitted this host, {own}", exit.peer());
    }
    print_text(&format!("{exit}\n"))
}

fn clients(args: &ClientsArgs) -> anyhow::Result<()> {
    let entries = ConfiguredExit::of_file(&args.file.config)?.clients.list()?;
    if args.json {
        let clients: Vec<_> = entries
            .iter()
            .map(|entry| json!({ "key": entry.key, "date": entry.date, "invitation": entry.invitation }))
            .collect();
        return print_json(&json!({ "clients": clients }));
    }
    let line = |entry: &InvitedClient| match entry.invitation {
        Some(_) => format!("{}  client since {}\n", entry.key, entry.date),
        None => format!("{}  invitation of {}, not used yet\n", entry.key, entry.date),
    };
    let text: String = entries.iter().map(line).collect();
    print_text(if text.is_empty() { "no clients were admitted by invitations\n" } else { &text })
}

fn remove(args: &RemoveArgs) -> anyhow::Result<()> {
    let exit = ConfiguredExit::of_file(&args.file.config)?;
    if !exit.clients.remove(args.key)? {
        bail!("expected a key that `plait exit clients` prints, got {}, which it does not", args.key);
    }
    print_text("removed: its new connections are refused, those that it has go on\n")
}

/// The exit that a configuration file describes.
struct ConfiguredExit {
    port: u16,
    key: PublicKey,
    clients: InvitedClients,
    /// Everybody may use it: nobody needs an invitation.
    is_open: bool,
}

impl ConfiguredExit {
    fn of_file(file: &Path) -> anyhow::Result<ConfiguredExit> {
        let config = Config::from_file(file)?;
        let Some(listen) = config.exit.listen else {
            bail!(
                "expected `listen` in [exit] of {}, got none: add it, as in listen = \"[::]:8443\"",
                file.display()
            );
        };
        let key_file = config.identity.map_or_else(identity::default_file, Ok)?;
        let key = identity::load(&key_file)?.public();
        let clients = InvitedClients::of_exit(&key_file);
        Ok(ConfiguredExit {
            port: listen.port(),
            key,
            clients,
            is_open: config.exit.clients == Some(ExitClients::Any),
        })
    }

    fn print_invitation(&self, host: &str) -> anyhow::Result<()> {
        let exit = ExitUrl::new(PeerName::new(host, self.port), self.key);
        if self.is_open {
            eprintln!("plait: everybody may use this exit, by this URL:");
            return print_text(&format!("{exit}\n"));
        }
        let pair = KeyPair::generate().map_err(|_| identity::IdentityError::Random)?;
        self.clients.invite(pair.public())?;
        eprintln!(
            "plait: this URL admits one client, within a week; `plait up URL` there sends everything through this exit. Give it to \
             nobody else:"
        );
        let url = InvitationUrl { exit, invitation: Some(Arc::new(pair)) };
        print_text(&format!("{}\n", *url.to_text()))
    }
}

/// The file of the invitations that this host has redeemed: one line for each, the exit and the public key of the invitation.
fn redeemed_file() -> anyhow::Result<PathBuf> {
    Ok(identity::default_file()?.with_file_name("redeemed_invitations"))
}

/// Whether this host has redeemed an invitation: an exit behind a kill switch could not be asked again.
pub(crate) fn has_redeemed(invitation: &KeyPair) -> bool {
    let text = redeemed_file().and_then(|file| Ok(fs::read_to_string(file)?)).unwrap_or_default();
    let key = invitation.public().to_string();
    text.lines().any(|line| line.ends_with(&key))
}

fn remember(mut file: File, exit: &ExitUrl, invitation: &KeyPair) -> io::Result<()> {
    file.write_all(format!("{} {}\n", exit.peer(), invitation.public()).as_bytes())
}

/// The clients that an exit with this key file has invited, by default with that of the user. `None`: the environment names no directory.
pub(crate) fn invited_clients(key_file: Option<&Path>) -> Option<InvitedClients> {
    let key_file = key_file.map(Path::to_owned).or_else(|| identity::default_file().ok())?;
    Some(InvitedClients::of_exit(&key_file))
}

/// Has an exit admit the client with this key, by a gateway whose key pair is the invitation.
fn redeem(exit: &ExitUrl, invitation: &Arc<KeyPair>, client: PublicKey) -> anyhow::Result<()> {
    // The exit's key is pinned: an attacker on any path learns nothing.
    const ALL_PATHS_TRUSTED: &str = "[[paths]]\nmatch = \"*\"\nrole = \"trusted\"\n";
    let config = Config::parse(&Source::new("", ALL_PATHS_TRUSTED))?;
    let pins = [(exit.peer().clone(), exit.key())].into();
    let identities = Identities::default().with(Some(Trust::Pinned), pins, None);
    let identities = identities.with_key_pair(Arc::clone(invitation));
    let default = Some(Requirement::Mode);
    let mut settings = Protection::of_file().settings("exit join", identities, &config, default)?;
    settings.opens_connections = true;
    block_on_gated(settings, async |settings, gate| {
        let gateway = Gateway::start(settings)?;
        let outbound = Outbound::start(&gateway, config.roles)?.with_route(Route::Exit(exit.clone()))?;
        confine(gate, outbound.sandbox_rules(None))?;
        let redeemed = outbound.redeem_invitation(client).await;
        gateway.shut_down().await;
        redeemed.context("the exit has not admitted this host")
    })
}

/// Starts the daemon of a configuration file, or if it runs, has it read the file again after a change.
fn start(file: &Path, changed: bool) -> anyhow::Result<()> {
    if let Some(process) = daemon::running(file)? {
        if changed {
            kill_process(process, Signal::HUP).context("cannot have the daemon read its file again")?;
        }
        eprintln!("plait: the daemon runs, process {}", process.as_raw_pid());
        return Ok(());
    }
    if !geteuid().is_root() {
        eprintln!("plait: start the exit as root: plait daemon --config {}", file.display());
        return Ok(());
    }
    if Path::new(SYSTEMD_DIRECTORY).exists()
        && file == Path::new(DEFAULT_CONFIG)
        && systemctl(&["cat", SERVICE_UNIT]).is_ok()
    {
        systemctl(&["enable", "--now", SERVICE_UNIT])
            .with_context(|| format!("{SERVICE_UNIT} does not start: see journalctl -u {SERVICE_UNIT}"))?;
        eprintln!("plait: the exit runs as {SERVICE_UNIT}, also after a reboot");
        return Ok(());
    }
    let process = start_in_background(file)?;
    eprintln!(
        "plait: the exit runs, process {}; `kill {0}` stops it. After a reboot: plait daemon --config {}",
        process.as_raw_pid(),
        file.display()
    );
    Ok(())
}

fn start_in_background(file: &Path) -> anyhow::Result<Pid> {
    let directory = plait_linux::run_directory()?;
    let namespace = netns::cookie().unwrap_or_default();
    let named = |kind: &str| directory.join(format!("exit.{namespace}.{kind}"));
    background::start(file, &named("log"), &named("notify"))
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<()> {
    let done = Command::new("systemctl").arg("--quiet").args(arguments).output()?;
    if !done.status.success() {
        bail!("{}", String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

/// Appends to a file, which is created with its directory if it does not exist.
fn append(file: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut out = OpenOptions::new().append(true).create(true).open(file)?;
    let separator = if out.metadata()?.len() > 0 { "\n" } else { "" };
    out.write_all(format!("{separator}{text}").as_bytes())
}

fn section(port: u16) -> String {
    format!(
        "[exit]\n\
         listen = \"[::]:{port}\"\n\
         # Who may use it, beside the clients that were admitted by invitations: the keys that `plait identity` prints there.\n\
         clients = []\n\
         # Networks that clients may reach beside the Internet, such as the one behind this host.\n\
         # allow = [\"10.0.0.0/8\"]\n\
         # What each client may take.\n\
         # max_connections = 1000\n\
         # max_rate = \"100mbit\"\n\
         # max_bytes_per_day = \"50GB\"\n"
    )
}

/// The name or address by which clients reach this host.
fn reachable_as(name: Option<&str>, port: u16) -> anyhow::Result<String> {
    let host = name.map_or_else(own_address, |name| Ok(name.to_owned()))?;
    if PeerName::new(&host, port).to_string().parse::<PeerName>().is_err() {
        bail!("expected a host name or an address for --name, got '{host}'");
    }
    Ok(host)
}

/// The source address of packets to the Internet.
fn own_address() -> anyhow::Result<String> {
    // Connecting a datagram socket sends nothing.
    let towards = |from: &str, to: &str| {
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect((to, 443))?;
        socket.local_addr().map(|address| address.ip())
    };
    let address: io::Result<IpAddr> =
        towards("0.0.0.0", "198.41.0.4").or_else(|_| towards("::", "2001:500:2::c"));
    let address = address.context("cannot find this host's address towards the Internet: add --name HOST")?;
    if let IpAddr::V4(address) = address
        && address.is_private()
    {
        eprintln!(
            "plait: {address} is a private address: if clients reach this host by another one, add --name HOST"
        );
    }
    Ok(address.to_string())
}
