//! Compares samples of real connections with the state of their sockets.

mod topology;

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use plait_linux::State;
use plait_linux::diag::{Closed, Sample, Sockets, Watch};
use plait_linux::mptcp::{FullInfo, Info};
use socket2::{Domain, Socket, Type};
use topology::{Topology, connect, wait_for_subflows};

fn watch(host: &plait_linux::netns::Named) -> Watch {
    host.run(|| Watch::open().expect("watch opens")).expect("namespace can be entered")
}

fn of<'a>(samples: &'a [Sample], socket: &Socket) -> &'a Sample {
    let token = Info::of(socket).expect("state is readable").token;
    samples.iter().find(|sample| sample.token == token).expect("connection is listed")
}

#[test]
fn samples_match_socket_state() {
    let Some(net) = Topology::new("samples_match_socket_state") else { return };
    for (domain, to, local) in [
        (Domain::IPV4, ["10.1.0.2", "10.2.0.2"], "10.2.0.1"),
        (Domain::IPV6, ["fd00:1::2", "fd00:2::2"], "fd00:2::1"),
        // IPv4 over IPv6 sockets.
        (Domain::IPV6, ["::ffff:10.1.0.2", "10.2.0.2"], "10.2.0.1"),
    ] {
        let (client, server) = connect(&net, domain, to, local, true);
        let (mut at_client, mut at_server) = (watch(&net.client), watch(&net.server));
        let (c, s) =
            (at_client.sample().expect("sample is taken"), at_server.sample().expect("sample is taken"));
        assert_eq!((c.len(), s.len()), (1, 1), "only connections of the same namespace are listed");
        for (samples, socket) in [(&c, &client), (&s, &server)] {
            let sample = of(samples, socket);
            let own = FullInfo::of(socket).expect("state is readable");
            let connection = sample.connection.as_ref().expect("connection is open");
            assert_eq!(connection.state, State::Established);
            assert_eq!(connection.bytes_sent, own.info.bytes_sent);
            assert_eq!(connection.bytes_received, own.info.bytes_received);
            assert_eq!(connection.bytes_unacked, 0);
            let mut found: Vec<_> = sample
                .subflows
                .iter()
                .map(|s| (s.local, s.remote, s.tcp.rtt_us, s.tcp.bytes_acked, s.tcp.bytes_received))
                .collect();
            let mut expected: Vec<_> = own
                .subflows
                .iter()
                .map(|s| (s.local, s.remote, s.tcp.rtt_us, s.tcp.bytes_acked, s.tcp.bytes_received))
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected);
            let [initial, joined] = sample.subflows.as_slice() else {
                panic!("expected two subflows, got {sample:?}")
            };
            assert_eq!((initial.local, initial.remote), (connection.local, connection.remote));
            assert_eq!((initial.joined, joined.joined), (Some(false), Some(true)));
            assert!(joined.backup() && !initial.backup());
            let side = if std::ptr::eq(samples, &c) { "a" } else { "b" };
            assert_eq!(initial.interface.as_deref(), Some(format!("{side}0").as_str()));
            assert_eq!(joined.interface.as_deref(), Some(format!("{side}1").as_str()));
            let text = serde_json::to_string(sample).expect("sample is serialized");
            let read: Sample = serde_json::from_str(&text).expect("sample is taken");
            // JSON numbers are decimal.
            assert!((read.time - sample.time).abs() < 1e-6);
            let mut expected = sample.clone();
            // Not serialized.
            for subflow in &mut expected.subflows {
                let tcp = &mut subflow.tcp;
                (tcp.window_scales, tcp.unanswered_probes, tcp.backoff, tcp.last_ack_ms) = (None, 0, 0, 0);
                tcp.delivered = None;
            }
            assert_eq!(Sample { time: sample.time, ..read }, expected);
        }
    }
}

