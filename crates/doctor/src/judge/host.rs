//! Settings of this host.

use super::has_subflow;
use crate::facts::{Facts, Mptcp};
use crate::report::{Check, Subject};

pub(super) fn mptcp(facts: &Facts) -> Option<Check> {
    Some(match facts.host.mptcp {
        Mptcp::Enabled => Check::ok(Subject::Mptcp, "enabled"),
        Mptcp::Disabled => Check::fault(
            Subject::Mptcp,
            "disabled in this network namespace: net.mptcp.enabled is 0, so MPTCP sockets cannot be created",
            ["sysctl -w net.mptcp.enabled=1".into()],
        ),
        Mptcp::Unsupported => Check::fault(
            Subject::Mptcp,
            "this kernel has no MPTCP sockets (protocol 262)",
            ["use a kernel with CONFIG_MPTCP: Debian 12, Ubuntu 22.04 or later".into()],
        ),
    })
}

pub(super) fn path_manager(facts: &Facts) -> Option<Check> {
    (!facts.host.kernel_path_manager).then(|| {
        Check::fault(
            Subject::PathManager,
            "paths are managed by a program in user space (net.mptcp.pm_type is 1): the kernel itself creates no subflow",
            ["sysctl -w net.mptcp.pm_type=0   # or configure that program, such as mptcpd".into()],
        )
    })
}

pub(super) fn paths(facts: &Facts) -> Option<Check> {
    let names: Vec<_> = facts.paths.iter().map(|path| path.interface.as_str()).collect();
    if names.len() > 1 || facts.chosen && names.len() == 1 {
        return Some(Check::ok(Subject::Paths, names.join(", ")));
    }
    let found = match names.first() {
        Some(only) => format!("only {only} leads to {}", facts.target.ip()),
        None => format!("no interface leads to {}", facts.target.ip()),
    };
    if let Some(down) = facts.down_interfaces.first() {
        return Some(Check::fault(
            Subject::Paths,
            format!("{found}; {down} has an address, and is down"),
            [format!("ip link set {down} up   # this removed its routes: add them again")],
        ));
    }
    let (found, interface) = match &facts.unused_interfaces[..] {
        [] => (format!("{found}, and no other interface has an address of its family"), "INTERFACE"),
        unused => (format!("{found}; {} has an address, but no route to it", unused.join(", ")), &*unused[0]),
    };
    let route = format!("ip route add default via ROUTER dev {interface} metric 1000");
    Some(Check::fault(Subject::Paths, found, [route]))
}

pub(super) fn limits(facts: &Facts) -> Option<Check> {
    let limits = facts.host.limits;
    let needed = facts.paths.len().saturating_sub(1) as u32;
    let lacking = facts.paths.iter().any(|path| !has_subflow(facts, path));
    if facts.host.mptcp == Mptcp::Unsupported {
        return None;
    }
    let command = "ip mptcp limits set subflows 8 add_addr_accepted 8".to_owned();
    if lacking && limits.subflows < needed {
        let found = format!(
            "a connection may have {} additional subflows, and {} are needed for all paths",
            limits.subflows, needed
        );
        return Some(Check::fault(Subject::Limits, found, [command]));
    }
    let announced = facts.connection.as_ref().map_or(0, |connection| connection.announced.len());
    if lacking && announced > 0 && limits.add_addr_accepted == 0 {
        let found = "the target announces addresses, and connections accept none (add_addr_accepted is 0)";
        return Some(Check::fault(Subject::Limits, found, [command]));
    }
    let found =
        format!("{} additional subflows, {} announced addresses", limits.subflows, limits.add_addr_accepted);
    Some(Check::ok(Subject::Limits, found))
}

pub(super) fn congestion_control(facts: &Facts) -> Check {
    let name = &facts.host.congestion_control;
    if !plait_linux::congestion_control::is_bbr(name) {
        return Check::ok(Subject::CongestionControl, name);
    }
    let cubic = facts.host.allowed_congestion_control.split_whitespace().any(|allowed| allowed == "cubic");
    Check::fault(
        Subject::CongestionControl,
        format!("{name}, with which Linux's MPTCP can deliver wrong bytes when a path fails"),
        [format!("sysctl -w net.ipv4.tcp_congestion_control={}", if cubic { "cubic" } else { "reno" })],
    )
}
