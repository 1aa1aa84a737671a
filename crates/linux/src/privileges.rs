//! The capabilities (`capabilities(7)`) that this process lacks.

use std::fmt;

use rustix::thread::{CapabilitySet, capabilities};

/// Capabilities that an action takes and this process lacks; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingCapabilities(Vec<&'static str>);

impl MissingCapabilities {
    /// What this process lacks to load BPF programs and to attach them to a cgroup; `None`: nothing, as far as this tells.
    pub fn for_bpf() -> Option<MissingCapabilities> {
        MissingCapabilities::of(
            effective(),
            |has| !has.contains(CapabilitySet::SYS_ADMIN),
            &[
                ("CAP_BPF", CapabilitySet::BPF),
                ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
                ("CAP_PERFMON", CapabilitySet::PERFMON),
            ],
        )
    }

    /// What this process lacks to send packets with any source address; `None`: nothing.
    pub fn to_send_packets() -> Option<MissingCapabilities> {
        let needed = [("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN), ("CAP_NET_RAW", CapabilitySet::NET_RAW)];
        MissingCapabilities::of(effective(), |_| true, &needed)
    }

    /// What this process lacks to run a program as another user; `None`: nothing.
    pub fn to_change_user() -> Option<MissingCapabilities> {
        MissingCapabilities::of(
            effective(),
            |_| true,
            &[("CAP_SETGID", CapabilitySet::SETGID), ("CAP_SETUID", CapabilitySet::SETUID)],
        )
    }

    fn of(
        has: CapabilitySet,
        applies: impl FnOnce(CapabilitySet) -> bool,
        needed: &[(&'static str, CapabilitySet)],
    ) -> Option<MissingCapabilities> {
        let lacks = |(name, capability): &(&'static str, CapabilitySet)| {
            (!has.contains(*capability)).then_some(*name)
        };
        let missing: Vec<_> = needed.iter().filter_map(lacks).collect();
        (applies(has) && !missing.is_empty()).then_some(MissingCapabilities(missing))
    }
}

/// If they cannot be read, all: what needs one fails then.
fn effective() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective)
}

impl fmt::Display for MissingCapabilities {
    /// `CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_last() {
            Some((last, [])) => f.write_str(last),
            Some((last, rest)) => write!(f, "{} and {last}", rest.join(", ")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ones_are_listed() {
        let needed = [("CAP_BPF", CapabilitySet::BPF), ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN)];
        let missing = |has| {
            let missing =
                MissingCapabilities::of(has, |has| !has.contains(CapabilitySet::SYS_ADMIN), &needed);
            missing.map(|missing| missing.to_string())
        };
        assert_eq!(missing(CapabilitySet::empty()).as_deref(), Some("CAP_BPF and CAP_NET_ADMIN"));
        assert_eq!(missing(CapabilitySet::BPF).as_deref(), Some("CAP_NET_ADMIN"));
        assert_eq!(missing(CapabilitySet::BPF | CapabilitySet::NET_ADMIN), None);
        assert_eq!(missing(CapabilitySet::SYS_ADMIN), None);
    }
}
