//! The path manager, netlink events, user-space managed sockets: in namespaces of their own, on the running kernel.

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
        match events.try_next().expect("events") {
            Some(event) => match wanted(&event) {
                Some(found) => return found,
                None => seen.push(event),
            },
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    panic!("the event did not come; these did: {seen:?}");
}

/// Connects `socket` over the first link: the client's end, the server's, and the listener, which refuses further
/// subflows once closed.
fn connected(net: &Topology, domain: Domain, socket: Socket) -> (Socket, Socket, Socket) {
    let (any, first) = match domain {
        Domain::IPV4 => ("0.0.0.0:0", net.server_v4[0]),
        _ => ("[::]:0", net.server_v6[0]),
    };
    let any: SocketAddr = any.parse().expect("an address");
    let listener = net
        .server
        .run(|| {
            let (listener, _) = mptcp::stream_socket(domain).expect("a socket");
            listener.bind(&any.into()).expect("a free port");
            listener.listen(8).expect("a listener");
            listener
        })
        .expect("the server's namespace");
    let port = listener.local_addr().expect("an address").as_socket().expect("an IP address").port();
    let first = SocketAddr::new(first.parse().expect("an address"), port);
    socket.connect(&first.into()).expect("a connection");
    let (server, _) = listener.accept().expect("a connection");
    (socket, server, listener)
}

fn exchange(client: &mut Socket, server: &mut Socket) {
    client.write_all(b"ping").expect("a write");
    server.read_exact(&mut [0; 4]).expect("a read");
    server.write_all(b"pong").expect("a write");
    client.read_exact(&mut [0; 4]).expect("a read");
}

#[test]
fn endpoints_and_limits_are_kept() {
    let Some(net) = Topology::new("endpoints_and_limits_are_kept") else { return };
    net.client
        .run(|| {
            let manager = PathManager::open().expect("a path manager");
            assert_eq!(manager.endpoints().expect("a list"), []);
            let limits = Limits { subflows: 3, add_addr_accepted: 2 };
            manager.set_limits(limits).expect("limits");
            assert_eq!(manager.limits().expect("limits"), limits);

            let v4 = Endpoint {
                address: "10.1.0.1".parse().expect("an address"),
                id: 3,
                port: 0,
                flags: Flags::SUBFLOW | Flags::BACKUP,
                if_index: interface_index("a0"),
            };
            let v6 = Endpoint {
                address: "fd00:2::1".parse().expect("an address"),
                id: 0,
                port: 4000,
                flags: Flags::SIGNAL,
                if_index: 0,
            };
            manager.add(&v4).expect("an endpoint");
            manager.add(&v6).expect("an endpoint");
            assert_eq!(manager.endpoint(3).expect("the endpoint"), v4);
            let list = manager.endpoints().expect("a list");
            assert_eq!(list.len(), 2);
            let found = list.iter().find(|endpoint| endpoint.address == v6.address).expect("the endpoint");
            assert_ne!(found.id, 0, "the kernel chose an identifier");
            assert_eq!(Endpoint { id: 0, ..*found }, v6);

            manager.set_flags(3, Flags::SUBFLOW).expect("a change");
            assert_eq!(manager.endpoint(3).expect("the endpoint").flags, Flags::SUBFLOW);
            manager.delete(&v4).expect("a deletion");
            manager.endpoint(3).expect_err("no endpoint");
            manager.flush().expect("a deletion");
            assert_eq!(manager.endpoints().expect("a list"), []);

            let error =
                manager.set_limits(Limits { subflows: 99, add_addr_accepted: 0 }).expect_err("a refusal");
            assert_eq!(error.errno(), Some(libc::EINVAL));
            let text = error.to_string();
            assert!(text.contains("99 subflows") && text.contains("limit"), "the kernel's words: {text}");
            let error = manager.delete(&v4).expect_err("a refusal");
            assert!(error.to_string().contains("10.1.0.1"), "{error}");
        })
        .expect("the client's namespace");
}

