//! Messages of `sock_diag(7)` for TCP and MPTCP sockets.

use std::net::{IpAddr, SocketAddr};

use super::Error;
use crate::bytes::{array_at, ip_address, u8_at, u32_at, unmapped};
use crate::mptcp::{Info, Token};
use crate::netlink::Socket;
use crate::netlink::message::{Attributes, Message, NLM_F_ACK, Request};
use crate::tcp_info::{State, TcpInfo};

/// The properties of every socket (`struct inet_diag_msg`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Identifies the socket; not reused until the host restarts.
    pub(super) cookie: u64,
    pub(super) state: State,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Index of the interface it is bound to; 0: none.
    pub(super) if_index: u32,
    pub(super) uid: u32,
    /// Inode of the program's socket; 0 if no program has it open. Subflows have that of their connection.
    pub(super) inode: u32,
}

/// An MPTCP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MptcpSocket {
    pub(super) head: Head,
    pub(super) info: Info,
}

/// A TCP socket that is a subflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SubflowSocket {
    pub(super) head: Head,
    pub(super) tcp: TcpInfo,
    /// Its congestion control algorithm.
    pub(super) congestion_control: Option<String>,
    /// The token of its connection; requires `CAP_NET_ADMIN`.
    pub(super) token: Option<Token>,
    /// Its MPTCP state; requires `CAP_NET_ADMIN` before kernel 6.15.
    pub(super) details: Option<Details>,
}

/// The MPTCP state of a subflow (`MPTCP_SUBFLOW_ATTR_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Details {
    pub(super) flags: u32,
    pub(super) local_id: u8,
    pub(super) remote_id: u8,
}

impl Details {
    /// Whether it was created by MP_JOIN, of either end.
    pub(super) fn joined(self) -> bool {
        self.flags & 0b1100 != 0
    }

    /// Whether the peer requests it as a backup.
    pub(super) fn backup_remote(self) -> bool {
        self.flags & 0b1_0000 != 0
    }

    /// Whether this end requests it as a backup.
    pub(super) fn backup_local(self) -> bool {
        self.flags & 0b10_0000 != 0
    }
}

/// Lists the current MPTCP connections.
pub(super) fn mptcp_sockets(socket: &mut Socket) -> Result<Vec<MptcpSocket>, Error> {
    let missing =
        Error::Missing { protocol: "MPTCP", option: "CONFIG_INET_MPTCP_DIAG", module: "mptcp_diag" };
    let protocol = libc::IPPROTO_MPTCP as u32;
    list(socket, (protocol, "MPTCP"), missing, |family| header(family, protocol), MptcpSocket::read)
}

/// Lists the current subflows.
pub(super) fn subflow_sockets(socket: &mut Socket) -> Result<Vec<SubflowSocket>, Error> {
    list_tcp(socket, |family| header(family, libc::IPPROTO_TCP as u32), SubflowSocket::read)
}

/// Lists the TCP sockets whose SYN to this port is not answered.
pub(super) fn syn_sent_sockets(socket: &mut Socket, port: u16) -> Result<Vec<Head>, Error> {
    list_tcp(socket, |family| header_for_state(family, TCP_SYN_SENT, DESTINATION_PORT, port), Head::read)
}

/// Lists the TCP listeners on this port, with the number of connections that they have not accepted.
pub(super) fn listening_sockets(socket: &mut Socket, port: u16) -> Result<Vec<(Head, u32)>, Error> {
    let read = |message: &Message| Some((Head::read(message)?, u32_at(message.payload, ACCEPT_QUEUE)?));
    list_tcp(socket, |family| header_for_state(family, TCP_LISTEN, SOURCE_PORT, port), read)
}

fn header_for_state(family: u8, state: u32, port_at: usize, port: u16) -> [u8; REQUEST] {
    let mut header = header(family, libc::IPPROTO_TCP as u32);
    header[4..8].copy_from_slice(&(1u32 << state).to_ne_bytes());
    header[port_at..][..2].copy_from_slice(&port.to_be_bytes());
    header
}

/// Looks up a connection by its token.
pub(super) fn mptcp_socket(socket: &mut Socket, token: Token) -> Result<Option<MptcpSocket>, Error> {
    let mut header = header(libc::AF_INET as u8, libc::IPPROTO_MPTCP as u32);
    // The kernel looks up an MPTCP socket by its token only, passed as the cookie.
    header[COOKIE..][..4].copy_from_slice(&token.0.to_ne_bytes());
    lookup(socket, &header, libc::IPPROTO_MPTCP as u32, "MPTCP", MptcpSocket::read)
}

