//! `plait probe`: measures the paths to a host before one relies on them.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::Context;
use plait_config::{TextError, parse_duration_or_seconds};
use plait_doctor::{MeasuredPath, PeerMeasurement, PeerPlan, Plan};

use crate::doctor::connection::Target;
use crate::gateway::address_and_port;
use crate::stderr::eprintln;
use crate::stdout::{Stdout, print_json};

/// Arguments of `plait probe`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The host to measure the paths to [default port: 443]
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "listen")]
    target: Option<Target>,
    /// Measure the path by this interface (may be repeated) [default: all with a route to HOST]
    #[arg(long, value_name = "NAME")]
    interface: Vec<String>,
    /// Send this number of SYNs to measure round trips and loss
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// `plait probe --listen` runs at HOST:PORT: measure rates too, and which TCP options arrive
    #[arg(long)]
    peer: bool,
    /// Send for this long in each direction, up to 60s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration, requires = "peer")]
    duration: Duration,
    /// Find out how long a connection may be idle, up to this time, such as 10min
    #[arg(long, value_name = "TIME", value_parser = idle_time, requires = "peer")]
    idle: Option<Duration>,
    /// Be the other end of `--peer`: any client can make it send for a minute
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address_and_port,
          conflicts_with_all = ["target", "interface", "peer", "json"])]
    listen: Option<SocketAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Fails if no path leads to the host, or nothing is answered.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if let Some(address) = args.listen {
        return serve(address);
    }
    let Some(target) = args.target else { unreachable!("required by clap") };
    let peer = args.peer.then_some(PeerPlan { duration: args.duration, idle: args.idle });
    let plan = Plan { count: args.count, peer };
    let measured = plait_doctor::measure(target.resolve()?, &args.interface, &plan)?;
    if args.json {
        print_json(&measured)?;
    } else {
        let mut out = Stdout::new();
        measured.paths.iter().try_for_each(|path| print(path, &mut out))?;
        out.flush()?;
    }
    match measured.paths.iter().find_map(|path| path.peer.as_ref()?.error.as_ref()) {
        _ if measured.paths.is_empty() => {
            anyhow::bail!("no interface has a route to {}", measured.target.ip())
        }
        _ if measured.paths.iter().all(|path| path.answered == 0) => {
            anyhow::bail!("{} answers by no path: `plait doctor` finds out why", measured.target)
        }
        Some(error) => anyhow::bail!("{error}"),
        None => Ok(()),
    }
}

fn serve(address: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    eprintln!("listening at {}", listener.local_addr()?);
    plait_doctor::serve(&listener).context("cannot accept measurements")
}

fn print(path: &MeasuredPath, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}  from {}", path.interface, path.address)?;
    writeln!(out, "    answered       {} of {} SYNs", path.answered, path.sent)?;
    if let Some(rtt) = path.rtt_ms {
        writeln!(out, "    round trips    {:.2} ms, {:.2} to {:.2}", rtt.median, rtt.min, rtt.max)?;
    }
    if let Some(mtu) = path.mtu {
        let hole = if path.mtu_black_hole == Some(true) {
            "; longer packets vanish without an ICMP message"
        } else {
            ""
        };
        writeln!(out, "    MTU            {mtu} bytes{hole}")?;
    }
    if let Some(mptcp) = path.mptcp {
        let answer =
            if mptcp { "answered" } else { "not answered: no MPTCP there, or a middlebox removes it" };
        writeln!(out, "    MP_CAPABLE     {answer}")?;
    }
    path.peer.as_ref().map_or(Ok(()), |peer| print_peer(peer, out))
}

fn print_peer(peer: &PeerMeasurement, out: &mut impl Write) -> io::Result<()> {
    for (name, rate) in [("download", peer.download_bit_per_s), ("upload", peer.upload_bit_per_s)] {
        if let Some(rate) = rate {
            writeln!(out, "    {name:<14} {:.2} Mb/s", rate / 1e6)?;
        }
    }
    if !peer.options.is_empty() {
        let options = peer.options.iter().map(|option| match (option.arrived, option.unchanged) {
            (true, true) => option.name.clone(),
            (true, false) => format!("{} (changed)", option.name),
            (false, _) => format!("{} (REMOVED)", option.name),
        });
        writeln!(out, "    options        {}", options.collect::<Vec<_>>().join(", "))?;
    }
    if let Some(translated) = peer.translated {
        writeln!(
            out,
            "    translation    {}",
            if translated { "the source address is translated (NAT)" } else { "none" }
        )?;
    }
    if let Some(routers) = peer.routers {
        writeln!(out, "    routers        {routers}")?;
    }
    if let Some(idle) = peer.idle {
        match (idle.survived_s, idle.forgotten_s) {
            (survived, Some(forgotten)) => writeln!(
                out,
                "    idle           forgotten after {forgotten} s{}",
                survived.map(|time| format!(", not after {time} s")).unwrap_or_default()
            )?,
            (Some(survived), None) => writeln!(out, "    idle           not forgotten after {survived} s")?,
            (None, None) => {}
        }
    }
    Ok(())
}

fn duration(text: &str) -> Result<Duration, TextError> {
    parse_duration_or_seconds(text, &(Duration::from_millis(100)..=Duration::from_secs(60)))
}

fn idle_time(text: &str) -> Result<Duration, TextError> {
    parse_duration_or_seconds(text, &(Duration::from_secs(1)..=Duration::from_secs(3 * 3600)))
}
