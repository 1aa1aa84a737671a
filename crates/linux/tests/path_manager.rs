//! The path manager, its events, and sockets managed from user space, in network namespaces on the running kernel.

mod topology;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use plait_linux::mptcp::{self, FullInfo, Info};
use plait_linux::netns::NetNs;
use plait_linux::pm::{self, Endpoint, Event, Events, Flags, Limits, Local, PathManager};
use socket2::{Domain, Socket};
use topology::{Topology, interface_index};

/// Waits for an event that `wanted` accepts.
fn next<T>(events: &mut Events, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
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
    let (any, first) = match domain {
        Domain::IPV4 => ("0.0.0.0:0", net.server_v4[0]),
        _ => ("[::]:0", net.server_v6[0]),
    };
    let any: SocketAddr = any.parse().expect("address is valid");
    let listener = net
        .server
        .run(|| {
            let (listener, _) = mptcp::stream_socket(domain).expect("socket opens");
            listener.bind(&any.into()).expect("port is free");
            listener.listen(8).expect("socket listens");
            listener
        })
        .expect("namespace can be entered");
    let port = listener
        .local_addr()
        .expect("address is valid")
        .as_socket()
        .expect("address is an IP address")
        .port();
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
fn sets_and_lists_endpoints_and_limits() {
    let Some(net) = Topology::new("sets_and_lists_endpoints_and_limits") else { return };
    net.client
        .run(|| {
            let manager = PathManager::open().expect("path manager opens");
            assert_eq!(manager.endpoints().expect("endpoints are listed"), []);
            let limits = Limits { subflows: 3, add_addr_accepted: 2 };
            manager.set_limits(limits).expect("limits are set");
            assert_eq!(manager.limits().expect("limits are readable"), limits);

            let v4 = Endpoint {
                address: "10.1.0.1".parse().expect("address is valid"),
                id: 3,
                port: 0,
                flags: Flags::SUBFLOW | Flags::BACKUP,
                if_index: interface_index("a0"),
            };
            let v6 = Endpoint {
                address: "fd00:2::1".parse().expect("address is valid"),
                id: 0,
                port: 4000,
                flags: Flags::SIGNAL,
                if_index: 0,
            };
            manager.add(&v4).expect("endpoint is added");
            manager.add(&v6).expect("endpoint is added");
            assert_eq!(manager.endpoint(3).expect("endpoint exists"), v4);
            let list = manager.endpoints().expect("endpoints are listed");
            assert_eq!(list.len(), 2);
            let found = list.iter().find(|endpoint| endpoint.address == v6.address).expect("endpoint exists");
            assert_ne!(found.id, 0, "the kernel chose an identifier");
            assert_eq!(Endpoint { id: 0, ..*found }, v6);

            manager.set_flags(3, Flags::SUBFLOW).expect("flags change");
            assert_eq!(manager.endpoint(3).expect("endpoint exists").flags, Flags::SUBFLOW);
            manager.delete(&v4).expect("deletion succeeds");
            manager.endpoint(3).expect_err("endpoint does not exist");
            manager.flush().expect("deletion succeeds");
            assert_eq!(manager.endpoints().expect("endpoints are listed"), []);

            let error = manager
                .set_limits(Limits { subflows: 99, add_addr_accepted: 0 })
                .expect_err("request is rejected");
            assert_eq!(error.errno(), Some(libc::EINVAL));
            let text = error.to_string();
            assert!(
                text.contains("99 subflows") && text.contains("limit"),
                "the kernel's explanation: {text}"
            );
            let error = manager.delete(&v4).expect_err("request is rejected");
            assert!(error.to_string().contains("10.1.0.1"), "{error}");
        })
        .expect("namespace can be entered");
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
            for address in ["10.2.0.1", "fd00:2::1"] {
                manager
                    .add(&Endpoint {
                        address: address.parse().expect("address is valid"),
                        id: 0,
                        port: 0,
                        flags: Flags::SUBFLOW,
                        if_index: interface_index("a1"),
                    })
                    .expect("endpoint is added");
            }
            for domain in [Domain::IPV4, Domain::IPV6] {
                let before = setting();
                let sockets = pm::user_space_sockets(4, domain).expect("sockets open");
                assert_eq!(setting(), before);
                assert_eq!(sockets.len(), 4);

                let mut events = Events::open().expect("subscription succeeds");
                let managed = sockets.into_iter().next().expect("socket opens");
                let (mut managed, mut peer, _listener) = connected(&net, domain, managed);
                exchange(&mut managed, &mut peer);
                let (ordinary, _) = mptcp::stream_socket(domain).expect("socket opens");
                let (mut ordinary, mut ordinary_peer, _listener) = connected(&net, domain, ordinary);
                exchange(&mut ordinary, &mut ordinary_peer);
                let token = Info::of(&ordinary).expect("state is readable").token;
                // The kernel has created the subflow of the later connection, so it would have created the other one's
                // too.
                next(&mut events, |event| match event {
                    Event::SubflowEstablished(subflow) => (subflow.token == token).then_some(()),
                    _ => None,
                });
                exchange(&mut managed, &mut peer);
                assert_eq!(FullInfo::of(&managed).expect("state is readable").subflows.len(), 1);
                assert_eq!(FullInfo::of(&ordinary).expect("state is readable").subflows.len(), 2);
            }
        })
        .expect("namespace can be entered");
}

