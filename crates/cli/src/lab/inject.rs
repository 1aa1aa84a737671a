//! `plait lab inject`: applies an event to a link of a running lab.

use std::fmt::Write as _;
use std::process::ExitCode;

use plait_lab::topology::Action;

use super::control::{Request, Running};

/// Apply an event to a link of a running lab
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The lab, if several are up
    #[arg(long, value_name = "ID")]
    lab: Option<String>,
    /// The link
    link: String,
    /// blackhole, restore, carrier_down, carrier_up, interface_down, interface_up, address_removed, address_added, adjust
    action: String,
    /// The end of the link for interface_* and address_*: a (default) or b
    #[arg(long, value_name = "END")]
    end: Option<String>,
    /// The direction for adjust: each (default), or towards a or b
    #[arg(long, value_name = "DIRECTION")]
    direction: Option<String>,
    /// A property for adjust, such as rate=1mbit, delay=20ms, loss=1% or queue=30kB
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
}

/// Returns once the event is applied.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let event = toml_of(args)?;
    // Invalid events are reported before a lab is looked up.
    Action::parse(&event, "event")?;
    let lab = Running::find(args.lab.as_deref())?;
    lab.ask::<()>(&Request::Inject { link: args.link.clone(), event })?;
    Ok(ExitCode::SUCCESS)
}

/// The event as a topology writes it. Paths are relative to the current directory, not to the topology.
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
        // A table, such as Gilbert-Elliott loss, is passed on as one.
        let value = if value.starts_with('{') { value } else { quoted(&value) };
        writeln!(text, "set.{key} = {value}")?;
    }
    Ok(text)
}

/// A JSON string is a TOML string.
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