#[test]
fn the_kernel_manages_ordinary_sockets_and_user_space_its_own() {
    let Some(net) = Topology::new("the_kernel_manages_ordinary_sockets_and_user_space_its_own") else {
        return;
    };
    let setting = || std::fs::read_to_string("/proc/sys/net/mptcp/pm_type").expect("a setting");
    net.client
        .run(|| {
            let manager = PathManager::open().expect("a path manager");
            for address in ["10.2.0.1", "fd00:2::1"] {
                manager
                    .add(&Endpoint {
                        address: address.parse().expect("an address"),
                        id: 0,
                        port: 0,
                        flags: Flags::SUBFLOW,
                        if_index: interface_index("a1"),
                    })
                    .expect("an endpoint");
            }
            for domain in [Domain::IPV4, Domain::IPV6] {
                let before = setting();
                let sockets = pm::user_space_sockets(4, domain).expect("sockets");
                assert_eq!(setting(), before);
                assert_eq!(sockets.len(), 4);

                let mut events = Events::open().expect("events");
                let managed = sockets.into_iter().next().expect("a socket");
                let (mut managed, mut peer, _listener) = connected(&net, domain, managed);
                exchange(&mut managed, &mut peer);
                let (ordinary, _) = mptcp::stream_socket(domain).expect("a socket");
                let (mut ordinary, mut ordinary_peer, _listener) = connected(&net, domain, ordinary);
                exchange(&mut ordinary, &mut ordinary_peer);
                let token = Info::of(&ordinary).expect("information").token;
                // The ordinary connection, which began later, has got its subflow: the other would have too.
                next(&mut events, |event| match event {
                    Event::SubflowEstablished(subflow) => (subflow.token == token).then_some(()),
                    _ => None,
                });
                exchange(&mut managed, &mut peer);
                assert_eq!(FullInfo::of(&managed).expect("information").subflows.len(), 1);
                assert_eq!(FullInfo::of(&ordinary).expect("information").subflows.len(), 2);
            }
        })
        .expect("the client's namespace");
}

#[test]
fn a_subflow_is_made_changed_and_ended_from_user_space() {
    let Some(net) = Topology::new("a_subflow_is_made_changed_and_ended_from_user_space") else { return };
    net.client
        .run(|| {
            for (domain, local, remote, other) in [
                (Domain::IPV4, "10.2.0.1", "10.2.0.2", "10.9.0.1"),
                (Domain::IPV6, "fd00:2::1", "fd00:2::2", "fd00:9::1"),
            ] {
                let manager = PathManager::open().expect("a path manager");
                let mut events = Events::open().expect("events");
                let mut peer_events = net.server.run(Events::open).expect("the namespace").expect("events");
                let socket = pm::user_space_sockets(1, domain).expect("a socket").remove(0);
                let (mut client, mut server, _listener) = connected(&net, domain, socket);
                exchange(&mut client, &mut server);
                let token = Info::of(&client).expect("information").token;
                let peer_token = Info::of(&server).expect("information").token;
                let port =
                    server.local_addr().expect("an address").as_socket().expect("an IP address").port();

                let created = next(&mut events, |event| match event {
                    Event::Established(connection) => Some(connection.clone()),
                    _ => None,
                });
                assert_eq!(created.token, token);
                assert_eq!(Some(created.local), client.local_addr().expect("an address").as_socket());
                assert_eq!(Some(created.remote), client.peer_addr().expect("an address").as_socket());
                assert!(!created.server_side);
                let at_peer = next(&mut peer_events, |event| match event {
                    Event::Established(connection) => Some(connection.clone()),
                    _ => None,
                });
                assert_eq!((at_peer.token, at_peer.server_side), (peer_token, true));

                let index = interface_index("a1");
                let from = Local {
                    address: local.parse().expect("an address"),
                    id: 5,
                    if_index: index,
                    backup: false,
                };
                let to = SocketAddr::new(remote.parse().expect("an address"), port);
                manager.subflow_create(token, &from, to, 0).expect("a subflow");
                let made = next(&mut events, |event| match event {
                    Event::SubflowEstablished(subflow) => Some(subflow.clone()),
                    _ => None,
                });
                assert_eq!((made.token, made.remote, made.local.ip()), (token, to, from.address));
                assert_eq!((made.local_id, made.if_index, made.backup, made.error), (5, index, false, None));
                let subflows = FullInfo::of(&client).expect("information").subflows;
                assert_eq!(subflows.len(), 2);
                assert_eq!((subflows[1].local, subflows[1].remote), (made.local, made.remote));

                manager.set_backup(token, made.local, made.remote, true).expect("a change of priority");
                let lowered = next(&mut peer_events, |event| match event {
                    Event::SubflowPriority(subflow) => Some(subflow.clone()),
                    _ => None,
                });
                assert_eq!((lowered.token, lowered.backup, lowered.remote_id), (peer_token, true, 5));

                let announced = Local { address: other.parse().expect("an address"), id: 9, ..from };
                manager.announce(token, &announced, 0).expect("an announcement");
                next(&mut peer_events, |event| match event {
                    Event::Announced { token, remote_id: 9, address } if *token == peer_token => {
                        assert_eq!(address.ip(), announced.address);
                        Some(())
                    }
                    _ => None,
                });
                manager.remove(token, 9).expect("a withdrawal");
                next(&mut peer_events, |event| match event {
                    Event::Removed { token, remote_id: 9 } if *token == peer_token => Some(()),
                    _ => None,
                });

                manager.subflow_destroy(token, made.local, made.remote).expect("its end");
                let ended = next(&mut events, |event| match event {
                    Event::SubflowClosed(subflow) => Some(subflow.clone()),
                    _ => None,
                });
                assert_eq!((ended.token, ended.local), (token, made.local));
                let gone =
                    manager.subflow_destroy(token, made.local, made.remote).expect_err("no such subflow");
                assert_eq!(gone.errno(), Some(libc::ESRCH));
                exchange(&mut client, &mut server);

                mptcp::abort(&client).expect("an abort");
                drop((client, server));
                next(&mut events, |event| match event {
                    Event::Closed { token: closed } => (*closed == token).then_some(()),
                    _ => None,
                });
            }
        })
        .expect("the client's namespace");
}