/// Looks up the TCP socket between two addresses that is bound to an interface or, with 0, to none.
pub(super) fn tcp_socket(
    socket: &mut Socket,
    local: SocketAddr,
    remote: SocketAddr,
    if_index: u32,
) -> Result<Option<(Head, TcpInfo)>, Error> {
    let header = tcp_header(local, remote, if_index, None);
    lookup(socket, &header, libc::IPPROTO_TCP as u32, "TCP", read_freed)
}

/// As [`tcp_socket`], if that is a subflow.
pub(super) fn subflow_socket(
    socket: &mut Socket,
    local: SocketAddr,
    remote: SocketAddr,
    if_index: u32,
) -> Result<Option<SubflowSocket>, Error> {
    let header = tcp_header(local, remote, if_index, None);
    let found = lookup(socket, &header, libc::IPPROTO_TCP as u32, "TCP", SubflowSocket::read)?;
    Ok(found.filter(|subflow| subflow.token.is_some()))
}

/// Aborts a TCP socket: the kernel sends a reset and frees what it had to send. Returns whether it existed.
pub(super) fn abort(socket: &mut Socket, head: &Head) -> Result<bool, Error> {
    let header = tcp_header(head.local, head.remote, head.if_index, Some(head.cookie));
    match socket.request(Request::new(SOCK_DESTROY, NLM_F_ACK, &header), |_| ()) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
        Err(reason) => Err(Error::Abort(reason)),
    }
}

/// A request for the TCP socket between two addresses, with this cookie or with any.
fn tcp_header(local: SocketAddr, remote: SocketAddr, if_index: u32, cookie: Option<u64>) -> [u8; REQUEST] {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut header = header(family as u8, libc::IPPROTO_TCP as u32);
    for (port, address, end) in [(SOURCE_PORT, 12, local), (DESTINATION_PORT, 28, remote)] {
        header[port..][..2].copy_from_slice(&end.port().to_be_bytes());
        match end.ip() {
            IpAddr::V4(ip) => header[address..][..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => header[address..][..16].copy_from_slice(&ip.octets()),
        }
    }
    header[44..48].copy_from_slice(&if_index.to_ne_bytes());
    // The low word first, in either byte order.
    let cookie = cookie.unwrap_or(u64::MAX);
    header[COOKIE..][..4].copy_from_slice(&(cookie as u32).to_ne_bytes());
    header[COOKIE + 4..].copy_from_slice(&((cookie >> 32) as u32).to_ne_bytes());
    header
}

fn lookup<T>(
    socket: &mut Socket,
    header: &[u8],
    protocol: u32,
    name: &'static str,
    read: impl Fn(&Message) -> Option<T>,
) -> Result<Option<T>, Error> {
    let request = Request::new(SOCK_DIAG_BY_FAMILY, NLM_F_ACK, header)
        .attribute(INET_DIAG_REQ_PROTOCOL, &protocol.to_ne_bytes());
    let mut found = None;
    match socket.request(request, |message| found = found.take().or(read(message))) {
        Ok(()) => Ok(found),
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        Err(reason) => Err(Error::Refused { protocol: name, reason }),
    }
}

/// Parses the kernel's notification that a TCP socket was freed, with its final statistics. It does not tell whether the
/// socket was a subflow.
pub(super) fn read_freed(message: &Message) -> Option<(Head, TcpInfo)> {
    let head = Head::read(message)?;
    Some((head, TcpInfo::parse(attributes(message).find(INET_DIAG_INFO)?)?))
}

fn list_tcp<T>(
    socket: &mut Socket,
    header: impl Fn(u8) -> [u8; REQUEST],
    read: impl Fn(&Message) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let missing = Error::Missing { protocol: "TCP", option: "CONFIG_INET_DIAG", module: "tcp_diag" };
    list(socket, (libc::IPPROTO_TCP as u32, "TCP"), missing, header, read)
}

fn list<T>(
    socket: &mut Socket,
    (protocol, name): (u32, &'static str),
    missing: Error,
    header: impl Fn(u8) -> [u8; REQUEST],
    read: impl Fn(&Message) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let header = header(family as u8);
        let request = |flags| {
            // The protocol is an attribute as well, as the number of MPTCP exceeds a byte.
            Request::new(SOCK_DIAG_BY_FAMILY, flags, &header)
                .attribute(INET_DIAG_REQ_PROTOCOL, &protocol.to_ne_bytes())
        };
        match socket.dump(request, &read) {
            Ok(list) => found.extend(list),
            Err(error) if error.errno() == Some(libc::ENOENT) => return Err(missing),
            Err(reason) => return Err(Error::Refused { protocol: name, reason }),
        }
    }
    Ok(found)
}

/// `struct inet_diag_req_v2`
fn header(family: u8, protocol: u32) -> [u8; REQUEST] {
    let mut header = [0; REQUEST];
    header[0] = family;
    header[1] = u8::try_from(protocol).unwrap_or(0);
    header[2] = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1);
    header[4..8].copy_from_slice(&STATES.to_ne_bytes());
    header
}

