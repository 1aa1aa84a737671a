//! `plait up` and `plait down`: a daemon in the background that sends the connections of the whole host through an exit.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::ToSocketAddrs as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ipnet::IpNet;
use plait_gateway::{ExitUrl, GatewayStatus, InvitationUrl, KillSwitch, remove_leftovers};
use plait_linux::interfaces::{interfaces, route};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::daemon::background::{POLL_INTERVAL, STOP_TIMEOUT};
use crate::daemon::{HostLock, LOCK, background, host_file, remove_files};
use crate::exit::has_redeemed;
use crate::router::network;
use crate::stdout::print_text;

/// The files of a daemon in the background, in the run directory, beside its lock.
const CONFIG: &str = "toml";
const LOG: &str = "log";
const NOTIFY: &str = "notify";

/// After this time, connections that live on are reset.
const DRAIN: Duration = Duration::from_millis(500);

/// Arguments of `plait up`.
#[derive(clap::Args)]
pub(crate) struct UpArgs {
    /// The exit, as `plait exit init` prints it there. An invitation in it admits this host, the first time
    #[arg(value_name = "plait://HOST:PORT#KEY[.INVITATION]")]
    url: InvitationUrl,
    /// Let nothing leave this host outside of plait, until `plait down`
    #[arg(long)]
    killswitch: bool,
    /// Reach this network without plait, such as 10.0.0.0/8; may be repeated
    #[arg(long, value_name = "NET", value_parser = network)]
    exclude: Vec<IpNet>,
    /// Reach the networks that the interfaces are connected to by the exit, too
    #[arg(long)]
    no_lan: bool,
    /// The trusted path, on which every connection starts: an interface, or an address of it; may be repeated [default: the
    /// interface of the route to the exit and, while that does not answer, any other]
    #[arg(long, value_name = "IFACE|ADDRESS")]
    trusted: Vec<String>,
    /// Also carry the connections of the hosts behind this interface, as `plait router`; may be repeated
    #[arg(long, value_name = "IFACE")]
    router: Vec<String>,
}

/// Arguments of `plait down`.
#[derive(clap::Args)]
pub(crate) struct DownArgs {}

pub(crate) fn up(args: UpArgs) -> anyhow::Result<()> {
    require_root("up")?;
    let (path, engaged) = (host_file(CONFIG)?, KillSwitch::is_engaged()?);
    let trusted =
        if args.trusted.is_empty() { vec![default_trusted(&args.url.exit)?] } else { args.trusted.clone() };
    let text = config_text(&args, &trusted);
    if let Some(holder) = running_daemon()? {
        if fs::read_to_string(&path).is_ok_and(|running| running == text) {
            return print_text("plait is up already\n");
        }
        bail!(
            "plait is up already with other settings, in process {}: run `plait down` first",
            holder.as_raw_pid()
        );
    }
    if args.url.invitation.as_ref().is_some_and(|invitation| !has_redeemed(invitation)) {
        join(&args.url)?;
    }
    write_private(&path, &text)?;
    match background::start(&path, &host_file(LOG)?, &host_file(NOTIFY)?) {
        Ok(_) => print_text(&summary(&args, &trusted)),
        Err(error) => {
            remove_files(&[CONFIG, LOG, NOTIFY])?;
            // One that was in force before remains.
            if !engaged {
                KillSwitch::remove()?;
            }
            Err(error)
        }
    }
}

pub(crate) fn down(_: &DownArgs) -> anyhow::Result<()> {
    require_root("down")?;
    let holder = HostLock::holder()?;
    if let Some(pid) = holder {
        stop(pid)?;
    }
    let engaged = KillSwitch::remove()?;
    remove_files(&[CONFIG, LOG, NOTIFY, LOCK])?;
    // Those of a killed daemon. What fails, the next start or `plait doctor --clean` removes.
    remove_leftovers();
    print_text(match (holder, engaged) {
        (Some(_), true) => "plait is down, and the kill switch is removed\n",
        (Some(_), false) => "plait is down\n",
        (None, true) => "plait was not up; its kill switch is removed\n",
        (None, false) => "plait is not up\n",
    })
}