#[test]
fn reports_final_statistics_of_closed_subflows() {
    let Some(net) = Topology::new("reports_final_statistics_of_closed_subflows") else { return };
    for client_closes_first in [true, false] {
        let (mut client, mut server) =
            connect(&net, Domain::IPV4, ["10.1.0.2", "10.2.0.2"], "10.2.0.1", true);
        let (mut at_client, mut at_server) = (watch(&net.client), watch(&net.server));
        let carried = |samples: &[Sample]| {
            let subflows = samples.iter().flat_map(|sample| &sample.subflows);
            let counters = subflows.map(|s| (s.tcp.bytes_sent.unwrap_or(0), s.tcp.bytes_received));
            counters.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        assert_eq!(carried(&at_client.sample().expect("sample is taken")), (5000, 7));
        assert_eq!(carried(&at_server.sample().expect("sample is taken")), (7, 5000));
        client.write_all(&[2; 3000]).expect("write succeeds");
        server.read_exact(&mut [0; 3000]).expect("read succeeds");
        let (first, second) = if client_closes_first { (client, server) } else { (server, client) };
        drop(first);
        thread::sleep(Duration::from_millis(20));
        drop(second);
        for (watch, sent, received) in [(&mut at_client, 8000, 7), (&mut at_server, 7, 8000)] {
            let mut ended = Vec::new();
            for _ in 0..100 {
                thread::sleep(Duration::from_millis(10));
                let samples = watch.sample().expect("sample is taken");
                ended.extend(samples.into_iter().map(|sample| Sample {
                    subflows: sample.subflows.into_iter().filter(|s| s.closed.is_some()).collect(),
                    ..sample
                }));
                if ended.iter().map(|sample| sample.subflows.len()).sum::<usize>() == 2 {
                    break;
                }
            }
            if !watch.reports_every_close() {
                println!(
                    "SKIP reports_final_statistics_of_closed_subflows: the kernel rejects the BPF program"
                );
                return;
            }
            let mut closed = ended.iter().flat_map(|sample| &sample.subflows).map(|s| s.closed);
            assert!(closed.all(|closed| closed == Some(Closed::Final)), "{ended:?}");
            let (all_sent, all_received) = carried(&ended);
            assert_eq!(all_sent, sent);
            // Each FIN counts as one byte.
            assert!((received..=received + 2).contains(&all_received), "{all_received}");
            assert!(
                watch.sample().expect("sample is taken").is_empty(),
                "each closed subflow is reported once"
            );
        }
    }
}

#[test]
fn reports_connections_between_two_samples() {
    let Some(net) = Topology::new("reports_connections_between_two_samples") else { return };
    let mut watch = watch(&net.client);
    if !watch.reports_every_close() {
        println!("SKIP reports_connections_between_two_samples: the kernel rejects the BPF program");
        return;
    }
    assert!(watch.sample().expect("sample is taken").is_empty());
    let (client, server) = connect(&net, Domain::IPV4, ["10.1.0.2", "10.2.0.2"], "10.2.0.1", true);
    let token = Info::of(&client).expect("state is readable").token;
    drop(client);
    drop(server);
    thread::sleep(Duration::from_millis(300));
    let samples = watch.last_sample().expect("sample is taken");
    let [sample] = samples.as_slice() else { panic!("expected one connection, got {samples:?}") };
    assert_eq!(sample.token, token);
    let counters: Vec<_> = sample.subflows.iter().map(|s| (s.joined, s.closed, s.tcp.bytes_sent)).collect();
    let closed = Some(Closed::Final);
    assert_eq!(counters, [(Some(false), closed, Some(5000)), (Some(true), closed, Some(0))]);
}

#[test]
fn aborts_one_subflow_and_no_other_connection() {
    let Some(net) = Topology::new("aborts_one_subflow_and_no_other_connection") else { return };
    for (domain, to, local) in [
        (Domain::IPV4, ["10.1.0.2", "10.2.0.2"], "10.2.0.1"),
        (Domain::IPV6, ["fd00:1::2", "fd00:2::2"], "fd00:2::1"),
        (Domain::IPV6, ["::ffff:10.1.0.2", "10.2.0.2"], "10.2.0.1"),
    ] {
        let (mut client, mut server) = connect(&net, domain, to, local, true);
        let subflows = FullInfo::of(&server).expect("state is readable").subflows;
        let joined = subflows.iter().find(|subflow| subflow.remote.ip().to_string() == local);
        let (local, remote) = joined.map(|subflow| (subflow.local, subflow.remote)).expect("it was joined");
        let mut sockets =
            net.server.run(Sockets::open).expect("namespace can be entered").expect("sockets open");
        assert!(sockets.abort_subflow(local, remote, 0).expect("it is aborted"));
        assert!(!sockets.abort_subflow(local, remote, 0).expect("there is none any longer"));
        wait_for_subflows(&client, 1);
        client.write_all(b"ping").expect("write succeeds");
        server.read_exact(&mut [0; 4]).expect("the connection continues");
    }
    let plain = net.server.run(|| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("any port");
        let address = listener.local_addr().expect("it is bound");
        let stream = std::net::TcpStream::connect(address).expect("it listens");
        let local = stream.local_addr().expect("it is connected");
        let mut sockets = Sockets::open().expect("sockets open");
        sockets.abort_subflow(local, address, 0).expect("the kernel answers")
    });
    assert!(!plain.expect("namespace can be entered"), "a TCP connection is none of MPTCP's");
}

#[test]
fn counts_pending_connections_of_a_listener() {
    for loopback in ["127.0.0.1:0", "[::1]:0"] {
        let address: std::net::SocketAddr = loopback.parse().expect("an address");
        let socket = || Socket::new(Domain::for_address(address), Type::STREAM, None).expect("socket opens");
        let listener = socket();
        if listener.bind(&address.into()).is_err() {
            println!("SKIP counts_pending_connections_of_a_listener: no IPv6");
            continue;
        }
        // Which accepts two at most; further SYNs are not answered.
        listener.listen(1).expect("it listens");
        let address = listener.local_addr().expect("it is bound");
        let port = address.as_socket().expect("an IP address").port();
        let mut sockets = Sockets::open().expect("sockets open");
        let mut pending = || sockets.pending_connections(port).expect("the kernel answers");
        assert_eq!(pending(), 0);
        let programs = [socket(), socket(), socket()];
        for (number, program) in programs.iter().enumerate() {
            program.set_nonblocking(true).expect("non-blocking");
            let _ = program.connect(&address);
            assert_eq!(pending(), number + 1);
        }
        listener.accept().expect("it is established");
        assert_eq!(pending(), 2);
    }
}
