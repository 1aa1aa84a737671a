//! Two hosts with two links between them, in network namespaces.
//!
//! Client `a0` 10.1.0.1, fd00:1::1 and `a1` 10.2.0.1, fd00:2::1; server the same with .2 and ::2.
#![allow(dead_code, reason = "every test program uses its own part")]

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use plait_linux::mptcp::{FullInfo, Info, Protocol, stream_socket};
use plait_linux::netns::Named;
use plait_linux::pm::{self, Local, PathManager};
use socket2::{Domain, Socket};

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
        if !can_run(test) {
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

/// Whether there can be hosts that speak MPTCP; why not is said on the standard output.
pub(crate) fn can_run(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: making network namespaces takes root");
        return false;
    }
    if !matches!(stream_socket(Domain::IPV4), Ok((_, Protocol::Mptcp))) {
        println!("SKIP {test}: the kernel has no MPTCP, or it is off here");
        return false;
    }
    true
}

/// The two ends, client first, of a connection that carried data both ways, with a second subflow from `local`.
pub(crate) fn connect(
    net: &Topology,
    domain: Domain,
    to: [&str; 2],
    local: &str,
    backup: bool,
) -> (Socket, Socket) {
    let any: SocketAddr =
        if domain == Domain::IPV4 { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("an address");
    let listener = net.server.run(|| {
        let (listener, _) = stream_socket(domain).expect("a socket");
        listener.bind(&any.into()).expect("a free port");
        listener.listen(8).expect("a listener");
        listener
    });
    let listener = listener.expect("the namespace");
    let port = listener.local_addr().expect("an address").as_socket().expect("an IP address").port();
    let client = net.client.run(|| {
        let mut socket = pm::user_space_sockets(1, domain).expect("a socket").remove(0);
        let to = SocketAddr::new(to[0].parse().expect("an address"), port);
        socket.connect(&to.into()).expect("a connection");
        socket.write_all(&[1; 5000]).expect("a write");
        socket
    });
    let mut client = client.expect("the namespace");
    let (mut server, _) = listener.accept().expect("a connection");
    server.read_exact(&mut [0; 5000]).expect("a read");
    server.write_all(&[1; 7]).expect("a write");
    client.read_exact(&mut [0; 7]).expect("a read");
    let to = SocketAddr::new(to[1].parse().expect("an address"), port);
    net.client
        .run(|| {
            let address = local.parse().expect("an address");
            let local = Local { address, id: 2, if_index: interface_index("a1"), backup };
            let token = Info::of(&client).expect("information").token;
            let manager = PathManager::open().expect("a path manager");
            manager.subflow_create(token, &local, to, 0).expect("a subflow");
        })
        .expect("the namespace");
    // The handshake's end is not part of the call.
    while FullInfo::of(&server).expect("information").subflows.len() < 2 {
        thread::sleep(Duration::from_millis(2));
    }
    (client, server)
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
