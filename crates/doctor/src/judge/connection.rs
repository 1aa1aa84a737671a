//! The connection to the target: whether it is established, by MPTCP.

use crate::facts::{Connection, Facts, Path};
use crate::hops::{Hop, Trace};
use crate::report::{Check, Subject};
use crate::syn::{Answer, SynKind};

pub(super) fn connection(facts: &Facts) -> Option<Check> {
    let connection = facts.connection.as_ref()?;
    let Some(error) = &connection.error else {
        let first = connection.local.map(|local| format!("established from {}", local.ip()));
        return Some(Check::ok(Subject::Connection, first.unwrap_or_else(|| "established".into())));
    };
    let target = facts.target;
    let service =
        format!("let a service listen at {target}: on that host, ss -Htln 'sport = :{}'", target.port());
    let found = format!("cannot connect to {target}: {error}");
    let first = facts.paths.iter().find(|path| path.first).and_then(|path| path.trace.as_ref());
    let found = match first {
        Some((SynKind::Tcp, trace)) => {
            format!("{found}. SYNs have no answer: {}", Place::of(trace).dropped(target.ip()))
        }
        _ => found,
    };
    Some(Check::fault(Subject::Connection, found, [service]))
}

pub(super) fn blackhole(facts: &Facts) -> Option<Check> {
    facts.connection.as_ref().filter(|connection| connection.blackhole)?;
    Some(Check::fault(
        Subject::Blackhole,
        "the kernel uses TCP for every new connection of this network namespace for a while, as SYNs with MP_CAPABLE \
         had no answer before (MPTcpExtBlackhole)",
        [
            "sysctl -w net.mptcp.blackhole_timeout=$(sysctl -n net.mptcp.blackhole_timeout)   # use MPTCP again now"
                .into(),
            "sysctl -w net.mptcp.blackhole_timeout=0   # never do this, if it was an outage".into(),
        ],
    ))
}

pub(super) fn capable(facts: &Facts) -> Option<Check> {
    let connection = facts.connection.as_ref()?;
    let local = connection.local.filter(|_| !connection.blackhole)?;
    if connection.mptcp {
        return Some(Check::ok(Subject::MpCapable, "both ends use MPTCP"));
    }
    let path = facts.paths.iter().find(|path| path.address == local.ip());
    let check = fallen_back(facts, connection, path);
    Some(match path {
        Some(path) => check.on(&path.interface),
        None => check,
    })
}

fn fallen_back(facts: &Facts, connection: &Connection, path: Option<&Path>) -> Check {
    if connection.capable_syns == 0 {
        return Check::fault(
            Subject::MpCapable,
            "no SYN of the MPTCP socket left this host with MP_CAPABLE: something on this host removes the option",
            ["nft list ruleset   # look for: reset tcp option mptcp".into()],
        );
    }
    if connection.stripped == Some(false) {
        return Check::fault(
            Subject::MpCapable,
            "the SYN/ACK has MP_CAPABLE, and still the connection has fallen back to TCP: the option is missing in later \
             segments, or was removed from those that arrived",
            [
                format!(
                    "let TCP option 30 pass in all segments, on the firewalls between this host and {}",
                    facts.target.ip()
                ),
                "nft list ruleset   # look for: reset tcp option mptcp".into(),
            ],
        );
    }
    let dropped = path
        .and_then(|path| path.probes)
        .is_some_and(|probes| probes.tcp.answered() && !probes.capable.answered());
    let trace = path.and_then(|path| path.trace.as_ref()).filter(|(kind, _)| *kind == SynKind::Capable);
    let place = trace.map(|(_, trace)| Place::of(trace)).unwrap_or_default();
    let target = facts.target.ip();
    if dropped {
        let found = format!("SYNs with MP_CAPABLE have no answer, others have: {}", place.dropped(target));
        return Check::fault(Subject::MpCapable, found, [place.advice("let TCP option 30 pass", target)]);
    }
    if place.first_missing.is_some() {
        let found = format!("the option is removed from SYNs: {}", place.stripped(target));
        return Check::fault(Subject::MpCapable, found, [place.advice("let TCP option 30 pass", target)]);
    }
    let seen = place.stripped(target);
    Check::fault(
        Subject::MpCapable,
        format!(
            "{target} answers without MP_CAPABLE: {seen}. Either the service is no MPTCP socket, or a middlebox beside \
             {target} or on the way back removes the option"
        ),
        [
            format!("sysctl -w net.mptcp.enabled=1   # on {target}"),
            format!("mptcpize run SERVICE   # on {target}, for a service that has no option for MPTCP"),
        ],
    )
}

/// Where on a path an option is lost.
#[derive(Default)]
pub(super) struct Place {
    last_intact: Option<Hop>,
    pub(super) first_missing: Option<Hop>,
    last: Option<Hop>,
}

impl Place {
    pub(super) fn of(trace: &Trace) -> Place {
        let (last_intact, first_missing) = trace.boundary();
        Place { last_intact, first_missing, last: trace.last() }
    }

    /// Where it is removed.
    pub(super) fn stripped(&self, target: std::net::IpAddr) -> String {
        match (self.last_intact, self.first_missing) {
            (Some(intact), Some(missing)) => {
                format!("it arrives at {}, and not at {}", name(intact), name(missing))
            }
            (None, Some(missing)) => format!("it does not arrive at {}", name(missing)),
            (Some(intact), None) => format!("it arrives at {}, the last router that tells", name(intact)),
            (None, None) => format!("no router on the way to {target} tells whether it arrives there"),
        }
    }

    /// Where SYNs with it are dropped.
    pub(super) fn dropped(&self, target: std::net::IpAddr) -> String {
        match self.last {
            Some(last) => format!("they arrive at {}, the last router that answers", name(last)),
            None => format!("no router on the way to {target} answers them"),
        }
    }

    /// What to do, on the host that is probably at fault: options are changed when a packet is forwarded, after a router answered
    /// for it.
    pub(super) fn advice(&self, what: &str, target: std::net::IpAddr) -> String {
        let culprit = self.last_intact.filter(|_| self.first_missing.is_some()).or(self.last);
        match culprit {
            Some(hop) => {
                format!("{what} on {} or right behind it; until then, use another path", hop.address)
            }
            None => format!("{what} on the firewalls between this host and {target}"),
        }
    }
}

fn name(hop: Hop) -> String {
    format!("hop {} ({})", hop.distance, hop.address)
}

/// Whether a probe was answered without the MPTCP option that it had.
pub(super) fn lost_option(answer: Option<Answer>) -> bool {
    matches!(answer, Some(Answer::Accepted { mptcp: false }))
}
