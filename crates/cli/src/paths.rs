//! `plait paths`: the interfaces of this host with their roles, addresses and routes.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use plait_config::Role;
use plait_gateway::Roles;
use plait_linux::interfaces::{Interface, interfaces, route_via};
use serde::Serialize;
use serde_json::json;

use crate::gateway::Paths;
use crate::stdout::{Stdout, print_json};

/// Arguments of `plait paths`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    paths: Paths,
    /// Show which interfaces have a route to this address [default: a default route]
    #[arg(long, value_name = "ADDRESS")]
    to: Option<IpAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists every interface but loopback.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let roles = args.paths.config()?.roles;
    let interfaces = interfaces().context("cannot list the interfaces")?;
    let named = roles.trusted().find(|name| !interfaces.iter().any(|interface| name.is_of(interface)));
    if let Some(name) = named {
        anyhow::bail!(
            "expected an interface to trust or one of its addresses, got {name}, which no interface has"
        );
    }
    let destinations = match args.to {
        Some(address) => vec![address],
        // Any public address shows whether there is a default route; nothing is sent to it.
        None => vec![Ipv4Addr::new(1, 0, 0, 1).into(), Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1).into()],
    };
    let list: Vec<Path> = interfaces
        .iter()
        .filter(|interface| !interface.loopback)
        .map(|interface| Path::of(interface, &roles, &destinations))
        .collect::<anyhow::Result<_>>()?;
    if args.json {
        return print_json(&json!({ "paths": list }));
    }
    let mut out = Stdout::new();
    if list.is_empty() {
        writeln!(out, "this network namespace has no interface but loopback")?;
    } else {
        list.iter().try_for_each(|path| print(path, &mut out))?;
    }
    Ok(out.flush()?)
}

#[derive(Serialize)]
struct Path {
    interface: String,
    index: u32,
    up: bool,
    running: bool,
    mtu: u32,
    role: Option<Role>,
    addresses: Vec<String>,
    sources: Vec<IpAddr>,
}

impl Path {
    fn of(interface: &Interface, roles: &Roles, destinations: &[IpAddr]) -> anyhow::Result<Path> {
        let mut sources = Vec::new();
        for destination in destinations {
            let found = route_via(*destination, interface.index);
            sources.extend(found.with_context(|| format!("cannot look up a route to {destination}"))?);
        }
        Ok(Path {
            interface: interface.name.clone(),
            index: interface.index,
            up: interface.up,
            running: interface.running,
            mtu: interface.mtu,
            role: roles.of(interface),
            addresses: interface.addresses.iter().map(|own| format!("{}/{}", own.ip, own.prefix)).collect(),
            sources,
        })
    }
}

fn print(path: &Path, out: &mut impl Write) -> io::Result<()> {
    let role = path.role.map_or("not used".to_owned(), |role| role.to_string());
    let state = match (path.up, path.running) {
        (false, _) => "down",
        (true, false) => "no carrier",
        (true, true) => "up",
    };
    writeln!(out, "{}  {role}, {state}, MTU {}", path.interface, path.mtu)?;
    writeln!(out, "    addresses: {}", joined(&path.addresses))?;
    match &path.sources[..] {
        [] => writeln!(out, "    no route to the peer"),
        sources => writeln!(out, "    source addresses: {}", joined(sources)),
    }
}

fn joined(list: &[impl ToString]) -> String {
    if list.is_empty() {
        return "none".into();
    }
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
