//! One transfer of the demo: a client and a server with two links between them, a listener on each link, and
//! unmodified programs that know nothing of all this.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plait_emulator::{DirectionSpec, Pace};
use plait_lab::{Capture, Host, Lab, Link, LinkSpec, Process, Rate, Side, nginx_configuration};
use plait_linux::signal::StopSignal;
use plait_proto::option::Mode;
use plait_wire::Role;
use sha2::{Digest as _, Sha256};

use super::document::Document;

const WEB_PORT: u16 = 8080;
const GATEWAY_PORT: u16 = 8443;
const START_LIMIT: Duration = Duration::from_secs(15);
/// Subflows per connection and announced addresses taken, as for a full mesh of two by two links.
const MPTCP_LIMIT: u8 = 8;
/// What most hosts use, so that the demo is the same where the machine's default is another.
const CONGESTION_CONTROL: &str = "cubic";
/// The longest a frame may wait in a link's queue, which holds a few full frames however slow the link is.
const QUEUE_MS: u64 = 33;
const QUEUE_MIN_BYTES: u64 = 10_000;

/// What a transfer left: what curl says of it, and the listeners' captures.
pub(super) struct Transfer {
    pub(super) mode: Mode,
    /// Bytes received.
    pub(super) bytes: u64,
    /// Whether they are the document.
    pub(super) sha256_ok: bool,
    /// From the request to the last byte, as curl measured it.
    pub(super) seconds: f64,
    pub(super) paths: Vec<CapturedPath>,
}

/// A path and what was captured on it.
pub(super) struct CapturedPath {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) rate: Rate,
    pub(super) capture: PathBuf,
}

/// Fetches the document through plait in this mode; the captures go to `directory`.
pub(super) fn run(
    mode: Mode,
    document: &Document,
    rates: [Rate; 2],
    directory: &Path,
    interrupt: &StopSignal,
) -> anyhow::Result<Transfer> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let network = Network::build(rates, interrupt)?;
    let _web_server = network.start_web_server(document)?;
    let gateway = network.start_gateway(mode)?;

    let capture = |(link, rate): (&Link, Rate)| {
        let file = directory.join(format!("{}.pcap", link.name()));
        Ok((link.clone(), rate, Capture::start(&network.client, link.name(), &file)?))
    };
    let captures: Vec<_> = network.links.iter().zip(rates).map(capture).collect::<anyhow::Result<_>>()?;
    let fetched = network.fetch(mode, document).map_err(|error| match gateway.stderr().trim() {
        "" => error,
        said => error.context(format!("the server's gateway said: {said}")),
    })?;
    let captured = |(link, rate, capture): (Link, Rate, Capture)| {
        let capture = capture.stop()?;
        Ok(CapturedPath { name: link.name().into(), role: link.role(), rate, capture })
    };
    let paths = captures.into_iter().map(captured).collect::<anyhow::Result<_>>()?;
    Ok(Transfer {
        mode,
        bytes: fetched.content.len() as u64,
        sha256_ok: Sha256::digest(&fetched.content)[..] == document.sha256,
        seconds: fetched.seconds,
        paths,
    })
}

struct Network {
    client: Host,
    server: Host,
    links: [Link; 2],
    /// That of the slower link.
    slowest: Rate,
    lab: Lab,
}

struct Fetched {
    content: Vec<u8>,
    seconds: f64,
}

impl Network {
    /// The server announces its address on the untrusted path: so a client learns of that path.
    fn build([eth, wlan]: [Rate; 2], interrupt: &StopSignal) -> anyhow::Result<Self> {
        let mut lab = Lab::new(interrupt.clone())?;
        let client = lab.host("client")?;
        let server = lab.host("server")?;
        let congestion_control =
            has_congestion_control(CONGESTION_CONTROL).then(|| CONGESTION_CONTROL.to_owned());
        let mut link = |name: &str, role, rate| {
            let congestion_control = congestion_control.clone();
            let direction = DirectionSpec {
                pace: Pace::Rate(rate),
                queue: Some(queue_of(rate)),
                ..DirectionSpec::default()
            };
            let spec = plait_emulator::LinkSpec {
                a_to_b: direction.clone(),
                b_to_a: direction,
                ..Default::default()
            };
            let spec = LinkSpec { name: name.into(), role, spec, backend: None, congestion_control };
            lab.link(&client, &server, spec)
        };
        let links = [link("eth", Role::Trusted, eth)?, link("wlan", Role::Untrusted, wlan)?];
        for host in [&client, &server] {
            host.set_mptcp_limits(MPTCP_LIMIT, MPTCP_LIMIT)?;
        }
        let [_, announced] = &links;
        server.add_mptcp_endpoint(address_of_server(announced), announced.name(), &["signal"])?;
        let network = Self { client, server, links, slowest: eth.min(wlan), lab };
        network.lead_to_server_by_both()?;
        Ok(network)
    }