/// Has the exit admit this host, by a process of its own.
fn join(url: &InvitationUrl) -> anyhow::Result<()> {
    let mut command = Command::new(background::executable()?);
    command.args(["exit", "join", &url.to_text()]).stdin(Stdio::null());
    let done = command.output().context("cannot start plait exit join")?;
    if done.status.success() {
        return Ok(());
    }
    match background::reported_error(&String::from_utf8_lossy(&done.stderr)) {
        Some(error) => bail!("{error}"),
        None => bail!("plait exit join has failed: {}", done.status),
    }
}

/// The daemon that redirects the connections of this host. One that was killed holds its lock until the kernel has closed its files:
/// it is waited for.
fn running_daemon() -> anyhow::Result<Option<Pid>> {
    let begin = Instant::now();
    while let Some(holder) = HostLock::holder()? {
        let GatewayStatus { reports, unresponsive } =
            GatewayStatus::query().context("cannot list running gateways")?;
        let mut running = reports.iter().map(|report| report.pid).chain(unresponsive);
        if running.any(|pid| pid == holder.as_raw_pid().cast_unsigned()) || begin.elapsed() > STOP_TIMEOUT {
            return Ok(Some(holder));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(None)
}

fn require_root(command: &str) -> anyhow::Result<()> {
    if !geteuid().is_root() {
        bail!("expected root, who alone can redirect the connections of a host: run sudo plait {command}");
    }
    Ok(())
}

/// The interface by which packets to the exit leave.
fn default_trusted(exit: &ExitUrl) -> anyhow::Result<String> {
    let peer = exit.peer();
    let addresses = peer.host_and_port().to_socket_addrs();
    let addresses = addresses.with_context(|| format!("cannot find the address of the exit {peer}"))?;
    let interfaces = interfaces().context("cannot list the interfaces")?;
    for address in addresses {
        if let Some(route) = route(address.ip().to_canonical())?
            && let Some(found) = interfaces.iter().find(|interface| interface.index == route.if_index)
        {
            return Ok(found.name.clone());
        }
    }
    bail!(
        "expected a route to the exit {peer}, got none: connect an interface to a network, or name one by --trusted"
    );
}

/// The file of the daemon.
fn config_text(args: &UpArgs, trusted: &[String]) -> String {
    // A string of JSON is one of TOML.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let exclude: Vec<String> = args.exclude.iter().map(|network| quoted(&network.to_string())).collect();
    let paths = match &args.trusted[..] {
        // The exit's key is pinned: an attacker on the first path learns nothing from the first flight.
        [] => trusted
            .iter()
            .map(String::as_str)
            .chain(["*"])
            .map(|name| format!("[[paths]]\nmatch = {}\nrole = \"trusted\"\n", quoted(name)))
            .collect(),
        named => {
            let roles: String =
                named.iter().map(|name| format!("{} = \"trusted\"\n", quoted(name))).collect();
            format!("[paths]\n{roles}")
        }
    };
    let router = match &args.router[..] {
        [] => String::new(),
        names => {
            let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            format!("[router]\ninterfaces = [{0}]\nexclude = [{1}]\n", names.join(", "), exclude.join(", "))
        }
    };
    format!(
        "# Written by `plait up`.\nexit = {}\n{paths}[host]\nexclude = [{}]\nlan = {}\nkillswitch = {}\n{router}",
        quoted(&args.url.exit.to_string()),
        exclude.join(", "),
        !args.no_lan,
        args.killswitch
    )
}

fn summary(args: &UpArgs, trusted: &[String]) -> String {
    let hosts = if args.router.is_empty() {
        "of this host".to_owned()
    } else {
        format!("of this host, and of the hosts behind {},", args.router.join(", "))
    };
    let kill_switch = if args.killswitch { "; nothing leaves this host outside of plait" } else { "" };
    format!(
        "plait is up: the connections {hosts} go through {}, starting on {}{kill_switch}\n",
        args.url.exit.peer(),
        trusted.join(", ")
    )
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = written.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Stops the daemon; returns once it has ended.
fn stop(pid: Pid) -> anyhow::Result<()> {
    let begin = Instant::now();
    let mut signals = 0;
    while HostLock::holder()? == Some(pid) {
        if (signals == 0) || (signals == 1 && begin.elapsed() > DRAIN) {
            // It may have ended in between.
            let _ = kill_process(pid, Signal::TERM);
            signals += 1;
        }
        if begin.elapsed() > STOP_TIMEOUT {
            bail!(
                "process {} does not end: kill it by `kill -9 {0}`, and run `plait down` again",
                pid.as_raw_pid()
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
