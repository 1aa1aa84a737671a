//! One transfer of the demo: a lab with two links, a capture on each, and unmodified programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use plait_config::Role;
use plait_lab::{Capture, Host, Lab, Link, Rate, Seed, Topology};
use plait_linux::signal::StopSignal;
use plait_proto::option::Mode;
use sha2::{Digest as _, Sha256};

use super::document::Document;

/// Congestion control is fixed, so that the result does not depend on the machine's default. The server announces its
/// address on the untrusted path, by which the client learns of that path.
const TOPOLOGY: &str = r#"
[hosts.client]
mptcp = { subflows = 8, add_addr_accepted = 8 }
congestion_control = "cubic"
[hosts.server]
mptcp = { subflows = 8, add_addr_accepted = 8 }
congestion_control = "cubic"

[[links]]
name = "eth"
role = "trusted"
family = "ipv4"
a = "client"
b = "server"
each_way = { ETH }
[[links]]
name = "wlan"
role = "untrusted"
family = "ipv4"
a = "client"
b = { host = "server", endpoint = ["signal"] }
each_way = { WLAN }

[[services]]
name = "web"
host = "server"
kind = "nginx"
port = 8080
document = "1kB"
[[services]]
name = "gateway"
host = "server"
command = ["plait", "serve", "--listen", "0.0.0.0:8443", "--to", "127.0.0.1:8080", GATEWAY]
port = 8443
"#;

/// A finished transfer: what curl reports, and the captures.
pub(super) struct Transfer {
    pub(super) mode: Mode,
    /// Bytes received.
    pub(super) bytes: u64,
    /// Whether they equal the document.
    pub(super) sha256_ok: bool,
    /// From the request to the last byte, as curl measured it.
    pub(super) seconds: f64,
    pub(super) paths: Vec<CapturedPath>,
}

/// A path and its capture.
pub(super) struct CapturedPath {
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) rate: Rate,
    pub(super) capture: PathBuf,
}

/// Downloads the document through plait in this mode; the captures go to `directory`.
pub(super) fn run(
    mode: Mode,
    document: &Document,
    rates: [Rate; 2],
    directory: &Path,
    interrupt: &StopSignal,
) -> anyhow::Result<Transfer> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create the directory {}", directory.display()))?;
    let topology = Topology::parse(&topology(mode, rates), "the demo's topology")?;
    let lab = Lab::up(&topology, None, Seed::random(), interrupt.clone())?;
    let [web, gateway] = lab.services() else { unreachable!("the topology has two services") };
    fs::write(web.directory().join("www/document"), &document.text).context("cannot write the document")?;

    let client = lab.find_host("client")?;
    let capture = |link: &Link| {
        Ok(Capture::start(client, link.name(), &directory.join(format!("{}.pcap", link.name())))?)
    };
    let captures: Vec<_> = lab.links().iter().map(capture).collect::<anyhow::Result<_>>()?;
    let received = lab.scratch().join("received");
    let mut run = client.command(std::env::current_exe().context("cannot find the program plait itself")?);
    // The addresses mean nothing outside of this lab: its peers are not remembered with those of this user.
    run.env("STATE_DIRECTORY", lab.scratch().join("state"));
    let seconds = download(client, run, mode, document, rates, &received).map_err(|error| {
        let stderr = fs::read_to_string(gateway.directory().join("stderr")).unwrap_or_default();
        match stderr.trim() {
            "" => error,
            stderr => error.context(format!("the server's gateway printed: {stderr}")),
        }
    })?;
    let content = fs::read(&received).context("expected a file from curl, got none")?;
    let captured = |((link, capture), rate): ((&Link, Capture), Rate)| {
        Ok(CapturedPath { name: link.name().into(), role: link.role(), rate, capture: capture.stop()? })
    };
    let paths = lab.links().iter().zip(captures).zip(rates).map(captured).collect::<anyhow::Result<_>>()?;
    Ok(Transfer {
        mode,
        bytes: content.len() as u64,
        sha256_ok: Sha256::digest(&content)[..] == document.sha256,
        seconds,
        paths,
    })
}

/// Downloads the document with curl under `plait run`, and returns the seconds it took.
fn download(
    client: &Host,
    mut run: Command,
    mode: Mode,
    document: &Document,
    rates: [Rate; 2],
    received: &Path,
) -> anyhow::Result<f64> {
    run.arg("run").args(mode_arguments(mode)).args(["--trusted", "eth", "--untrusted", "wlan", "--"]);
    run.args(["curl", "-sS", "--fail", "-w", "%{time_total}\n", "-o"]).arg(received);
    run.arg("http://10.77.1.2:8443/document");
    let slowest = rates.map(Rate::bits_per_second).into_iter().min().unwrap_or(1) as f64;
    let limit = Duration::from_secs_f64(30.0 + 3.0 * document.text.len() as f64 * 8.0 / slowest);
    let stdout = client.spawn(run)?.finish(limit)?;
    let seconds: f64 =
        stdout.trim().parse().with_context(|| format!("expected seconds from curl, got {stdout:?}"))?;
    ensure!(seconds > 0.0, "expected a positive time from curl, got {seconds} s");
    Ok(seconds)
}

fn topology(mode: Mode, [eth, wlan]: [Rate; 2]) -> String {
    let gateway: Vec<_> = mode_arguments(mode).iter().map(|word| format!("\"{word}\"")).collect();
    TOPOLOGY
        .replace("ETH", &link_properties(eth))
        .replace("WLAN", &link_properties(wlan))
        .replace("GATEWAY", &gateway.join(", "))
}

/// A queue of 33 ms, or of a few full frames on a slow link.
fn link_properties(rate: Rate) -> String {
    format!("rate = \"{rate}\", queue = \"{}B\"", rate.bytes_in(33).max(10_000))
}

/// Without a mode, `--require` would refuse everything.
fn mode_arguments(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Off => &["--mode", "off"],
        Mode::Xor64 => &["--mode", "xor64", "--require"],
        Mode::Stream => &["--mode", "stream", "--require"],
        Mode::Sealed => &["--mode", "sealed", "--require=all-paths"],
    }
}

/// Checks what the demo needs before it builds anything.
pub(super) fn check_requirements() -> anyhow::Result<()> {
    Lab::check_permitted()?;
    for program in ["ip", "tcpdump", "nginx", "curl"] {
        plait_lab::require_program(program).context("the demo runs real programs")?;
    }
    let mptcp = Path::new("/proc/sys/net/mptcp/enabled");
    ensure!(
        mptcp.exists(),
        "expected a kernel with Multipath TCP, got one without {}: use Linux 5.19 or later with CONFIG_MPTCP",
        mptcp.display()
    );
    Ok(())
}
