//! The result of a diagnosis, as `plait doctor HOST --json` prints it; docs/reference/schema/doctor.schema.json is generated
//! from it.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Serialize;

/// What was checked, in order. Fields may be added.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Diagnosis {
    /// The address and port that the connection was opened to.
    #[schemars(with = "String")]
    pub target: SocketAddr,
    /// Whether every path carries a subflow and nothing else is wrong.
    pub ok: bool,
    /// The checks, in the order in which a connection depends on what they check: mend the first fault first.
    pub checks: Vec<Check>,
}

impl Diagnosis {
    /// Concludes from checks.
    pub(crate) fn of(target: SocketAddr, checks: Vec<Check>) -> Diagnosis {
        let ok = checks.iter().all(|check| check.verdict != Verdict::Fault);
        Diagnosis { target, ok, checks }
    }

    /// The faults, in order.
    pub fn faults(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.verdict == Verdict::Fault)
    }
}

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Check {
    /// What was checked.
    pub check: Subject,
    /// The interface, if it concerns one path.
    pub interface: Option<String>,
    /// The result.
    pub verdict: Verdict,
    /// What was found, as a sentence.
    pub found: String,
    /// Commands that mend a fault, or what else to do, one for each line.
    pub mend: Vec<String>,
}

impl Check {
    pub(crate) fn ok(check: Subject, found: impl Into<String>) -> Check {
        Check { check, interface: None, verdict: Verdict::Ok, found: found.into(), mend: Vec::new() }
    }

    pub(crate) fn fault<const N: usize>(
        check: Subject,
        found: impl Into<String>,
        mend: [String; N],
    ) -> Check {
        Check { verdict: Verdict::Fault, mend: mend.into(), ..Check::ok(check, found) }
    }

    pub(crate) fn unknown(check: Subject, found: impl Into<String>) -> Check {
        Check { verdict: Verdict::Unknown, ..Check::ok(check, found) }
    }

    pub(crate) fn on(self, interface: &str) -> Check {
        Check { interface: Some(interface.to_owned()), ..self }
    }
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing is wrong.
    Ok,
    /// This prevents or endangers subflows.
    Fault,
    /// It could not be found out.
    Unknown,
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// Whether this kernel has MPTCP and it is enabled.
    Mptcp,
    /// Whether the kernel manages paths.
    PathManager,
    /// Whether there is more than one path.
    Paths,
    /// Whether the target can be connected to.
    Connection,
    /// Whether the kernel uses TCP because it detected a blackhole.
    Blackhole,
    /// Whether the connection uses MPTCP, or what removes its option.
    MpCapable,
    /// The limits of the path manager.
    Limits,
    /// Whether the interface has a carrier.
    Carrier,
    /// A route by the interface.
    Route,
    /// An endpoint for the interface.
    Endpoint,
    /// Whether packets from the interface's address leave by it.
    SourceRule,
    /// Whether answers by the interface pass the reverse path filter.
    RpFilter,
    /// Rules of this host that drop packets.
    Firewall,
    /// Whether the router answers.
    NextHop,
    /// Whether packets reach the target and answers return: firewalls and address translation on the way.
    Network,
    /// Whether MP_JOIN arrives and is answered.
    MpJoin,
    /// Whether a subflow was established.
    Subflow,
    /// Whether the target listens at the addresses that it announces.
    Listener,
    /// Whether long packets arrive.
    Mtu,
    /// Whether the congestion control is safe with MPTCP.
    CongestionControl,
}

impl Subject {
    /// Its name in text.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Mptcp => "MPTCP",
            Subject::PathManager => "path manager",
            Subject::Paths => "paths",
            Subject::Connection => "connection",
            Subject::Blackhole => "blackhole detection",
            Subject::MpCapable => "MP_CAPABLE",
            Subject::Limits => "limits",
            Subject::Carrier => "carrier",
            Subject::Route => "route",
            Subject::Endpoint => "endpoint",
            Subject::SourceRule => "source rule",
            Subject::RpFilter => "rp_filter",
            Subject::Firewall => "firewall of this host",
            Subject::NextHop => "next hop",
            Subject::Network => "network (NAT, firewalls)",
            Subject::MpJoin => "MP_JOIN",
            Subject::Subflow => "subflow",
            Subject::Listener => "listener",
            Subject::Mtu => "MTU",
            Subject::CongestionControl => "congestion control",
        }
    }
}
