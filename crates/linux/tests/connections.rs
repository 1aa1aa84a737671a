//! Keys and tokens of real connections, against what the kernel says elsewhere and against RFC 8684.

mod topology;

use std::net::SocketAddr;

use plait_linux::connections::{Connection, Connections};
use plait_linux::mptcp::{FullInfo, Info, Key, Token};
use sha2::{Digest, Sha256};
use socket2::{Domain, Socket};
use topology::{Topology, connect};

/// RFC 8684, section 3.2: the token is the most significant 32 bits of the SHA-256 of the key.
fn token_of(key: &Key) -> Token {
    let hash = Sha256::digest(key.as_bytes());
    Token(u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]))
}

fn find(list: &[Connection], socket: &Socket) -> Connection {
    let token = Info::of(socket).expect("information").token;
    list.iter().find(|connection| connection.token == token).expect("the connection").clone()
}

#[test]
fn keys_hash_to_tokens_and_are_the_peers() {
    let Some(net) = Topology::new("keys_hash_to_tokens_and_are_the_peers") else { return };
    let program = Connections::load().expect("a program");
    for (domain, first, second, local) in [
        (Domain::IPV4, "10.1.0.2", "10.2.0.2", "10.2.0.1"),
        (Domain::IPV6, "fd00:1::2", "fd00:2::2", "fd00:2::1"),
        // IPv4 by IPv6 sockets.
        (Domain::IPV6, "::ffff:10.1.0.2", "10.2.0.2", "10.2.0.1"),
    ] {
        let (client, server) = connect(&net, domain, [first, second], local, false);
        let port = server.local_addr().expect("an address").as_socket().expect("an IP address").port();
        let to = SocketAddr::new(second.parse().expect("an address"), port);

        let at_client = net.client.run(|| program.list()).expect("the namespace").expect("a list");
        let at_server = net.server.run(|| program.list()).expect("the namespace").expect("a list");
        assert_eq!((at_client.len(), at_server.len()), (1, 1), "each namespace shows its own");
        let (c, s) = (find(&at_client, &client), find(&at_server, &server));
        for connection in [&c, &s] {
            assert_eq!(token_of(&connection.local_key), connection.token);
        }
        let remote = |connection: &Connection| connection.remote_key.clone().expect("the peer's key");
        assert_eq!(remote(&c).as_bytes(), s.local_key.as_bytes());
        assert_eq!(remote(&s).as_bytes(), c.local_key.as_bytes());

        let info = FullInfo::of(&client).expect("information");
        assert_eq!((c.bytes_sent, c.bytes_received), (info.info.bytes_sent, info.info.bytes_received));
        let mut expected: Vec<_> =
            info.subflows.iter().map(|s| (s.local, s.remote, s.tcp.bytes_received)).collect();
        let mut found: Vec<_> = c.subflows.iter().map(|s| (s.local, s.remote, s.bytes_received)).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(found.len(), 2);
        assert!(c.subflows.iter().any(|subflow| subflow.remote == to));

        let text = format!("{c:?}");
        let secret = u64::from_be_bytes(*c.local_key.as_bytes());
        assert!(!text.contains(&secret.to_string()) && !text.contains(&format!("{secret:x}")), "{text}");
    }
}