#[test]
fn user_space_creates_changes_and_closes_subflows() {
    let Some(net) = Topology::new("user_space_creates_changes_and_closes_subflows") else { return };
    net.client
        .run(|| {
            for (domain, local, remote, other) in [
                (Domain::IPV4, "10.2.0.1", "10.2.0.2", "10.9.0.1"),
                (Domain::IPV6, "fd00:2::1", "fd00:2::2", "fd00:9::1"),
            ] {
                let manager = PathManager::open().expect("path manager opens");
                let mut events = Events::open().expect("subscription succeeds");
                let mut peer_events = net
                    .server
                    .run(Events::open)
                    .expect("namespace can be entered")
                    .expect("events are readable");
                let socket = pm::user_space_sockets(1, domain).expect("socket opens").remove(0);
                let (mut client, mut server, _listener) = connected(&net, domain, socket);
                exchange(&mut client, &mut server);
                let token = Info::of(&client).expect("state is readable").token;
                let peer_token = Info::of(&server).expect("state is readable").token;
                let port = server
                    .local_addr()
                    .expect("address is valid")
                    .as_socket()
                    .expect("address is an IP address")
                    .port();

                let established = next(&mut events, |event| match event {
                    Event::Established(connection) => Some(connection.clone()),
                    _ => None,
                });
                assert_eq!(established.token, token);
                assert_eq!(
                    Some(established.local),
                    client.local_addr().expect("address is valid").as_socket()
                );
                assert_eq!(
                    Some(established.remote),
                    client.peer_addr().expect("address is valid").as_socket()
                );
                assert!(!established.server_side);
                let at_peer = next(&mut peer_events, |event| match event {
                    Event::Established(connection) => Some(connection.clone()),
                    _ => None,
                });
                assert_eq!((at_peer.token, at_peer.server_side), (peer_token, true));

                let index = interface_index("a1");
                let from = Local {
                    address: local.parse().expect("address is valid"),
                    id: 5,
                    if_index: index,
                    backup: false,
                };
                let to = SocketAddr::new(remote.parse().expect("address is valid"), port);
                manager.subflow_create(token, &from, to, 0).expect("subflow is requested");
                let created = next(&mut events, |event| match event {
                    Event::SubflowEstablished(subflow) => Some(subflow.clone()),
                    _ => None,
                });
                assert_eq!((created.token, created.remote, created.local.ip()), (token, to, from.address));
                assert_eq!(
                    (created.local_id, created.if_index, created.backup, created.error),
                    (5, index, false, None)
                );
                let subflows = FullInfo::of(&client).expect("state is readable").subflows;
                assert_eq!(subflows.len(), 2);
                assert_eq!((subflows[1].local, subflows[1].remote), (created.local, created.remote));

                manager.set_backup(token, created.local, created.remote, true).expect("priority changes");
                let lowered = next(&mut peer_events, |event| match event {
                    Event::SubflowPriority(subflow) => Some(subflow.clone()),
                    _ => None,
                });
                assert_eq!((lowered.token, lowered.backup, lowered.remote_id), (peer_token, true, 5));

                let announced = Local { address: other.parse().expect("address is valid"), id: 9, ..from };
                manager.announce(token, &announced, 0).expect("address is announced");
                next(&mut peer_events, |event| match event {
                    Event::Announced { token, remote_id: 9, address } if *token == peer_token => {
                        assert_eq!(address.ip(), announced.address);
                        Some(())
                    }
                    _ => None,
                });
                manager.remove(token, 9).expect("address is withdrawn");
                next(&mut peer_events, |event| match event {
                    Event::Removed { token, remote_id: 9 } if *token == peer_token => Some(()),
                    _ => None,
                });

                manager.subflow_destroy(token, created.local, created.remote).expect("subflow is closed");
                let ended = next(&mut events, |event| match event {
                    Event::SubflowClosed(subflow) => Some(subflow.clone()),
                    _ => None,
                });
                assert_eq!((ended.token, ended.local), (token, created.local));
                let gone = manager
                    .subflow_destroy(token, created.local, created.remote)
                    .expect_err("subflow does not exist");
                assert_eq!(gone.errno(), Some(libc::ESRCH));
                exchange(&mut client, &mut server);

                mptcp::abort(&client).expect("abort succeeds");
                drop((client, server));
                next(&mut events, |event| match event {
                    Event::Closed { token: closed } => (*closed == token).then_some(()),
                    _ => None,
                });
            }
        })
        .expect("namespace can be entered");
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
    let record = plait_linux::run_directory().expect("directory is created").join("path-manager");
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