impl Head {
    fn read(message: &Message) -> Option<Head> {
        let bytes = message.payload;
        if message.kind != SOCK_DIAG_BY_FAMILY {
            return None;
        }
        let width = match i32::from(u8_at(bytes, 0)?) {
            libc::AF_INET => 4,
            libc::AF_INET6 => 16,
            _ => return None,
        };
        let address = |offset, port| {
            let ip: IpAddr = ip_address(bytes.get(offset..offset + width)?)?;
            Some(unmapped(SocketAddr::new(ip, array_at(bytes, port).map(u16::from_be_bytes)?)))
        };
        Some(Head {
            cookie: u64::from(u32_at(bytes, 44)?) | u64::from(u32_at(bytes, 48)?) << 32,
            state: State::from_number(u8_at(bytes, 1)?)?,
            local: address(8, 4)?,
            remote: address(24, 6)?,
            if_index: u32_at(bytes, 40)?,
            uid: u32_at(bytes, 64)?,
            inode: u32_at(bytes, 68)?,
        })
    }
}

impl MptcpSocket {
    fn read(message: &Message) -> Option<MptcpSocket> {
        let head = Head::read(message)?;
        let info = Info::parse(attributes(message).find(INET_DIAG_INFO)?)?;
        Some(MptcpSocket { head, info })
    }
}

impl SubflowSocket {
    fn read(message: &Message) -> Option<SubflowSocket> {
        let head = Head::read(message)?;
        let attributes = attributes(message);
        let upper = attributes.nested(INET_DIAG_ULP_INFO);
        if attributes.find(INET_DIAG_ULP_INFO).is_some() && text(upper.find(INET_ULP_INFO_NAME)?) != "mptcp" {
            return None;
        }
        let mptcp = upper.nested(INET_ULP_INFO_MPTCP);
        let details = mptcp.u32(MPTCP_SUBFLOW_ATTR_FLAGS).map(|flags| Details {
            flags,
            local_id: mptcp.u8(MPTCP_SUBFLOW_ATTR_ID_LOC).unwrap_or(0),
            remote_id: mptcp.u8(MPTCP_SUBFLOW_ATTR_ID_REM).unwrap_or(0),
        });
        Some(SubflowSocket {
            tcp: TcpInfo::parse(attributes.find(INET_DIAG_INFO)?)?,
            congestion_control: attributes.find(INET_DIAG_CONG).map(text),
            token: mptcp.u32(MPTCP_SUBFLOW_ATTR_TOKEN_LOC).filter(|token| *token != 0).map(Token),
            details,
            head,
        })
    }
}

fn attributes<'a>(message: &Message<'a>) -> Attributes<'a> {
    message.attributes(HEAD)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// The states with statistics: all but TIME-WAIT, CLOSED, LISTEN and connection requests.
