//! The path manager, its events, and sockets managed from user space, in network namespaces on the running kernel.

mod topology;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use plait_linux::diag::Watch;
use plait_linux::mptcp::{self, FullInfo, Info};
use plait_linux::netns::NetNs;
use plait_linux::pm::{self, Endpoint, Event, Events, Limits, Local, PathManager};
use socket2::{Domain, Socket};
use topology::{Topology, interface_index, ip, listen, wait_for_subflows};

/// Waits for an event that `wanted` accepts.
fn next<T>(events: &mut Events, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut seen = Vec::new();
    while Instant::now() < deadline {
        match events.try_next().expect("events are readable") {
            Some(event) => match wanted(&event) {
                Some(found) => return found,
                None => seen.push(event),
            },
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    panic!("expected an event, got only others: {seen:?}");
}

/// Connects `socket` over the first link. Returns the client's end, the server's end, and the listener, without which
/// the server rejects additional subflows.
fn connected(net: &Topology, domain: Domain, socket: Socket) -> (Socket, Socket, Socket) {
    let first = if domain == Domain::IPV4 { net.server_v4[0] } else { net.server_v6[0] };
    let (listener, port) = listen(&net.server, domain);
    let first = SocketAddr::new(first.parse().expect("address is valid"), port);
    socket.connect(&first.into()).expect("connection succeeds");
    let (server, _) = listener.accept().expect("connection succeeds");
    (socket, server, listener)
}

fn exchange(client: &mut Socket, server: &mut Socket) {
    client.write_all(b"ping").expect("write succeeds");
    server.read_exact(&mut [0; 4]).expect("read succeeds");
    server.write_all(b"pong").expect("write succeeds");
    client.read_exact(&mut [0; 4]).expect("read succeeds");
}

#[test]
fn kernel_does_not_manage_user_space_sockets() {
    let Some(net) = Topology::new("kernel_does_not_manage_user_space_sockets") else {
        return;
    };
    let setting = || std::fs::read_to_string("/proc/sys/net/mptcp/pm_type").expect("sysctl is readable");
    net.client
        .run(|| {
            let manager = PathManager::open().expect("path manager opens");
            assert_eq!(manager.endpoints().expect("endpoints are listed"), []);
            ip(&format!("-n {} mptcp limits set subflows 3 add_addr_accepted 2", net.client.name()));
            let limits = Limits { subflows: 3, add_addr_accepted: 2 };
            assert_eq!(manager.limits().expect("limits are readable"), limits);
            for address in ["10.2.0.1", "fd00:2::1"] {
                ip(&format!("-n {} mptcp endpoint add {address} dev a1 subflow", net.client.name()));
            }
            let mut endpoints = manager.endpoints().expect("endpoints are listed");
            endpoints.sort_by_key(|endpoint| endpoint.id);
            let endpoint = |id, address: &str| Endpoint {
                id,
                address: address.parse().expect("address is valid"),
                if_index: interface_index("a1"),
                signal: false,
                subflow: true,
            };
            assert_eq!(endpoints, [endpoint(1, "10.2.0.1"), endpoint(2, "fd00:2::1")]);
            for domain in [Domain::IPV4, Domain::IPV6] {
                let before = setting();
                let sockets = pm::user_space_sockets(4, domain).expect("sockets open");
                assert_eq!(setting(), before);
                assert_eq!(sockets.len(), 4);

                let managed = sockets.into_iter().next().expect("socket opens");
                let (mut managed, mut peer, _listener) = connected(&net, domain, managed);
                exchange(&mut managed, &mut peer);
                let (ordinary, _) = mptcp::stream_socket(domain).expect("socket opens");
                let (mut ordinary, mut ordinary_peer, _listener) = connected(&net, domain, ordinary);
                exchange(&mut ordinary, &mut ordinary_peer);
                // The kernel creates the subflow of the later connection, so it would have created the other one's too.
                wait_for_subflows(&ordinary, 2);
                exchange(&mut managed, &mut peer);
                assert_eq!(FullInfo::of(&managed).expect("state is readable").subflows.len(), 1);
            }
        })
        .expect("namespace can be entered");
}

#[test]
fn user_space_creates_and_closes_subflows() {
    let Some(net) = Topology::new("user_space_creates_and_closes_subflows") else { return };
    net.client
        .run(|| {
            for (domain, local, remote) in
                [(Domain::IPV4, "10.2.0.1", "10.2.0.2"), (Domain::IPV6, "fd00:2::1", "fd00:2::2")]
            {
                let manager = PathManager::open().expect("path manager opens");
                let mut events = Events::open().expect("subscription succeeds");
                let socket = pm::user_space_sockets(1, domain).expect("socket opens").remove(0);
                let (mut client, mut server, _listener) = connected(&net, domain, socket);
                exchange(&mut client, &mut server);
                let token = Info::of(&client).expect("state is readable").token;
                let port = client.peer_addr().expect("address is valid").as_socket().map(|peer| peer.port());

                let (address, if_index) = (local.parse().expect("address is valid"), interface_index("a1"));
                let from = Local { address, id: 5, if_index, backup: true };
                let remote = remote.parse().expect("address is valid");
                let to = SocketAddr::new(remote, port.expect("address is an IP address"));
                manager.subflow_create(token, &from, to, 0).expect("subflow is requested");
                wait_for_subflows(&server, 2);
                let samples = Watch::open().and_then(|mut watch| watch.sample()).expect("sample is taken");
                let created = &samples.first().expect("connection is listed").subflows[1];
                assert_eq!((created.local.ip(), created.remote), (address, to));
                assert_eq!((created.local_id, created.backup_local), (Some(5), Some(true)));
                assert_eq!(created.interface.as_deref(), Some("a1"));

                manager.subflow_destroy(token, created.local, created.remote).expect("subflow is closed");
                next(&mut events, |event| match *event {
                    Event::SubflowClosed { token: of, by_peer: false, .. } if of == token => Some(()),
                    _ => None,
                });
                let gone = manager
                    .subflow_destroy(token, created.local, created.remote)
                    .expect_err("subflow does not exist");
                assert_eq!(gone.errno(), Some(libc::ESRCH));
                assert!(gone.to_string().contains(&to.to_string()), "{gone}");
                exchange(&mut client, &mut server);
            }
        })
        .expect("namespace can be entered");
}

#[test]
fn reports_announced_and_withdrawn_addresses() {
    let Some(net) = Topology::new("reports_announced_and_withdrawn_addresses") else { return };
    let mut events =
        net.server.run(Events::open).expect("namespace can be entered").expect("events are open");
    for (domain, address) in [(Domain::IPV4, "10.9.0.1"), (Domain::IPV6, "fd00:9::1")] {
        let endpoint = |command: &str| ip(&format!("-n {} mptcp endpoint {command}", net.client.name()));
        endpoint(&format!("add {address} id 9 signal"));
        let socket = net.client.run(|| {
            let (socket, _) = mptcp::stream_socket(domain).expect("socket opens");
            connected(&net, domain, socket)
        });
        let (mut client, mut server, _listener) = socket.expect("namespace can be entered");
        exchange(&mut client, &mut server);
        let token = Info::of(&server).expect("state is readable").token;
        let announced = next(&mut events, |event| match event {
            Event::Announced { token: found, remote_id: 9, address } if *found == token => Some(address.ip()),
            _ => None,
        });
        assert_eq!(announced.to_string(), address);
        endpoint("delete id 9");
        let removed = Event::Removed { token, remote_id: 9 };
        next(&mut events, |event| (*event == removed).then_some(()));
    }
}

#[test]
fn lost_events_are_reported() {
    let Some(net) = Topology::new("lost_events_are_reported") else { return };
    net.client
        .run(|| {
            let mut events = Events::open().expect("subscription succeeds");
            socket2::SockRef::from(&events).set_recv_buffer_size(1).expect("buffer size is set");
            let kept: Vec<_> = (0..50)
                .map(|_| {
                    connected(&net, Domain::IPV4, mptcp::stream_socket(Domain::IPV4).expect("socket opens").0)
                })
                .collect();
            drop(kept);
            next(&mut events, |event| (*event == Event::Lost).then_some(()));
        })
        .expect("namespace can be entered");
}

#[test]
fn restores_the_sysctl_after_a_crash() {
    let Some(net) = Topology::new("restores_the_sysctl_after_a_crash") else { return };
    let record = pm::path_manager_record().expect("directory is created");
    let setting = || {
        let path = "/proc/sys/net/mptcp/path_manager";
        let path = if std::fs::exists(path).expect("/proc is readable") {
            path
        } else {
            "/proc/sys/net/mptcp/pm_type"
        };
        (path, std::fs::read_to_string(path).expect("sysctl is readable").trim().to_owned())
    };
    let leave = |value: &str| {
        let lock = std::fs::File::open(&record).expect("record is readable");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("file is locked");
        let (path, before) = setting();
        let identity =
            NetNs::current().expect("namespace is available").identity().expect("identity is readable");
        std::fs::write(&record, format!("{} {} {path} {before}\n", identity.device, identity.inode))
            .expect("record is written");
        std::fs::write(path, value).expect("sysctl is writable");
        before
    };
    let changed = |path: &str| if path.ends_with("pm_type") { "1" } else { "userspace" };

    pm::restore_after_crash().expect("record is readable");
    // From another namespace, as by `plait doctor --clean`. Another plait process on this machine may restore it first.
    let before = net.client.run(|| leave(changed(setting().0))).expect("namespace can be entered");
    let restored = pm::restore_after_crash().expect("restoring succeeds");
    assert!(restored.is_none_or(|text| text.contains(&before)));
    assert_eq!(net.client.run(setting).expect("namespace can be entered").1, before);

    // The next call in the namespace restores it too.
    net.client
        .run(|| {
            leave(changed(setting().0));
            pm::user_space_sockets(1, Domain::IPV4).expect("socket opens");
            assert_eq!(setting().1, before);
        })
        .expect("namespace can be entered");
}
