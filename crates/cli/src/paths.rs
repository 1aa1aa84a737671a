//! `plait paths`: the interfaces of this host with their roles, addresses and routes, and the rules of paths with their quotas.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Context;
use plait_config::{Bytes, Rate, Role, format_size};
use plait_gateway::{QuotaStatus, Roles, RuleStatus, warn_of_missing_interfaces};
use plait_linux::interfaces::{Interface, interfaces, route_via};
use serde::Serialize;
use serde_json::json;

use crate::gateway::Paths;
use crate::missing_route::{MissingRoute, missing_route};
use crate::stdout::{Stdout, print_json};

/// Arguments of `plait paths`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    paths: Paths,
    /// Show which interfaces have a route to this address [default: a default route]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    to: Option<IpAddr>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses a numeric address.
pub(crate) fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "expected a numeric address, such as 192.0.2.7 or 2001:db8::7".to_owned())
}

/// Lists every interface but loopback.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let roles = args.paths.config()?.roles;
    let interfaces = interfaces().context("cannot list the interfaces")?;
    warn_of_missing_interfaces(&roles);
    let destinations = match args.to {
        Some(address) => vec![address],
        // Any public address shows whether there is a default route; nothing is sent to it.
        None => vec![Ipv4Addr::new(1, 0, 0, 1).into(), Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1).into()],
    };
    let list: Vec<Path> = interfaces
        .iter()
        .filter(|interface| !interface.loopback)
        .map(|interface| Path::of(interface, &roles, &destinations, args.to))
        .collect::<anyhow::Result<_>>()?;
    let rules = roles.rule_statuses()?;
    if args.json {
        return print_json(&json!({ "paths": list, "rules": rules }));
    }
    let mut out = Stdout::new();
    if list.is_empty() {
        writeln!(out, "this network namespace has no interface but loopback")?;
    } else {
        list.iter().try_for_each(|path| print(path, &mut out))?;
    }
    rules.iter().try_for_each(|rule| print_rule(rule, &mut out))?;
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
    /// What the rule matches that applies to it.
    rule: Option<String>,
    addresses: Vec<String>,
    sources: Vec<IpAddr>,
    /// Without `sources`.
    #[serde(skip)]
    missing_route: Option<MissingRoute>,
}

impl Path {
    fn of(
        interface: &Interface,
        roles: &Roles,
        destinations: &[IpAddr],
        peer: Option<IpAddr>,
    ) -> anyhow::Result<Path> {
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
            rule: roles.rule_of(interface).map(|(_, rule)| rule.pattern.to_string()),
            addresses: interface.addresses.iter().map(|own| format!("{}/{}", own.ip, own.prefix)).collect(),
            missing_route: sources.is_empty().then(|| missing_route(interface, peer)),
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
    if let Some(rule) = &path.rule {
        writeln!(out, "    rule: {rule}")?;
    }
    writeln!(out, "    addresses: {}", joined(&path.addresses))?;
    match &path.sources[..] {
        [] => print_missing_route(path, out),
        sources => writeln!(out, "    source addresses: {}", joined(sources)),
    }
}

fn print_missing_route(path: &Path, out: &mut impl Write) -> io::Result<()> {
    let Some(MissingRoute { reason, command }) = &path.missing_route else { return Ok(()) };
    writeln!(out, "    not used: {reason}")?;
    command.as_ref().map_or(Ok(()), |command| writeln!(out, "      {command}"))
}

fn print_rule(rule: &RuleStatus, out: &mut impl Write) -> io::Result<()> {
    let role = rule.role.map_or("not used".to_owned(), |role| role.to_string());
    let tier = rule.tier.map(|tier| format!("tier {tier}"));
    let weight = rule.weight.map(|weight| format!("weight {weight}"));
    let cap = rule.cap.and_then(Rate::new).map(|cap| format!("cap {cap}"));
    let options: Vec<String> = [Some(role), tier, weight, cap].into_iter().flatten().collect();
    writeln!(out, "rule {}  {}", rule.pattern, options.join(", "))?;
    if let Some(schedule) = &rule.schedule {
        let now = if rule.within_schedule { "used now" } else { "not used now" };
        writeln!(out, "    schedule: {schedule}, {now}")?;
    }
    rule.quota.as_ref().map_or(Ok(()), |quota| print_quota(quota, out))
}

fn print_quota(quota: &QuotaStatus, out: &mut impl Write) -> io::Result<()> {
    let QuotaStatus { bytes, per, reset, used, left, .. } = quota;
    writeln!(
        out,
        "    quota: {} of {} per {per} used, {} left, reset on {reset}",
        format_size(*used),
        Bytes(*bytes),
        format_size(*left)
    )?;
    match (quota.forecast, quota.used_up) {
        (None, _) => Ok(()),
        (Some(forecast), None) => writeln!(out, "    forecast: {} by then", format_size(forecast)),
        (Some(forecast), Some(used_up)) => {
            let used_up = used_up.format("%Y-%m-%d %H:%M");
            writeln!(out, "    forecast: {} by then, used up on {used_up}", format_size(forecast))
        }
    }
}

fn joined(list: &[impl ToString]) -> String {
    if list.is_empty() {
        return "none".into();
    }
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
