//! Two hosts with two links between them, in network namespaces.
//!
//! Client `a0` 10.1.0.1, fd00:1::1 and `a1` 10.2.0.1, fd00:2::1; server the same with .2 and ::2.
#![allow(dead_code, reason = "no test program uses all of it")]

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::mptcp::{FullInfo, Info, Protocol, Subflow, stream_socket};
use plait_linux::netns::Named;
use plait_linux::pm::{self, Local, PathManager};
use socket2::{Domain, Socket};

/// The two hosts; removed when dropped.
pub(crate) struct Topology {
    pub(crate) client: Named,
    pub(crate) server: Named,
    pub(crate) server_v4: [&'static str; 2],
    pub(crate) server_v6: [&'static str; 2],
}

impl Topology {
    /// Creates the hosts; `None` if the test cannot run, after a message on standard output.
    pub(crate) fn new(test: &str) -> Option<Topology> {
        if !can_run(test) {
            return None;
        }
        let (client, server) = (host("client"), host("server"));
        for link in 0..2 {
            add_link(&client, &server, link);
        }
        let c = client.name();
        // Each address of the server is reachable over either link, as on the Internet.
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

/// Creates a host without links.
pub(crate) fn host(role: &str) -> Named {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let host = Named::create(&format!("plait-{}-{role}{number}", std::process::id()));
    let host = host.expect("namespace is created");
    ip(&format!("-n {} link set lo up", host.name()));
    host
}

/// Connects two hosts by a link, with the addresses above.
pub(crate) fn add_link(client: &Named, server: &Named, link: u8) {
    let (c, s, subnet) = (client.name(), server.name(), link + 1);
    ip(&format!("link add a{link} netns {c} type veth peer name b{link} netns {s}"));
    for (host, interface, end) in [(c, 'a', 1), (s, 'b', 2)] {
        ip(&format!("-n {host} address add 10.{subnet}.0.{end}/24 dev {interface}{link}"));
        ip(&format!("-n {host} address add fd00:{subnet}::{end}/64 dev {interface}{link} nodad"));
        ip(&format!("-n {host} link set {interface}{link} up"));
    }
}

/// Whether MPTCP hosts can be created; if not, prints the reason on standard output.
pub(crate) fn can_run(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: creating network namespaces requires root");
        return false;
    }
    if !matches!(stream_socket(Domain::IPV4), Ok((_, Protocol::Mptcp))) {
        println!("SKIP {test}: the kernel has no MPTCP, or it is disabled");
        return false;
    }
    true
}

/// Opens a connection, exchanges data, and adds a subflow from `local`. Returns the client's and the server's end.
pub(crate) fn connect(
    net: &Topology,
    domain: Domain,
    to: [&str; 2],
    local: &str,
    backup: bool,
) -> (Socket, Socket) {
    let (listener, port) = listen(&net.server, domain);
    let client = net.client.run(|| {
        let mut socket = pm::user_space_sockets(1, domain).expect("socket opens").remove(0);
        let to = SocketAddr::new(to[0].parse().expect("address is valid"), port);
        socket.connect(&to.into()).expect("connection succeeds");
        socket.write_all(&[1; 5000]).expect("write succeeds");
        socket
    });
    let mut client = client.expect("namespace can be entered");
    let (mut server, _) = listener.accept().expect("connection succeeds");
    server.read_exact(&mut [0; 5000]).expect("read succeeds");
    server.write_all(&[1; 7]).expect("write succeeds");
    client.read_exact(&mut [0; 7]).expect("read succeeds");
    let to = SocketAddr::new(to[1].parse().expect("address is valid"), port);
    net.client
        .run(|| {
            let address = local.parse().expect("address is valid");
            let local = Local { address, id: 2, if_index: interface_index("a1"), backup };
            let token = Info::of(&client).expect("state is readable").token;
            let manager = PathManager::open().expect("path manager opens");
            manager.subflow_create(token, &local, to, 0).expect("subflow is requested");
        })
        .expect("namespace can be entered");
    // The call does not wait for the handshake.
    wait_for_subflows(&server, 2);
    (client, server)
}

/// Listens on all addresses of a host.
pub(crate) fn listen(host: &Named, domain: Domain) -> (Socket, u16) {
    let any: SocketAddr =
        if domain == Domain::IPV4 { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("address is valid");
    let listener = host.run(|| {
        let (listener, _) = stream_socket(domain).expect("socket opens");
        listener.bind(&any.into()).expect("port is free");
        listener.listen(8).expect("socket listens");
        listener
    });
    let listener = listener.expect("namespace can be entered");
    let local = listener.local_addr().expect("address is valid").as_socket();
    (listener, local.expect("address is an IP address").port())
}

/// Waits until a connection has this many subflows.
pub(crate) fn wait_for_subflows(socket: &Socket, count: usize) -> Vec<Subflow> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let subflows = FullInfo::of(socket).expect("state is readable").subflows;
        if subflows.len() == count {
            return subflows;
        }
        assert!(Instant::now() < deadline, "expected {count} subflows, got {subflows:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Connects from a host, without further subflows.
pub(crate) fn dial(host: &Named, to: &str, port: u16) -> Socket {
    let to = SocketAddr::new(to.parse().expect("address is valid"), port);
    let client = host.run(|| {
        let (socket, _) = stream_socket(Domain::for_address(to)).expect("socket opens");
        socket.connect(&to.into()).expect("connection succeeds");
        socket
    });
    client.expect("namespace can be entered")
}

/// Runs the command `ip`.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("command ip runs");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The index of an interface of the calling thread's namespace.
pub(crate) fn interface_index(name: &str) -> u32 {
    rustix::net::netdevice::name_to_index(
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)
            .expect("socket opens"),
        name,
    )
    .expect("interface exists")
}

static COUNT: AtomicU32 = AtomicU32::new(0);
