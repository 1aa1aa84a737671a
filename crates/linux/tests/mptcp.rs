//! Sockets on the loopback interface, against the running kernel.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use plait_linux::State;
use plait_linux::mptcp::{self, FullInfo, Info, Protocol};
use socket2::{Domain, Socket, Type};

fn socket(domain: Domain, multipath: bool) -> Socket {
    if multipath {
        let (socket, protocol) = mptcp::stream_socket(domain).expect("a socket");
        assert_eq!(protocol, Protocol::Mptcp);
        socket
    } else {
        Socket::new(domain, Type::STREAM, None).expect("a socket")
    }
}

/// A client and the server's end of one connection; each end made as MPTCP or as TCP.
fn pair(domain: Domain, client_multipath: bool, server_multipath: bool) -> (Socket, Socket) {
    let any: SocketAddr = match domain {
        Domain::IPV4 => (Ipv4Addr::LOCALHOST, 0).into(),
        _ => (Ipv6Addr::LOCALHOST, 0).into(),
    };
    let listener = socket(domain, server_multipath);
    listener.bind(&any.into()).expect("a free port");
    listener.listen(1).expect("a listener");
    let client = socket(domain, client_multipath);
    client.connect(&listener.local_addr().expect("an address")).expect("a connection");
    let (server, _) = listener.accept().expect("a connection");
    for end in [&client, &server] {
        end.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    }
    (client, server)
}

fn no_mptcp(test: &str) -> bool {
    let missing = !matches!(mptcp::stream_socket(Domain::IPV4), Ok((_, Protocol::Mptcp)));
    if missing {
        println!("SKIP {test}: the kernel has no MPTCP, or it is off here");
    }
    missing
}

#[test]
fn info_counts_what_was_sent_and_acknowledged() {
    if no_mptcp("info_counts_what_was_sent_and_acknowledged") {
        return;
    }
    for domain in [Domain::IPV4, Domain::IPV6] {
        let (mut client, mut server) = pair(domain, true, true);
        let before = Info::of(&client).expect("information");
        client.write_all(&[7; 1000]).expect("a write");
        server.read_exact(&mut [0; 1000]).expect("a read");
        server.write_all(&[7; 10]).expect("a write");
        client.read_exact(&mut [0; 10]).expect("a read");

        let full = FullInfo::of(&client).expect("information");
        let peer = Info::of(&server).expect("information");
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

        let [subflow] = full.subflows.as_slice() else { panic!("one subflow: {:?}", full.subflows) };
        assert_eq!(Some(subflow.local), client.local_addr().expect("an address").as_socket());
        assert_eq!(Some(subflow.remote), client.peer_addr().expect("an address").as_socket());
        assert_eq!(subflow.tcp.state, State::Established);
        assert_eq!(subflow.tcp.bytes_sent, Some(1000));
        assert_eq!(subflow.tcp.bytes_received, 10);
        assert!(subflow.tcp.rtt_us > 0 && subflow.tcp.cwnd > 0 && subflow.tcp.mss > 0);
    }
}

#[test]
fn only_a_connection_that_speaks_mptcp_says_so() {
    if no_mptcp("only_a_connection_that_speaks_mptcp_says_so") {
        return;
    }
    for domain in [Domain::IPV4, Domain::IPV6] {
        for (client, server) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut a, mut b) = pair(domain, client, server);
            // Data both ways, so that a fallback is settled.
            a.write_all(b"ping").expect("a write");
            b.read_exact(&mut [0; 4]).expect("a read");
            b.write_all(b"pong").expect("a write");
            a.read_exact(&mut [0; 4]).expect("a read");
            assert_eq!(mptcp::is_mptcp(&a).expect("an answer"), client && server, "client {client} {server}");
            assert_eq!(mptcp::is_mptcp(&b).expect("an answer"), client && server, "server {client} {server}");
        }
    }
    assert!(mptcp::is_mptcp(std::fs::File::open("/dev/null").expect("a file")).is_err());
}

#[test]
fn an_aborted_connection_is_reset_at_the_peer() {
    let multipath = !no_mptcp("an_aborted_connection_is_reset_at_the_peer (MPTCP)");
    for domain in [Domain::IPV4, Domain::IPV6] {
        for multipath in if multipath { &[false, true][..] } else { &[false][..] } {
            let (mut a, mut b) = pair(domain, *multipath, *multipath);
            a.write_all(b"unread").expect("a write");
            b.write_all(b"unread").expect("a write");
            mptcp::abort(&b).expect("an abort");
            let mut got = Vec::new();
            let error = a.read_to_end(&mut got).expect_err("a reset, not an end of stream");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "multipath {multipath}");

            let (a, mut b) = pair(domain, *multipath, *multipath);
            mptcp::abort(&a).expect("an abort");
            let error = b.read(&mut [0]).expect_err("a reset, not an end of stream");
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
