//! Probes whether this host has the features that plait uses.
//!
//! Whether a feature is available depends on the kernel version, its configuration and this user's privileges, so
//! version numbers are not enough: each feature is used once, in a temporary network namespace or cgroup. Probing does
//! not affect other programs.

mod kernel;
mod packets;
mod programs;

use std::process::Command;
use std::thread;

/// A feature that plait uses, and whether it is available.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// Whether the probe succeeded.
    pub present: bool,
    /// Whether protected connections require it.
    pub essential: bool,
    /// The probe's result, or why the feature is not available.
    pub detail: String,
    /// What plait cannot do without it.
    pub lost_without: &'static str,
    /// How to get it.
    pub how_to_get: &'static str,
}

/// Probes every feature, which takes a fraction of a second. Fewer features are available to users other than root.
pub fn features() -> Vec<Feature> {
    // Failures are reported by the features themselves, not by the BPF library on stderr.
    let printing = libbpf_rs::set_print(None);
    // On a separate thread, as probing enters new network namespaces.
    let features = thread::scope(|scope| {
        let all = scope.spawn(|| FEATURES.iter().map(Probe::result).collect());
        all.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    libbpf_rs::set_print(printing);
    features
}

/// The result of a probe, or why the feature is not available.
type Finding = Result<String, String>;

struct Probe {
    name: &'static str,
    essential: bool,
    attempt: fn() -> Finding,
    lost_without: &'static str,
    how_to_get: &'static str,
}

impl Probe {
    fn result(&self) -> Feature {
        let finding = (self.attempt)();
        let present = finding.is_ok();
        let detail = finding.unwrap_or_else(|reason| reason);
        let Probe { name, essential, lost_without, how_to_get, .. } = *self;
        Feature { name, present, essential, detail, lost_without, how_to_get }
    }
}

const FEATURES: &[Probe] = &[
    Probe {
        name: "privileges",
        essential: true,
        attempt: kernel::privileges,
        lost_without: "protection: BPF programs, path management and namespaces require privileges; only plain proxies work",
        how_to_get: "run plait as root (sudo plait ...)",
    },
    Probe {
        name: "MPTCP",
        essential: true,
        attempt: kernel::mptcp,
        lost_without: "multiple paths: connections use plain TCP",
        how_to_get: "sysctl -w net.mptcp.enabled=1; after a blackhole, sysctl -w net.mptcp.blackhole_timeout=0; otherwise, a kernel \
                     with CONFIG_MPTCP (Debian 12, Ubuntu 22.04 or later)",
    },
    Probe {
        name: "MPTCP path manager",
        essential: true,
        attempt: kernel::path_manager,
        lost_without: "subflows on additional paths",
        how_to_get: "a kernel of version 5.19 or later with CONFIG_MPTCP; root",
    },
    Probe {
        name: "default congestion control",
        essential: false,
        attempt: kernel::default_congestion_control,
        lost_without: "correct bytes of other MPTCP programs when paths are cut; plait's gateways use cubic instead",
        how_to_get: "sysctl -w net.ipv4.tcp_congestion_control=cubic",
    },
    Probe {
        name: "user-space path management",
        essential: true,
        attempt: kernel::user_space_path_manager,
        lost_without: "starting on the trusted path: the kernel creates subflows on other paths before the first flight has arrived",
        how_to_get: "a kernel of version 5.19 or later with CONFIG_MPTCP; root; a writable /proc/sys",
    },
    Probe {
        name: "cgroup2",
        essential: true,
        attempt: kernel::cgroup2,
        lost_without: "negotiation and plait run, whose BPF programs attach to cgroups",
        how_to_get: "mount -t cgroup2 none /sys/fs/cgroup/unified; root, or a cgroup delegated to this user",
    },
    Probe {
        name: "BPF programs",
        essential: true,
        attempt: programs::load_and_attach,
        lost_without: "negotiation and plait run",
        how_to_get: "root; a kernel with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF",
    },
    Probe {
        name: "BPF type information (BTF)",
        essential: true,
        attempt: kernel::type_information,
        lost_without: "mode xor64, which is seeded with the MPTCP keys of the connection",
        how_to_get: "a kernel with CONFIG_DEBUG_INFO_BTF, as in most distributions",
    },
    Probe {
        name: "TCP options in BPF (sock_ops)",
        essential: true,
        attempt: programs::header_options,
        lost_without: "negotiation: no connection is protected",
        how_to_get: "a kernel of version 5.10 or later with CONFIG_CGROUP_BPF",
    },
    Probe {
        name: "BPF socket storage",
        essential: true,
        attempt: programs::socket_storage,
        lost_without: "negotiation and plait run, which store per-connection state there",
        how_to_get: "a kernel of version 5.10 or later with CONFIG_BPF_SYSCALL",
    },
    Probe {
        name: "MPTCP sockets in BPF",
        essential: true,
        attempt: programs::mptcp_sockets,
        lost_without: "mode xor64, which is seeded with the MPTCP keys of the connection",
        how_to_get: "a kernel of version 5.19 or later with CONFIG_MPTCP and BTF",
    },
    Probe {
        name: "connect and getpeername hooks (cgroup BPF)",
        essential: true,
        attempt: programs::redirect,
        lost_without: "transparent redirection by plait run: it falls back to proxy variables, which some programs ignore",
        how_to_get: "a kernel of version 5.8 or later with CONFIG_CGROUP_BPF",
    },
    Probe {
        name: "BPF programs at XDP",
        essential: false,
        attempt: packets::xdp,
        lost_without: "plait policy at XDP: it attaches to TC ingress instead, which costs more per packet",
        how_to_get: "a kernel of version 5.15 or later with CONFIG_BPF_SYSCALL; root",
    },
    Probe {
        name: "BPF programs at TC (TCX)",
        essential: false,
        attempt: packets::tcx,
        lost_without: "plait router, --negotiate flag, and measuring idle paths by plait sched; plait policy uses clsact instead",
        how_to_get: "a kernel of version 6.6 or later with CONFIG_NET_XGRESS; root",
    },
    Probe {
        name: "BPF programs at TC (clsact)",
        essential: false,
        attempt: packets::clsact,
        lost_without: "plait policy for outgoing packets, unless TCX is available",
        how_to_get: "modprobe cls_bpf sch_ingress, or a kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS; root",
    },
    Probe {
        name: "BPF file system",
        essential: false,
        attempt: packets::file_system,
        lost_without: "plait policy: its programs could not be pinned and would be removed when the command exits",
        how_to_get: "a kernel with CONFIG_BPF_SYSCALL; root",
    },
    Probe {
        name: "network namespaces",
        essential: false,
        attempt: kernel::network_namespaces,
        lost_without: "plait demo and the end-to-end tests",
        how_to_get: "root; a kernel with CONFIG_NET_NS",
    },
    Probe {
        name: "rate-limited virtual links (veth, tbf)",
        essential: false,
        attempt: kernel::links,
        lost_without: "plait demo and the end-to-end tests",
        how_to_get: "apt-get install iproute2; a kernel with CONFIG_VETH and CONFIG_NET_SCH_TBF; root",
    },
    Probe {
        name: "tcpdump",
        essential: false,
        attempt: || tool("tcpdump", "--version"),
        lost_without: "the eavesdropper in plait demo",
        how_to_get: "apt-get install tcpdump",
    },
    Probe {
        name: "nginx",
        essential: false,
        attempt: || tool("nginx", "-v"),
        lost_without: "the server in plait demo",
        how_to_get: "apt-get install nginx",
    },
    Probe {
        name: "curl",
        essential: false,
        attempt: || tool("curl", "--version"),
        lost_without: "the client in plait demo",
        how_to_get: "apt-get install curl",
    },
    Probe {
        name: "clang",
        essential: false,
        attempt: || tool(&crate::bpf_source::clang::find(), "--version"),
        lost_without: "BPF programs of your own; building plait from source",
        how_to_get: "apt-get install clang-19",
    },
];

/// Runs a program with the argument that makes it print its version.
fn tool(name: &str, argument: &str) -> Finding {
    let output =
        command(name).arg(argument).output().map_err(|error| format!("cannot run {name}: {error}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default();
    // Some programs add details of libraries or the build in brackets.
    let first = line.split(" (").next().unwrap_or_default().trim().to_owned();
    if output.status.success() { Ok(first) } else { Err(format!("{name} {argument} failed: {first}")) }
}

/// A command that is also searched for in directories that are often missing from the PATH of ordinary users.
fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin");
    command
}