    /// The server's first address is to be reached by the untrusted path, too: so that can witness a connection.
    fn lead_to_server_by_both(&self) -> anyhow::Result<()> {
        let [eth, wlan] = &self.links;
        let destination = address_of_server(eth).to_string();
        let gateway = address_of_server(wlan).to_string();
        let mut ip = self.client.command("ip");
        ip.args(["route", "add", &destination, "via", &gateway, "dev", wlan.name(), "metric", "1000"]);
        self.client.spawn(ip)?.finish(START_LIMIT)?;
        // More specific than the network of eth, it would hold for whoever does not ask for an interface.
        let mut ip = self.client.command("ip");
        ip.args(["route", "add", &destination, "dev", eth.name()]);
        self.client.spawn(ip)?.finish(START_LIMIT)?;
        Ok(())
    }

    fn start_web_server(&self, document: &Document) -> anyhow::Result<Process> {
        let directory = self.lab.scratch();
        let (root, config) = (directory.join("www"), directory.join("nginx.conf"));
        fs::create_dir(&root).and_then(|()| fs::write(root.join("document.txt"), &document.text))?;
        fs::write(&config, nginx_configuration(directory, &[&format!("127.0.0.1:{WEB_PORT}")]))?;
        let mut nginx = self.server.command("nginx");
        nginx.args(["-e", "stderr", "-p"]).arg(directory).arg("-c").arg(config);
        let mut nginx = self.server.spawn(nginx)?;
        nginx.wait_until_listening(WEB_PORT, START_LIMIT)?;
        Ok(nginx)
    }

    fn start_gateway(&self, mode: Mode) -> anyhow::Result<Process> {
        let mut serve = self.server.command(this_program()?);
        // On every address: a subflow to one that nobody listens on would be reset.
        let (listen, to) = (format!("0.0.0.0:{GATEWAY_PORT}"), format!("127.0.0.1:{WEB_PORT}"));
        serve.args(["serve", "--listen", &listen, "--to", &to]);
        serve.args(mode_arguments(mode));
        let mut serve = self.server.spawn(serve)?;
        serve.wait_until_listening(GATEWAY_PORT, START_LIMIT)?;
        Ok(serve)
    }

    fn fetch(&self, mode: Mode, document: &Document) -> anyhow::Result<Fetched> {
        let [eth, _] = &self.links;
        let received = self.lab.scratch().join("received.txt");
        let mut run = self.client.command(this_program()?);
        run.arg("run").args(mode_arguments(mode)).args(["--trusted", eth.name(), "--"]);
        run.args(["curl", "-sS", "--fail", "-w", "%{time_total}\n", "-o"]).arg(&received);
        run.arg(format!("http://{}:{GATEWAY_PORT}/document.txt", address_of_server(eth)));
        let slowest = self.slowest.bits_per_second() as f64;
        let limit = Duration::from_secs_f64(30.0 + 3.0 * document.text.len() as f64 * 8.0 / slowest);
        let said = self.client.spawn(run)?.finish(limit)?;
        let seconds: f64 = said.trim().parse().with_context(|| format!("curl gave no time, but {said:?}"))?;
        ensure!(seconds > 0.0, "curl gave {seconds} s as the time of the transfer");
        let content = fs::read(&received).context("curl ended well and left no file")?;
        Ok(Fetched { content, seconds })
    }
}

/// What the demo cannot do without, asked before anything is built.
pub(super) fn check_requirements() -> anyhow::Result<()> {
    Lab::check_permitted()?;
    for program in ["ip", "tcpdump", "nginx", "curl"] {
        plait_lab::require_program(program).context("the demo runs real programs")?;
    }
    let mptcp = Path::new("/proc/sys/net/mptcp/enabled");
    ensure!(
        mptcp.exists(),
        "the demo needs Multipath TCP, and this kernel has none (no {}): use a kernel from 5.19 on with CONFIG_MPTCP",
        mptcp.display()
    );
    Ok(())
}

/// The IPv4 address of the server, which is every link's second end.
fn address_of_server(link: &Link) -> IpAddr {
    link.addresses(Side::B)[0].ip
}

/// What crosses in the longest that a frame may wait.
fn queue_of(rate: Rate) -> u64 {
    rate.bytes_in(QUEUE_MS).max(QUEUE_MIN_BYTES)
}

fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the program plait itself")
}

/// Without a mode to require, `--require` would refuse everything.
fn mode_arguments(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Off => &["--mode", "off"],
        Mode::Xor64 => &["--mode", "xor64", "--require"],
        Mode::Stream => &["--mode", "stream", "--require"],
        Mode::Sealed => &["--mode", "sealed", "--require=all-paths"],
    }
}

fn has_congestion_control(name: &str) -> bool {
    let available =
        fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    available.split_ascii_whitespace().any(|available| available == name)
}
