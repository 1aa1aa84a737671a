//! Interfaces and subflows of tests.

use std::net::SocketAddr;

use plait_linux::interfaces::{Address, Interface, Scope};
use plait_linux::mptcp::{Info, Subflow, Token};
use plait_linux::{State, TcpInfo};
use serde_json::json;

/// A subflow by the path with this number, with a round-trip time of 50 ms, on which nothing is under way.
pub(crate) fn subflow(number: u8, state: State) -> Subflow {
    let tcp = json!({
        "state": state, "rtt_us": 50_000, "rto_us": 250_000, "unacked": 0, "rtt_variance_us": 0, "cwnd": 10,
        "mss": 1428, "lost": 0, "retransmissions": 0, "bytes_acked": 0, "bytes_received": 0
    });
    let tcp: TcpInfo = serde_json::from_value(tcp).expect("it is complete");
    let local = SocketAddr::from(([10, 0, number, 1], 1000));
    Subflow { local, remote: SocketAddr::from(([10, 0, 0, 2], 443)), tcp }
}

/// A connection that has sent up to `write_seq`, of which the peer has acknowledged what precedes `snd_una`.
pub(crate) fn connection_info(snd_una: u64, write_seq: u64) -> Info {
    Info {
        token: Token(1),
        write_seq,
        snd_una,
        rcv_nxt: 0,
        extra_subflows: 1,
        subflows: None,
        addresses_signalled: 0,
        addresses_accepted: 0,
        local_addresses_used: 0,
        fallback: false,
        remote_key_received: true,
        checksums: false,
        bytes_sent: None,
        bytes_received: None,
        bytes_retransmitted: None,
        bytes_acked: None,
        retransmits: None,
    }
}

/// An interface that is up, with these addresses of 24 bits of network.
pub(super) fn interface(name: &str, addresses: &[&str]) -> Interface {
    let address = |text: &&str| Address {
        ip: text.parse().expect("an address"),
        prefix: 24,
        scope: Scope::Global,
        usable: true,
    };
    Interface {
        index: 1,
        name: name.into(),
        up: true,
        running: true,
        loopback: false,
        ethernet: true,
        software: true,
        bridge: false,
        port: false,
        mtu: 1500,
        addresses: addresses.iter().map(address).collect(),
    }
}
