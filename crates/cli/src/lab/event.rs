//! `plait lab event`: something happens to a link of a lab, now.

use std::fmt::Write as _;
use std::process::ExitCode;

use plait_lab::topology::Action;

use super::control::{Request, Running};

/// Let something happen to a link of a lab now
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which lab, if several are up
    #[arg(long, value_name = "ID")]
    lab: Option<String>,
    /// The link
    link: String,
    /// blackhole, restore, carrier_down, carrier_up, interface_down, interface_up, address_removed, address_added, adjust
    action: String,
    /// At which end of the link, a (default) or b: for interface_* and address_*
    #[arg(long, value_name = "END")]
    end: Option<String>,
    /// In which direction, each (default), or towards a or b: for adjust
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<String>,
    /// What to set, such as rate=1mbit, delay=20ms, loss=1% or queue=30kB: for adjust
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
}

/// Done once it has happened.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let event = toml_of(args)?;
    // What no lab takes is told before one is looked for.
    Action::parse(&event, "event")?;
    let lab = Running::find(args.lab.as_deref())?;
    lab.ask::<()>(&Request::Event { link: args.link.clone(), event })?;
    Ok(ExitCode::SUCCESS)
}

/// As the event stands in a topology. A file's name is that of a file here, not of one beside the topology.
fn toml_of(args: &Args) -> anyhow::Result<String> {
    let mut text = String::new();
    let given =
        [("action", Some(&args.action)), ("end", args.end.as_ref()), ("direction", args.direction.as_ref())];
    for (key, value) in given {
        if let Some(value) = value {
            writeln!(text, "{key} = {}", quoted(value))?;
        }
    }
    for (key, value) in &args.set {
        let value =
            if key == "trace" { std::path::absolute(value)?.display().to_string() } else { value.clone() };
        // A table, such as that of bursts of loss, is written as one.
        let value = if value.starts_with('{') { value } else { quoted(&value) };
        writeln!(text, "set.{key} = {value}")?;
    }
    Ok(text)
}

/// JSON's texts are TOML's, too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn pair(text: &str) -> Result<(String, String), String> {
    let key_of = |key: &str| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase());
    match text.split_once('=') {
        Some((key, value)) if key_of(key) => Ok((key.into(), value.into())),
        _ => Err(format!("expected KEY=VALUE, such as rate=1mbit, got {text:?}")),
    }
}