#[test]
fn lost_events_are_reported() {
    let Some(net) = Topology::new("lost_events_are_reported") else { return };
    net.client
        .run(|| {
            let mut events = Events::open().expect("events");
            socket2::SockRef::from(&events).set_recv_buffer_size(1).expect("a small buffer");
            let kept: Vec<_> = (0..50)
                .map(|_| {
                    connected(&net, Domain::IPV4, mptcp::stream_socket(Domain::IPV4).expect("a socket").0)
                })
                .collect();
            drop(kept);
            next(&mut events, |event| (*event == Event::Lost).then_some(()));
        })
        .expect("the client's namespace");
}

#[test]
fn what_a_killed_process_left_is_put_back() {
    let Some(net) = Topology::new("what_a_killed_process_left_is_put_back") else { return };
    let record = plait_linux::run_directory().expect("a directory").join("path-manager");
    let setting = || {
        let path = "/proc/sys/net/mptcp/path_manager";
        let path =
            if std::fs::exists(path).expect("an answer") { path } else { "/proc/sys/net/mptcp/pm_type" };
        (path, std::fs::read_to_string(path).expect("a setting").trim().to_owned())
    };
    let leave = |value: &str| {
        let lock = std::fs::File::open(&record).expect("a record");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        let (path, before) = setting();
        let identity = NetNs::current().expect("a namespace").identity().expect("its identity");
        std::fs::write(&record, format!("{} {} {path} {before}\n", identity.device, identity.inode))
            .expect("a record");
        std::fs::write(path, value).expect("a change");
        before
    };
    let changed = |path: &str| if path.ends_with("pm_type") { "1" } else { "userspace" };

    pm::restore_after_crash().expect("a usable record");
    // Found by name from another namespace, as `doctor --clean` would. Another plait on this machine may be faster.
    let before = net.client.run(|| leave(changed(setting().0))).expect("the namespace");
    let said = pm::restore_after_crash().expect("a restoration");
    assert!(said.is_none_or(|text| text.contains(&before)));
    assert_eq!(net.client.run(setting).expect("the namespace").1, before);

    // The next start inside does the same before it does its own work.
    net.client
        .run(|| {
            leave(changed(setting().0));
            pm::user_space_sockets(1, Domain::IPV4).expect("a socket");
            assert_eq!(setting().1, before);
        })
        .expect("the namespace");
}
