//! Two hosts with two links between them, in network namespaces.
//!
//! Client `a0` 10.1.0.1, fd00:1::1 and `a1` 10.2.0.1, fd00:2::1; server the same with .2 and ::2.
#![allow(dead_code, reason = "every test program uses its own part")]

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use plait_host::mptcp::{Protocol, stream_socket};
use plait_host::netns::Named;
use socket2::Domain;

/// The two hosts; gone when dropped.
pub(crate) struct Topology {
    pub(crate) client: Named,
    pub(crate) server: Named,
    pub(crate) server_v4: [&'static str; 2],
    pub(crate) server_v6: [&'static str; 2],
}

impl Topology {
    /// `None`, said on the standard output, where the test cannot run.
    pub(crate) fn new(test: &str) -> Option<Topology> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP {test}: making network namespaces takes root");
            return None;
        }
        if !matches!(stream_socket(Domain::IPV4), Ok((_, Protocol::Mptcp))) {
            println!("SKIP {test}: the kernel has no MPTCP, or it is off here");
            return None;
        }
        let name =
            |role| format!("plait-{}-{role}{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let client = Named::create(&name("client")).expect("a namespace");
        let server = Named::create(&name("server")).expect("a namespace");
        let (c, s) = (client.name(), server.name());
        for link in 0..2 {
            let subnet = link + 1;
            ip(&format!("link add a{link} netns {c} type veth peer name b{link} netns {s}"));
            for (host, interface, end) in [(c, 'a', 1), (s, 'b', 2)] {
                ip(&format!("-n {host} address add 10.{subnet}.0.{end}/24 dev {interface}{link}"));
                ip(&format!("-n {host} address add fd00:{subnet}::{end}/64 dev {interface}{link} nodad"));
                ip(&format!("-n {host} link set {interface}{link} up"));
            }
        }
        for host in [c, s] {
            ip(&format!("-n {host} link set lo up"));
        }
        // Each address of the server can be reached over either link, as in the Internet.
        for (link, other) in [(0, 1), (1, 0)] {
            let (subnet, far) = (link + 1, other + 1);
            ip(&format!("-n {c} route add 10.{far}.0.0/24 via 10.{subnet}.0.2 dev a{link} metric 100"));
            ip(&format!("-n {c} route add fd00:{far}::/64 via fd00:{subnet}::2 dev a{link} metric 2000"));
        }
        Some(Topology {
            client,
            server,
            server_v4: ["10.1.0.2", "10.2.0.2"],
            server_v6: ["fd00:1::2", "fd00:2::2"],
        })
    }
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("the command ip");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The index of an interface of the calling thread's namespace.
pub(crate) fn interface_index(name: &str) -> u32 {
    rustix::net::netdevice::name_to_index(
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
            .expect("a socket"),
        name,
    )
    .expect("an interface")
}

static COUNT: AtomicU32 = AtomicU32::new(0);
