//! `plait exit init`: prepares this host to be an exit, and prints the URL for its clients.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use plait_gateway::{Config, ExitConfig, ExitUrl, PeerName, identity};

use crate::stderr::eprintln;
use crate::stdout::print_text;

/// Subcommands of `plait exit`.
#[derive(clap::Subcommand)]
pub(crate) enum ExitCommand {
    /// Create what an exit needs, and print the URL that its clients pass to --exit
    Init(InitArgs),
}

/// Arguments of `plait exit init`.
#[derive(clap::Args)]
pub(crate) struct InitArgs {
    /// Port to accept connections on
    #[arg(long, value_name = "PORT", default_value_t = 8443, value_parser = clap::value_parser!(u16).range(1..))]
    listen: u16,
    /// Name or address by which clients reach this host [default: its address towards the Internet]
    #[arg(long, value_name = "HOST")]
    name: Option<String>,
    /// Configuration file, which is created, or to which a section [exit] is appended if it has none
    #[arg(long, value_name = "FILE", default_value = "/etc/plait/plait.toml")]
    config: PathBuf,
}

pub(crate) fn run(command: ExitCommand) -> anyhow::Result<()> {
    let ExitCommand::Init(args) = command;
    init(args)
}

fn init(args: InitArgs) -> anyhow::Result<()> {
    let InitArgs { listen, name, config: file } = args;
    // Before anything is created.
    let host = name.map_or_else(own_address, Ok)?;
    if PeerName::new(&host, listen).to_string().parse::<PeerName>().is_err() {
        bail!("expected a host name or an address for --name, got '{host}'");
    }
    let config = if file.exists() { Config::from_file(&file)? } else { Config::default() };
    let key_file = config.identity.map_or_else(identity::default_file, Ok)?;
    let port = match config.exit {
        ExitConfig { listen: Some(address), .. } => address.port(),
        exit if exit == ExitConfig::default() => {
            append(&file, &section(listen)).with_context(|| format!("cannot write {}", file.display()))?;
            eprintln!("plait: wrote [exit] to {}", file.display());
            listen
        }
        _ => bail!(
            "expected `listen` in [exit] of {}, got none: add it, as in listen = \"[::]:{listen}\"",
            file.display()
        ),
    };
    let (pair, created) = identity::load_or_create(&key_file)?;
    if created {
        eprintln!("plait: created a key pair in {}", key_file.display());
    }
    let url = ExitUrl::new(PeerName::new(&host, port), pair.public());
    let start = format!("plait daemon --config {}", file.display());
    eprintln!(
        "plait: add the keys that `plait identity` prints at the clients to `clients` in [exit], and run `{start}`; clients use \
         this URL, as in `plait run --exit URL -- curl https://example.org`:"
    );
    print_text(&format!("{url}\n"))
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
         # Who may use it: the keys that `plait identity` prints at the clients.\n\
         clients = []\n\
         # Networks that clients may reach beside the Internet, such as the one behind this host.\n\
         # allow = [\"10.0.0.0/8\"]\n\
         # What each client may take.\n\
         # max_connections = 1000\n\
         # max_rate = \"100mbit\"\n\
         # max_bytes_per_day = \"50GB\"\n"
    )
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