const STATES: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
/// Size of `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// Offsets of the ports in it.
const SOURCE_PORT: usize = 8;
const DESTINATION_PORT: usize = 10;
/// Offset of the cookie in it: two words; all ones match any socket.
const COOKIE: usize = 48;
/// Size of `struct inet_diag_msg`.
const HEAD: usize = 72;
/// Offset of the receive queue in it, which is the accept queue of a listener.
const ACCEPT_QUEUE: usize = 56;
/// `tcp_states.h`
const TCP_SYN_SENT: u32 = 2;
const TCP_LISTEN: u32 = 10;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const INET_DIAG_REQ_PROTOCOL: u16 = 3;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_ULP_INFO: u16 = 19;
const INET_ULP_INFO_NAME: u16 = 1;
const INET_ULP_INFO_MPTCP: u16 = 3;
const MPTCP_SUBFLOW_ATTR_TOKEN_LOC: u16 = 2;
const MPTCP_SUBFLOW_ATTR_FLAGS: u16 = 8;
const MPTCP_SUBFLOW_ATTR_ID_REM: u16 = 9;
const MPTCP_SUBFLOW_ATTR_ID_LOC: u16 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Recorded from kernel 6.18, together with the output of `ss -tieO` and `ss -MieO`: a connection, its initial
    /// subflow and a backup subflow created by MP_JOIN.
    const CONNECTION: &[u8] = include_bytes!("recorded/connection.bin");
    const INITIAL: &[u8] = include_bytes!("recorded/initial.bin");
    const JOINED: &[u8] = include_bytes!("recorded/joined.bin");

    fn message(payload: &[u8]) -> Message<'_> {
        Message { kind: SOCK_DIAG_BY_FAMILY, flags: 0, sequence: 1, payload }
    }

    #[test]
    fn parses_connections_like_ss() {
        let MptcpSocket { head, info } = MptcpSocket::read(&message(CONNECTION)).expect("message is valid");
        assert_eq!((head.local, head.remote), ends("10.78.1.1:46950", "10.78.1.2:9000"));
        assert_eq!((head.cookie, head.inode, head.uid, head.if_index), (0x13d3, 1_706_193, 0, 0));
        assert_eq!(head.state, State::Established);
        assert_eq!((info.token, info.extra_subflows), (Token(0x6de3_da6b), 1));
        assert_eq!((info.write_seq, info.snd_una), (0xc8be_afb6_c81d_041a, 0xc8be_afb6_c81d_041a));
        assert_eq!((info.bytes_sent, info.bytes_acked), (Some(2_100_000), Some(2_100_000)));
        assert!(info.remote_key_received && !info.fallback);
    }

    #[test]
    fn parses_subflows_like_ss() {
        let initial = SubflowSocket::read(&message(INITIAL)).expect("message is valid");
        assert_eq!((initial.head.local, initial.head.remote), ends("10.78.1.1:46950", "10.78.1.2:9000"));
        assert_eq!((initial.head.cookie, initial.head.inode), (0x13d1, 1_706_193));
        assert_eq!(initial.token, Some(Token(0x6de3_da6b)));
        assert_eq!(initial.congestion_control.as_deref(), Some("bbr"));
        let details = initial.details.expect("details are present");
        assert!(!details.joined() && !details.backup_local() && !details.backup_remote());
        let tcp = initial.tcp;
        assert_eq!((tcp.rtt_us, tcp.rtt_variance_us, tcp.min_rtt_us), (53_229, 691, Some(49)));
        assert_eq!((tcp.rto_us, tcp.cwnd, tcp.ssthresh, tcp.mss), (256_000, 224, Some(160), 1448));
        assert_eq!((tcp.bytes_sent, tcp.bytes_acked), (Some(2_100_000), 2_100_001));
        assert_eq!((tcp.segments_sent, tcp.segments_received), (Some(1478), Some(292)));
        assert_eq!((tcp.delivery_rate, tcp.pacing_rate), (Some(46_944_992 / 8), Some(6_826_285_304 / 8)));
        assert_eq!((tcp.busy_us, tcp.buffer_limited_us), (Some(336_000), Some(336_000)));
        assert_eq!((tcp.peer_window, tcp.retransmissions), (Some(4_147_200), 0));
        assert_eq!(tcp.window_scales, Some((10, 10)));

        let joined = SubflowSocket::read(&message(JOINED)).expect("message is valid");
        assert_eq!((joined.head.local, joined.head.remote), ends("10.78.2.1:60779", "10.78.1.2:9000"));
        assert_eq!((joined.head.if_index, joined.head.inode), (3, 1_706_193));
        let details = joined.details.expect("details are present");
        assert!(details.joined() && details.backup_local() && !details.backup_remote());
        assert_eq!((details.local_id, details.remote_id), (1, 0));
        assert_eq!((joined.tcp.ssthresh, joined.tcp.bytes_sent), (None, Some(0)));
    }

    fn ends(local: &str, remote: &str) -> (SocketAddr, SocketAddr) {
        (local.parse().expect("address is valid"), remote.parse().expect("address is valid"))
    }

    proptest! {
        #[test]
        fn truncated_and_corrupted_messages_do_not_panic(
            which in 0usize..3, length in 0usize..600, offset: usize, value: u8
        ) {
            let mut bytes = [CONNECTION, INITIAL, JOINED][which].to_vec();
            let offset = offset % bytes.len();
            bytes[offset] = value;
            bytes.truncate(length);
            let message = message(&bytes);
            let _ = (MptcpSocket::read(&message), SubflowSocket::read(&message), read_freed(&message));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let message = message(&bytes);
            let _ = (MptcpSocket::read(&message), SubflowSocket::read(&message), read_freed(&message));
        }
    }
}
