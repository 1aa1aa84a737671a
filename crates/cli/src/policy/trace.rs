//! `plait policy trace`: each packet that matches, and what was done with it, as it happens.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use plait_linux::interfaces::interfaces;
use plait_linux::signal::StopSignal;
use plait_policy::Hook;
use plait_policy::engine::{Engine, Error, Event, Matched, Verdict, What};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::NOTHING_LOADED;
use crate::stdout::Stdout;

/// Tell each packet that matches, and what was done with it, until Ctrl-C
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only packets that chains of this policy match
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print a line of JSON for each
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let engine = Engine::current()?;
    if let Some(name) = &args.name {
        let loaded: Vec<_> = engine.policies()?.into_iter().map(|loaded| loaded.policy.name).collect();
        if !loaded.contains(name) {
            return Err(Error::Unknown { name: name.clone(), loaded }.into());
        }
    }
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    let Some(mut events) = engine.trace()? else { bail!("{NOTHING_LOADED}") };
    eprintln!("plait: telling each packet that matches; Ctrl-C ends it");
    let mut teller = Teller { json: args.json, began: Clock::now(), names: BTreeMap::new() };
    let mut out = Stdout::until_closed();
    let mut ends = None;
    loop {
        if stop.is_requested() && ends.is_none() {
            ends = Some(Clock::now().monotonic);
        }
        // What has been told is printed together; then it is shown, before more is waited for.
        let event = match events.next(Duration::ZERO)? {
            Some(event) => event,
            None if ends.is_some() => break,
            None => {
                if out.flush().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
                    return Ok(());
                }
                let Some(event) = events.next(PATIENCE)? else { continue };
                event
            }
        };
        if ends.is_some_and(|ends| event.time > ends) {
            break;
        }
        if !concerns(&event, args.name.as_deref()) {
            continue;
        }
        match writeln!(out, "{}", teller.line(&event)) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
    }
    Ok(out.flush()?)
}

/// Whether an event is of a policy, or of any.
fn concerns(event: &Event, policy: Option<&str>) -> bool {
    match (&event.what, policy) {
        (What::Matched { chains, .. }, Some(name)) => chains.iter().any(|chain| chain.policy == name),
        _ => true,
    }
}

/// How soon a signal is noticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// One moment by two clocks.
struct Clock {
    monotonic: Duration,
    since_1970: Duration,
}

impl Clock {
    fn now() -> Clock {
        let now = clock_gettime(ClockId::Monotonic);
        let monotonic = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { monotonic, since_1970 }
    }

    /// Since 1970, of a time by CLOCK_MONOTONIC.
    fn of(&self, monotonic: Duration) -> Duration {
        (self.since_1970 + monotonic).saturating_sub(self.monotonic)
    }
}

struct Teller {
    json: bool,
    began: Clock,
    /// Of interfaces, by index.
    names: BTreeMap<u32, String>,
}

impl Teller {
    fn line(&mut self, event: &Event) -> String {
        let time = self.began.of(event.time);
        let interface = self.interface(event.interface);
        if self.json { document(event, time, &interface).to_string() } else { text(event, time, &interface) }
    }

    /// The name of an interface; its number where it has none any more.
    fn interface(&mut self, index: u32) -> String {
        if !self.names.contains_key(&index) {
            let found = interfaces().unwrap_or_default();
            self.names.extend(found.into_iter().map(|interface| (interface.index, interface.name)));
        }
        self.names.entry(index).or_insert_with(|| index.to_string()).clone()
    }
}

/// Where a packet comes from and goes to.
fn ends(event: &Event) -> (String, String) {
    let (local, remote) = (event.ends.local.to_string(), event.ends.remote.to_string());
    match event.hook {
        Hook::Ingress => (remote, local),
        Hook::Egress => (local, remote),
    }
}

fn document(event: &Event, time: Duration, interface: &str) -> Value {
    let (source, destination) = ends(event);
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
    let more = match &event.what {
        What::Matched { chains, verdict, changed } => {
            json!({ "event": "packet", "matched": chains, "verdict": verdict, "changed": changed })
        }
        What::Connection { .. } => json!({ "event": "connection" }),
        What::Subflow { address_id, backup } => {
            json!({ "event": "subflow", "address_id": address_id, "backup": backup })
        }
        What::Withheld { option } => json!({ "event": "withheld", "option": hex::encode(option) }),
        What::Own { values } => json!({ "event": "own", "values": values }),
        _ => json!({ "event": "other" }),
    };
    if let (Value::Object(document), Value::Object(more)) = (&mut document, more) {
        document.extend(more);
    }
    document
}

fn text(event: &Event, time: Duration, interface: &str) -> String {
    let (source, destination) = ends(event);
    let seconds = time.as_secs() % 86_400;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let kinds: Vec<_> = event.kinds.iter().map(|kind| kind.name()).collect();
    let what = match &event.what {
        What::Matched { chains, verdict, changed } => {
            let chains: Vec<_> = chains.iter().map(name).collect();
            let changed = if *changed { ", changed" } else { "" };
            format!("{}: {}{changed}", chains.join(", "), word(*verdict))
        }
        What::Connection { .. } => "a connection begins".into(),
        What::Subflow { address_id, backup } => {
            let backup = if *backup { ", as a backup" } else { "" };
            format!("a subflow joins from address id {address_id}{backup}")
        }
        What::Withheld { option } => format!("ADD_ADDR was withheld: {}", hex::encode(option)),
        What::Own { values: [first, second] } => format!("own: {first} {second}"),
        _ => "something that this version does not know".into(),
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

/// A chain, marked if one of its actors did what it is for.
pub(super) fn name(matched: &Matched) -> String {
    let Matched { policy, chain, hit } = matched;
    format!("{policy}/{chain}{}", if *hit { " (hit)" } else { "" })
}

/// What becomes of a packet, in a word.
pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Drop => "drop",
        Verdict::Redirect => "redirect",
        Verdict::Answer => "answer",
    }
}
