//! What this host has of what plait uses, found out by trying.
//!
//! A version number or a file says little about what a kernel, its configuration and this user's privileges allow
//! together. So every feature is used once, in a network namespace and a cgroup made for it and removed, and
//! nothing that other programs could notice is changed.

mod kernel;
mod packets;
mod programs;

use std::process::Command;
use std::thread;

/// A feature that plait uses, and whether it is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: &'static str,
    /// Whether it was tried successfully.
    pub present: bool,
    /// Whether protected connections require it.
    pub essential: bool,
    /// What was found, or why it is not available.
    pub detail: String,
    /// What plait cannot do without it.
    pub lost_without: &'static str,
    /// How to get it.
    pub how_to_get: &'static str,
}

/// Tries every feature. Takes a fraction of a second; for users other than root, fewer features are available.
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

/// Details, or why the feature is not available.
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
        lost_without: "everything but plain proxies: BPF programs, path management and namespaces need them",
        how_to_get: "run plait as root (sudo plait ...)",
    },
    Probe {
        name: "MPTCP",
        essential: true,
        attempt: kernel::mptcp,
        lost_without: "several paths: connections are plain TCP",
        how_to_get: "sysctl -w net.mptcp.enabled=1; after a blackhole, sysctl -w net.mptcp.blackhole_timeout=0; or a kernel \
                     with CONFIG_MPTCP (Debian 12, Ubuntu 22.04 or later)",
    },
    Probe {
        name: "MPTCP path manager",
        essential: true,
        attempt: kernel::path_manager,
        lost_without: "subflows on the other paths",
        how_to_get: "a kernel of version 5.19 or later with CONFIG_MPTCP; root",
    },
    Probe {
        name: "user-space path management",
        essential: true,
        attempt: kernel::user_space_path_manager,
        lost_without: "trusted path first: the kernel adds subflows before the first flight has arrived",
        how_to_get: "a kernel of version 5.19 or later with CONFIG_MPTCP; root; a writable /proc/sys",
    },
    Probe {
        name: "cgroup2",
        essential: true,
        attempt: kernel::cgroup2,
        lost_without: "negotiation and plait run: their BPF programs attach to cgroups",
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
        name: "kernel type information (BTF)",
        essential: true,
        attempt: kernel::type_information,
        lost_without: "the keys of connections, which xor64 is seeded with",
        how_to_get: "a kernel with CONFIG_DEBUG_INFO_BTF, as distributions ship",
    },
    Probe {
        name: "TCP options by BPF (sock_ops)",
        essential: true,
        attempt: programs::header_options,
        lost_without: "negotiation: nothing is protected",
        how_to_get: "a kernel of version 5.10 or later with CONFIG_CGROUP_BPF",
    },
    Probe {
        name: "BPF socket storage",
        essential: true,
        attempt: programs::socket_storage,
        lost_without: "negotiation and plait run: what belongs to a connection has no place",
        how_to_get: "a kernel of version 5.10 or later with CONFIG_BPF_SYSCALL",
    },
    Probe {
        name: "MPTCP sockets in BPF",
        essential: true,
        attempt: programs::mptcp_sockets,
        lost_without: "the keys of connections, which xor64 is seeded with",
        how_to_get: "a kernel of version 5.19 or later with CONFIG_MPTCP and BTF",
    },
    Probe {
        name: "connect and getpeername by BPF",
        essential: true,
        attempt: programs::redirect,
        lost_without: "plait run redirecting any program: it sets proxy variables instead, which some programs ignore",
        how_to_get: "a kernel of version 5.8 or later with CONFIG_CGROUP_BPF",
    },
    Probe {
        name: "BPF programs on packets that come in (XDP)",
        essential: false,
        attempt: packets::xdp,
        lost_without: "plait policy meeting packets before the kernel does; it meets them at TC, which costs more",
        how_to_get: "a kernel of version 5.15 or later with CONFIG_BPF_SYSCALL; root",
    },
    Probe {
        name: "BPF programs at TC (TCX)",
        essential: false,
        attempt: packets::tcx,
        lost_without: "nothing, as long as clsact is there",
        how_to_get: "a kernel of version 6.6 or later with CONFIG_NET_XGRESS; root",
    },
    Probe {
        name: "BPF programs at TC (clsact)",
        essential: false,
        attempt: packets::clsact,
        lost_without: "plait policy for packets that go out, unless TCX is there",
        how_to_get: "modprobe cls_bpf sch_ingress, or a kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS; root",
    },
    Probe {
        name: "BPF file system",
        essential: false,
        attempt: packets::file_system,
        lost_without: "plait policy: nothing would keep a policy when the command has ended",
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
        name: "virtual links with a rate (veth, tbf)",
        essential: false,
        attempt: kernel::links,
        lost_without: "plait demo and the end-to-end tests",
        how_to_get: "apt-get install iproute2; a kernel with CONFIG_VETH and CONFIG_NET_SCH_TBF; root",
    },
    Probe {
        name: "tcpdump",
        essential: false,
        attempt: || tool("tcpdump", "--version"),
        lost_without: "the listener of plait demo",
        how_to_get: "apt-get install tcpdump",
    },
    Probe {
        name: "nginx",
        essential: false,
        attempt: || tool("nginx", "-v"),
        lost_without: "the server of plait demo",
        how_to_get: "apt-get install nginx",
    },
    Probe {
        name: "curl",
        essential: false,
        attempt: || tool("curl", "--version"),
        lost_without: "the client of plait demo",
        how_to_get: "apt-get install curl",
    },
    Probe {
        name: "clang-19",
        essential: false,
        attempt: || tool("clang-19", "--version"),
        lost_without: "building plait from source",
        how_to_get: "apt-get install clang-19",
    },
];

/// Runs a program with the argument that prints its version.
fn tool(name: &str, argument: &str) -> Finding {
    let output =
        command(name).arg(argument).output().map_err(|error| format!("cannot run {name}: {error}"))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default();
    // Some print details of libraries and builds in brackets.
    let first = line.split(" (").next().unwrap_or_default().trim().to_owned();
    if output.status.success() { Ok(first) } else { Err(format!("{name} {argument} failed: {first}")) }
}

/// A program, also searched in directories that are often not in the PATH of ordinary users.
fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin");
    command
}
