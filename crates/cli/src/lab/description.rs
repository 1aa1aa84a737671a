//! The description of a lab in `plait lab ps --json`.

use std::path::Path;
use std::time::Instant;

use plait_lab::{Lab, Link, Side};
use serde::{Deserialize, Serialize};

/// A lab and what is in it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Description {
    /// The run id, which is the process id of its supervisor.
    pub(super) id: String,
    /// The topology's file.
    pub(super) file: String,
    /// Seconds since it came up, when the clock of its events started.
    pub(super) up_s: f64,
    pub(super) hosts: Vec<Host>,
    pub(super) links: Vec<LinkDescription>,
    pub(super) services: Vec<Service>,
    /// The events applied so far.
    pub(super) events: Vec<Event>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Host {
    pub(super) name: String,
    /// As `ip netns` lists it.
    pub(super) namespace: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LinkDescription {
    pub(super) name: String,
    pub(super) role: String,
    pub(super) backend: String,
    pub(super) a: End,
    pub(super) b: End,
    /// The counters of `plait lab link --json`; null if they cannot be read.
    pub(super) statistics: serde_json::Value,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) host: String,
    pub(super) interface: String,
    /// With their prefixes.
    pub(super) addresses: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) command: String,
    pub(super) pid: u32,
    pub(super) port: Option<u16>,
    pub(super) running: bool,
    /// Contains its output, in `stdout` and `stderr`.
    pub(super) directory: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Event {
    pub(super) link: String,
    pub(super) action: String,
    /// When it was scheduled.
    pub(super) at_s: f64,
    /// When it started to be applied.
    pub(super) began_s: f64,
    /// When it was applied.
    pub(super) done_s: f64,
    /// Why it failed.
    pub(super) error: Option<String>,
}

impl Description {
    pub(super) fn of(lab: &Lab, file: &Path, since: Instant) -> Self {
        let hosts = lab.hosts().iter();
        let services = lab.services().iter();
        let events = lab.applied_events().into_iter();
        Self {
            id: lab.id().into(),
            file: file.display().to_string(),
            up_s: since.elapsed().as_secs_f64(),
            hosts: hosts
                .map(|host| Host { name: host.name().into(), namespace: host.namespace_name().into() })
                .collect(),
            links: lab.links().iter().map(LinkDescription::of).collect(),
            services: services
                .map(|service| Service {
                    name: service.name().into(),
                    host: service.host().into(),
                    command: service.command().into(),
                    pid: service.id(),
                    port: service.port(),
                    running: service.is_running(),
                    directory: service.directory().display().to_string(),
                })
                .collect(),
            events: events
                .map(|applied| Event {
                    link: applied.link,
                    action: applied.event.action.name().into(),
                    at_s: applied.event.at.as_secs_f64(),
                    began_s: applied.began.as_secs_f64(),
                    done_s: applied.done.as_secs_f64(),
                    error: applied.error,
                })
                .collect(),
        }
    }
}

impl LinkDescription {
    fn of(link: &Link) -> Self {
        let end = |side| End {
            host: link.host(side).name().into(),
            interface: link.interface(side).into(),
            addresses: link.addresses(side).iter().map(ToString::to_string).collect(),
        };
        let statistics = link.statistics().ok().and_then(|found| serde_json::to_value(found).ok());
        Self {
            name: link.name().into(),
            role: link.role().to_string(),
            backend: link.backend().to_string(),
            a: end(Side::A),
            b: end(Side::B),
            statistics: statistics.unwrap_or_default(),
        }
    }
}
