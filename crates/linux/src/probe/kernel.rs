//! Probes kernel features other than BPF programs.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use rustix::thread::{CapabilitySet, UnshareFlags, unshare_unsafe};
use socket2::Domain;

use super::{Finding, command};
use crate::blackhole;
use crate::cgroup::Cgroup;
use crate::congestion_control;
use crate::mptcp::{Info, Protocol, stream_socket};
use crate::netns::NetNs;
use crate::pm::{PathManager, user_space_sockets};

pub(super) fn privileges() -> Finding {
    let has = rustix::thread::capabilities(None).map_err(|error| error.to_string())?.effective;
    let wanted = [
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN),
        ("CAP_BPF", CapabilitySet::BPF),
        ("CAP_PERFMON", CapabilitySet::PERFMON),
    ];
    let missing: Vec<_> =
        wanted.iter().filter(|(_, one)| !has.contains(*one)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok("CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_BPF and CAP_PERFMON".into());
    }
    Err(format!("user {} lacks {}", rustix::process::geteuid().as_raw(), missing.join(", ")))
}

pub(super) fn mptcp() -> Finding {
    match stream_socket(Domain::IPV4) {
        Ok((socket, Protocol::Mptcp)) => {
            Info::of(&socket)
                .map_err(|error| format!("sockets can be created, but MPTCP_INFO cannot be read: {error}"))?;
            // Inconclusive if the loopback interface is down.
            if falls_back_to_tcp().unwrap_or(false) {
                return Err(
                    "new connections use TCP for now: the kernel detected a blackhole (unanswered MPTCP SYNs)"
                        .into(),
                );
            }
            Ok("sockets created, MPTCP_INFO read".into())
        }
        Ok((_, Protocol::Tcp)) => Err(match std::fs::read_to_string("/proc/sys/net/mptcp/enabled") {
            Ok(value) => format!("disabled in this network namespace: net.mptcp.enabled is {}", value.trim()),
            Err(_) => "the kernel does not support MPTCP sockets (protocol 262)".into(),
        }),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn default_congestion_control() -> Finding {
    let name = congestion_control::default_congestion_control().map_err(|error| error.to_string())?;
    if congestion_control::is_bbr(&name) {
        return Err(format!("{name}, with which Linux's MPTCP can deliver wrong bytes"));
    }
    Ok(name)
}

/// Whether the kernel falls back to TCP for new connections, as after a blackhole. The kernel does not expose this
/// state, so a connection over loopback is attempted.
fn falls_back_to_tcp() -> io::Result<bool> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let before = blackhole::connections_made_tcp()?;
    let (socket, _) = stream_socket(Domain::IPV4)?;
    socket.connect_timeout(&listener.local_addr()?.into(), Duration::from_secs(1))?;
    Ok(blackhole::connections_made_tcp()? > before)
}

pub(super) fn path_manager() -> Finding {
    let manager = PathManager::open().map_err(|error| error.to_string())?;
    let limits = manager.limits().map_err(|error| error.to_string())?;
    let endpoints = manager.endpoints().map_err(|error| error.to_string())?;
    Ok(format!("{} endpoints, limit of {} additional subflows", endpoints.len(), limits.subflows))
}

pub(super) fn user_space_path_manager() -> Finding {
    // This changes the sysctl temporarily: in a new namespace, no other program is affected.
    in_new_namespace(|| user_space_sockets(1, Domain::IPV4).map_err(|error| error.to_string()))??;
    Ok("a socket was created".into())
}

pub(super) fn cgroup2() -> Finding {
    empty_cgroup()?;
    Ok("a cgroup was created and removed".into())
}

pub(super) fn type_information() -> Finding {
    let path = "/sys/kernel/btf/vmlinux";
    File::open(path).map_err(|error| format!("cannot open {path}: {error}"))?;
    Ok(path.into())
}

pub(super) fn network_namespaces() -> Finding {
    in_new_namespace(NetNs::current)?.map_err(|error| error.to_string())?;
    Ok("one was created and removed".into())
}

pub(super) fn links() -> Finding {
    in_new_namespace(|| {
        run("ip", "link add plait0 type veth peer name plait1")?;
        run("tc", "qdisc add dev plait0 root tbf rate 10mbit burst 10kb latency 10ms")
    })??;
    Ok("a link of 10 Mb/s was created and removed".into())
}

/// A temporary cgroup, named after the thread, as several threads may probe at once.
pub(super) fn empty_cgroup() -> Result<Cgroup, String> {
    let role = format!("probe{}", rustix::thread::gettid().as_raw_pid());
    Cgroup::create_below_current(&role).map_err(|error| error.to_string())
}

/// Calls `work` on a thread in a temporary network namespace.
pub(super) fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let inside = || {
            // SAFETY: only the network namespace is unshared, not the table of file descriptors.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|error| format!("cannot create a network namespace: {error}"))?;
            Ok(work())
        };
        scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub(super) fn run(program: &str, arguments: &str) -> Result<(), String> {
    let failed = |what: &dyn std::fmt::Display| format!("{program} {arguments}: {what}");
    let output = command(program).args(arguments.split(' ')).output().map_err(|error| failed(&error))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(&String::from_utf8_lossy(&output.stderr).trim()))
    }
}
