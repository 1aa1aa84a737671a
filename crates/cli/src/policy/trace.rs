//! `plait policy trace`: prints matching packets as they pass.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use plait_linux::interfaces::interfaces;
use plait_linux::signal::StopSignal;
use plait_policy::Hook;
use plait_policy::engine::{ChainMatch, Engine, EngineError, Event, EventKind, Verdict};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::NOTHING_LOADED;
use crate::stderr::eprintln;
use crate::stdout::{Stdout, json_line};

/// Print matching packets, and what was done with them, until Ctrl-C
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print only packets that chains of this policy match
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print JSON, one line per packet
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let engine = Engine::current()?;
    if let Some(name) = &args.name {
        let loaded: Vec<_> = engine.policies()?.into_iter().map(|loaded| loaded.policy.name).collect();
        if !loaded.contains(name) {
            return Err(EngineError::Unknown { name: name.clone(), loaded }.into());
        }
    }
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    let Some(mut events) = engine.trace()? else { bail!("{NOTHING_LOADED}") };
    eprintln!("plait: tracing matching packets; press Ctrl-C to stop");
    let mut printer = EventPrinter { json: args.json, began: Clock::now(), names: BTreeMap::new() };
    let mut out = Stdout::until_closed();
    let mut stop_time = None;
    loop {
        if stop.is_requested() && stop_time.is_none() {
            stop_time = Some(Clock::now().monotonic);
        }
        // Print pending events together, and flush before waiting for more.
        let event = match events.next(Duration::ZERO)? {
            Some(event) => event,
            None if stop_time.is_some() => break,
            None => {
                if out.flush().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
                    return Ok(());
                }
                let Some(event) = events.next(POLL_INTERVAL)? else { continue };
                event
            }
        };
        if stop_time.is_some_and(|stop_time| event.time > stop_time) {
            break;
        }
        if !is_selected(&event, args.name.as_deref()) {
            continue;
        }
        match writeln!(out, "{}", printer.line(&event)?) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
    }
    Ok(out.flush()?)
}

/// Whether to print an event, given the policy to print.
fn is_selected(event: &Event, policy: Option<&str>) -> bool {
    match (&event.kind, policy) {
        (EventKind::Matched { chains, .. }, Some(name)) => chains.iter().any(|chain| chain.policy == name),
        _ => true,
    }
}

/// The interval at which signals are noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One point in time by two clocks.
struct Clock {
    monotonic: Duration,
    unix_time: Duration,
}

impl Clock {
    fn now() -> Clock {
        let now = clock_gettime(ClockId::Monotonic);
        let monotonic = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { monotonic, unix_time }
    }

    /// Unix time of a time by CLOCK_MONOTONIC.
    fn of(&self, monotonic: Duration) -> Duration {
        (self.unix_time + monotonic).saturating_sub(self.monotonic)
    }
}

struct EventPrinter {
    json: bool,
    began: Clock,
    /// Interface names by index.
    names: BTreeMap<u32, String>,
}

impl EventPrinter {
    fn line(&mut self, event: &Event) -> anyhow::Result<String> {
        let time = self.began.of(event.time);
        let interface = self.interface(event.interface);
        match self.json {
            true => Ok(json_line(&document(event, time, &interface))?),
            false => Ok(text(event, time, &interface)),
        }
    }

    /// The name of an interface; its index if it was deleted.
    fn interface(&mut self, index: u32) -> String {
        if !self.names.contains_key(&index) {
            let found = interfaces().unwrap_or_default();
            self.names.extend(found.into_iter().map(|interface| (interface.index, interface.name)));
        }
        self.names.entry(index).or_insert_with(|| index.to_string()).clone()
    }
}

/// Source and destination of a packet.
fn endpoints(event: &Event) -> (String, String) {
    let (local, remote) = (event.tuple.local.to_string(), event.tuple.remote.to_string());
    match event.hook {
        Hook::Ingress => (remote, local),
        Hook::Egress => (local, remote),
    }
}

fn document(event: &Event, time: Duration, interface: &str) -> Value {
    let (source, destination) = endpoints(event);
    let kinds: Vec<_> = event.kinds.iter().map(|kind| kind.name()).collect();
    let mut document = json!({
        "time": time.as_secs_f64(),
        "hook": event.hook.name(),
        "interface": interface,
        "source": source,
        "destination": destination,
        "token": event.token,
        "kinds": kinds,
        "sequence": event.sequence,
        "acknowledgment": event.acknowledgment,
        "payload": event.payload,
        "data_sequence": event.data_sequence.map(|number| format!("{number:016x}")),
    });
    let more = match &event.kind {
        EventKind::Matched { chains, verdict, changed } => {
            json!({ "event": "packet", "matched": chains, "verdict": verdict, "changed": changed })
        }
        EventKind::Connection { .. } => json!({ "event": "connection" }),
        EventKind::Subflow { address_id, backup } => {
            json!({ "event": "subflow", "address_id": address_id, "backup": backup })
        }
        EventKind::Withheld { option } => json!({ "event": "withheld", "option": hex::encode(option) }),
        EventKind::Custom { values } => json!({ "event": "custom", "values": values }),
        _ => json!({ "event": "other" }),
    };
    if let (Value::Object(document), Value::Object(more)) = (&mut document, more) {
        document.extend(more);
    }
    document
}

fn text(event: &Event, time: Duration, interface: &str) -> String {
    let (source, destination) = endpoints(event);
    let seconds = time.as_secs() % 86_400;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let kinds: Vec<_> = event.kinds.iter().map(|kind| kind.name()).collect();
    let what = match &event.kind {
        EventKind::Matched { chains, verdict, changed } => {
            let chains: Vec<_> = chains.iter().map(chain_name).collect();
            let changed = if *changed { ", changed" } else { "" };
            format!("{}: {}{changed}", chains.join(", "), verdict_name(*verdict))
        }
        EventKind::Connection { .. } => "new connection".into(),
        EventKind::Subflow { address_id, backup } => {
            let backup = if *backup { ", as a backup" } else { "" };
            format!("new subflow from address id {address_id}{backup}")
        }
        EventKind::Withheld { option } => format!("ADD_ADDR blocked: {}", hex::encode(option)),
        EventKind::Custom { values: [first, second] } => format!("custom event: {first} {second}"),
        _ => "unknown event".into(),
    };
    let token = event.token.map(|token| format!(" token {token}")).unwrap_or_default();
    format!(
        "{hours:02}:{minutes:02}:{seconds:02}.{:06} {interface} {:7} {source} > {destination} seq {} ack {} len {} \
         [{}]{token}  {what}",
        time.subsec_micros(),
        event.hook,
        event.sequence,
        event.acknowledgment,
        event.payload,
        kinds.join(" ")
    )
}

/// A chain, marked if one of its actors took effect.
pub(super) fn chain_name(matched: &ChainMatch) -> String {
    let ChainMatch { policy, chain, hit } = matched;
    format!("{policy}/{chain}{}", if *hit { " (hit)" } else { "" })
}

/// A verdict as text.
pub(super) fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Drop => "drop",
        Verdict::Redirect => "redirect",
        Verdict::Answer => "answer",
    }
}
