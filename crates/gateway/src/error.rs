//! Why a gateway does not start, and why a connection is not carried.

use std::io;
use std::net::SocketAddr;

use plait_linux::cgroup;
use plait_linux::privileges::MissingCapabilities;
use plait_proto::option::Mode;
use plait_proto::sealed::MAX_PATHS;
use plait_scheduler::SchedulerConfig;

use crate::bpf::BpfError;
use crate::paths::PathRulesError;

/// A gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This host lacks what the required mode needs.
    #[error("this host cannot protect with mode '{mode}': {reason}")]
    Protection {
        /// The mode.
        mode: Mode,
        /// What is missing.
        reason: ProtectionError,
    },
    /// Peers or clients must authenticate, in another mode than `sealed`.
    #[error("expected mode 'sealed', in which alone peers and clients authenticate by keys, got '{0}'")]
    Identities(Mode),
    /// Padding or the renewal of keys is configured, in another mode than `sealed`.
    #[error(
        "expected mode 'sealed', which alone pads and copies records and renews keys (--pad, --redundant, --rekey-after), got '{0}'"
    )]
    Records(Mode),
    /// Negotiation by a flag, in another mode than `xor64`.
    #[error("expected mode 'xor64' with --negotiate flag, whose one bit cannot name a mode, got '{0}'")]
    Flag(Mode),
    /// All paths are required, which are those named, and none, one or too many are.
    #[error(
        "expected 2 to {MAX_PATHS} interfaces with --require=all-paths, which are the paths that it requires, got {0}: name \
         them by --trusted, --untrusted or [paths], or require a number of paths, as in --require=paths:2"
    )]
    NamedPaths(usize),
    /// The congestion control cannot be used.
    #[error(
        "cannot use congestion control '{name}': {reason} (`sysctl net.ipv4.tcp_available_congestion_control` lists what this host has)"
    )]
    CongestionControl {
        /// Its name.
        name: String,
        /// Why.
        reason: io::Error,
    },
    /// The scheduler cannot be used.
    #[error("cannot use scheduler '{scheduler}': {reason}")]
    Scheduler {
        /// It.
        scheduler: SchedulerConfig,
        /// Why.
        reason: Box<plait_scheduler::Error>,
    },
    /// A scheduler controls congestion by itself.
    #[error(
        "expected a scheduler or a congestion control, got '{scheduler}' and '{name}': schedulers use cubic; omit one of them"
    )]
    SchedulerWithAlgorithm {
        /// The scheduler.
        scheduler: SchedulerConfig,
        /// The congestion control.
        name: String,
    },
    /// Clients may connect that do not ask for one of the services.
    #[error(
        "expected mode 'sealed', required, for more than one of [[services]] and for `clients` in it, because only that tells which \
         service a client asks for, and who it is: omit --mode and --require=false, or configure one service without clients"
    )]
    Services,
    /// Two services are asked for alike.
    #[error("expected each of [[services]] to have its own name or port, got two on port {port}{name}")]
    SameService {
        /// Their name, as in ` under the name 'server.example'`.
        name: String,
        /// Their port.
        port: u16,
    },
    /// The rules of paths cannot be enforced.
    #[error("cannot enforce [[paths]]: {0}")]
    PathRules(PathRulesError),
    /// Connections go to an exit, and mode `sealed` is not required.
    #[error(
        "expected mode 'sealed', required, with an exit, which learns the destination in it: omit --mode and --require=false"
    )]
    Exit,
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {reason}{}", hint(reason))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        reason: io::Error,
    },
}

/// What protection needs and this host lacks.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    /// No MPTCP.
    #[error("the kernel has no MPTCP, or it is disabled: sysctl -w net.mptcp.enabled=1 (see `plait doctor`)")]
    Mptcp,
    /// Not root.
    #[error("this process lacks {0}: run plait as root, as by sudo")]
    Privileges(MissingCapabilities),
    /// No cgroup for the gateway.
    #[error("cannot create a cgroup: {0}")]
    Cgroup(cgroup::Error),
    /// No BPF programs.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The kernel module protects the sockets of this cgroup.
    #[error(
        "the kernel module already protects the sockets of cgroup {cgroup} (`plait kmod enable`, process {pid}), and would \
         protect them twice: start the gateway outside of that cgroup"
    )]
    AlreadyProtected {
        /// The cgroup.
        cgroup: String,
        /// The process of `plait kmod enable`.
        pid: u32,
    },
    /// No control of the paths.
    #[error("cannot manage paths: {0} (`plait doctor` lists what is missing)")]
    Paths(io::Error),
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another gateway or service uses this port: stop it or choose another)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need root)",
        io::ErrorKind::AddrNotAvailable => " (no interface has this address)",
        _ => "",
    }
}
