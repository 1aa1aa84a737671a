//! MPTCP sockets on the loopback interface of the running kernel.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use plait_linux::State;
use plait_linux::mptcp::{self, FullInfo, Info, Protocol};
use socket2::{Domain, Socket, Type};

fn socket(domain: Domain, multipath: bool) -> Socket {
    if multipath {
        let (socket, protocol) = mptcp::stream_socket(domain).expect("socket opens");
        assert_eq!(protocol, Protocol::Mptcp);
        socket
    } else {
        Socket::new(domain, Type::STREAM, None).expect("socket opens")
    }
}

/// The client's and the server's end of a connection; each end is an MPTCP or a TCP socket.
fn pair(domain: Domain, client_multipath: bool, server_multipath: bool) -> (Socket, Socket) {
    let any: SocketAddr = match domain {
        Domain::IPV4 => (Ipv4Addr::LOCALHOST, 0).into(),
        _ => (Ipv6Addr::LOCALHOST, 0).into(),
    };
    let listener = socket(domain, server_multipath);
    listener.bind(&any.into()).expect("port is free");
    listener.listen(1).expect("socket listens");
    let client = socket(domain, client_multipath);
    client.connect(&listener.local_addr().expect("address is valid")).expect("connection succeeds");
    let (server, _) = listener.accept().expect("connection succeeds");
    for end in [&client, &server] {
        end.set_read_timeout(Some(Duration::from_secs(5))).expect("timeout is set");
    }
    (client, server)
}

fn no_mptcp(test: &str) -> bool {
    let missing = !matches!(mptcp::stream_socket(Domain::IPV4), Ok((_, Protocol::Mptcp)));
    if missing {
        println!("SKIP {test}: the kernel has no MPTCP, or it is disabled");
    }
    missing
}

#[test]
fn info_counts_sent_and_acknowledged_bytes() {
    if no_mptcp("info_counts_sent_and_acknowledged_bytes") {
        return;
    }
    for domain in [Domain::IPV4, Domain::IPV6] {
        let (mut client, mut server) = pair(domain, true, true);
        let before = Info::of(&client).expect("state is readable");
        client.write_all(&[7; 1000]).expect("write succeeds");
        server.read_exact(&mut [0; 1000]).expect("read succeeds");
        server.write_all(&[7; 10]).expect("write succeeds");
        client.read_exact(&mut [0; 10]).expect("read succeeds");

        let full = FullInfo::of(&client).expect("state is readable");
        let peer = Info::of(&server).expect("state is readable");
        assert_eq!(full.info.token, before.token);
        assert_ne!(full.info.token, peer.token);
        assert!(full.info.remote_key_received && !full.info.fallback);
        assert_eq!(full.info.write_seq.wrapping_sub(before.write_seq), 1000);
        assert_eq!(peer.rcv_nxt, full.info.write_seq);
        assert_eq!(full.info.extra_subflows, 0);
        if let Some(sent) = full.info.bytes_sent {
            assert_eq!(sent, 1000);
            assert_eq!(peer.bytes_received, Some(1000));
        }

        let [subflow] = full.subflows.as_slice() else {
            panic!("expected one subflow, got {:?}", full.subflows)
        };
        assert_eq!(Some(subflow.local), client.local_addr().expect("address is valid").as_socket());
        assert_eq!(Some(subflow.remote), client.peer_addr().expect("address is valid").as_socket());
        assert_eq!(subflow.tcp.state, State::Established);
        assert_eq!(subflow.tcp.bytes_sent, Some(1000));
        assert_eq!(subflow.tcp.bytes_received, 10);
        assert!(subflow.tcp.rtt_us > 0 && subflow.tcp.cwnd > 0 && subflow.tcp.mss > 0);
    }
}

#[test]
fn is_mptcp_only_if_both_ends_use_it() {
    if no_mptcp("is_mptcp_only_if_both_ends_use_it") {
        return;
    }
    for domain in [Domain::IPV4, Domain::IPV6] {
        for (client, server) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut a, mut b) = pair(domain, client, server);
            // After data in both directions, a fallback is complete.
            a.write_all(b"ping").expect("write succeeds");
            b.read_exact(&mut [0; 4]).expect("read succeeds");
            b.write_all(b"pong").expect("write succeeds");
            a.read_exact(&mut [0; 4]).expect("read succeeds");
            let found = [&a, &b].map(|end| mptcp::is_mptcp(end).expect("state is readable"));
            assert_eq!(found, [client && server; 2], "client {client}, server {server}");
        }
    }
    assert!(mptcp::is_mptcp(std::fs::File::open("/dev/null").expect("file opens")).is_err());
}

#[test]
fn share_receive_buffer_keeps_small_and_fixed_buffers_and_rcvlowat() {
    if no_mptcp("share_receive_buffer_keeps_small_and_fixed_buffers_and_rcvlowat") {
        return;
    }
    let (mut a, b) = pair(Domain::IPV4, true, true);
    let size = b.recv_buffer_size().expect("size is readable");
    assert!(
        !mptcp::share_receive_buffer(&b).expect("options are set"),
        "{size} bytes are what subflows have"
    );
    assert_eq!(b.recv_buffer_size().expect("size is readable"), size);

    // A size of its own is not adapted.
    b.set_recv_buffer_size(1 << 20).expect("size is set");
    let size = b.recv_buffer_size().expect("size is readable");
    assert!(!mptcp::share_receive_buffer(&b).expect("options are set"));
    assert_eq!(b.recv_buffer_size().expect("size is readable"), size);
    // It is readable with a single byte.
    b.set_nonblocking(true).expect("mode is set");
    a.write_all(b"x").expect("write succeeds");
    let mut descriptors = [rustix::event::PollFd::new(&b, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut descriptors, Some(&timeout)).expect("poll succeeds"), 1);
}

#[test]
fn abort_resets_the_connection_at_the_peer() {
    let multipath = !no_mptcp("abort_resets_the_connection_at_the_peer (MPTCP)");
    for domain in [Domain::IPV4, Domain::IPV6] {
        for multipath in if multipath { &[false, true][..] } else { &[false][..] } {
            let (mut a, mut b) = pair(domain, *multipath, *multipath);
            a.write_all(b"unread").expect("write succeeds");
            b.write_all(b"unread").expect("write succeeds");
            mptcp::abort(&b).expect("abort succeeds");
            let mut got = Vec::new();
            let error = a.read_to_end(&mut got).expect_err("connection is reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "multipath {multipath}");

            let (a, mut b) = pair(domain, *multipath, *multipath);
            mptcp::abort(&a).expect("abort succeeds");
            let error = b.read(&mut [0]).expect_err("connection is reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "multipath {multipath}");
        }
    }
}

#[test]
fn keys_are_never_printed() {
    let key = mptcp::Key::new([0xde; 8]);
    assert_eq!(format!("{key:?}"), "Key(..)");
    assert_eq!(key.as_bytes(), &[0xde; 8]);
    assert_eq!(format!("{:?} {}", mptcp::Token(0xabc), mptcp::Token(0xabc)), "Token(00000abc) 00000abc");
}
