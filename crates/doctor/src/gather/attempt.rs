//! One connection of an MPTCP socket, as any program would open it, and what is seen of it on this host's interfaces.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use plait_linux::mptcp::{self, FullInfo, stream_socket};
use plait_linux::packets::{Packet, PacketTap};
use plait_linux::pm::{Event, Events};
use plait_linux::{State, blackhole};
use plait_wire::mptcp::{CapableFlags, Join as JoinOption, MptcpOption};
use plait_wire::tcp::Flags;
use socket2::{Domain, Socket, TcpKeepalive};

use crate::facts::{Connection, Join, JoinAnswer, Subflow};
use crate::syn::{is_syn, mptcp_options, segment};

/// Connects, and waits until there is a subflow from each of these addresses, or there was time enough for it.
pub(super) fn connect(tap: &PacketTap, target: SocketAddr, wanted: &[IpAddr]) -> io::Result<Connection> {
    let (socket, _) = stream_socket(Domain::for_address(target))?;
    let mut events = Events::open().ok();
    let mut connection = Connection { keepalive: keep_alive(&socket), ..Connection::default() };
    let before = blackhole::connections_made_tcp()?;
    match socket.connect_timeout(&target.into(), CONNECT_TIMEOUT) {
        Err(error) => connection.error = Some(error.to_string()),
        Ok(()) => {
            connection.local = socket.local_addr()?.as_socket();
            connection.blackhole = blackhole::connections_made_tcp()? > before;
            connection.mptcp = mptcp::is_mptcp(&socket)?;
        }
    }
    if connection.mptcp {
        watch(&socket, events.as_mut(), target, wanted, &mut connection)?;
        // A middlebox may remove the option from later segments only.
        connection.mptcp = mptcp::is_mptcp(&socket)?;
    }
    let mut seen = Vec::new();
    while let Some(packet) = tap.next(Instant::now())? {
        seen.push(packet);
    }
    read_openings(&mut connection, target, &seen);
    read_joins(&mut connection, target, &seen);
    Ok(connection)
}

/// Makes the kernel probe the idle peer: subflows are created once the peer has acknowledged anything beyond the handshake
/// (RFC 8684, 3.1), and nothing is sent to a service whose protocol is not known. `false` if the kernel refuses.
fn keep_alive(socket: &Socket) -> bool {
    let every = Duration::from_secs(1);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(every).with_interval(every)).is_ok()
}

fn watch(
    socket: &Socket,
    mut events: Option<&mut Events>,
    target: SocketAddr,
    wanted: &[IpAddr],
    connection: &mut Connection,
) -> io::Result<()> {
    let start = Instant::now();
    let token = mptcp::Info::of(socket)?.token;
    while start.elapsed() < SUBFLOWS_TIMEOUT {
        if let Ok(full) = FullInfo::of(socket) {
            full.subflows.iter().for_each(|subflow| record(connection, subflow));
        }
        while let Some(event) = events.as_mut().map_or(Ok(None), |events| events.try_next())? {
            if let Event::Announced { token: of, address, .. } = event
                && of == token
                && address.is_ipv4() == target.is_ipv4()
            {
                let port = if address.port() == 0 { target.port() } else { address.port() };
                let address = SocketAddr::new(address.ip(), port);
                if !connection.announced.contains(&address) && connection.announced.len() < MAX_ANNOUNCED {
                    connection.announced.push(address);
                }
            }
        }
        let reached = |address: &IpAddr| {
            connection.subflows.iter().any(|subflow| subflow.established && subflow.local.ip() == *address)
        };
        if start.elapsed() > ANNOUNCEMENTS && wanted.iter().all(reached) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn record(connection: &mut Connection, found: &mptcp::Subflow) {
    let established = found.tcp.state == State::Established;
    let same = |known: &&mut Subflow| known.local == found.local && known.remote == found.remote;
    match connection.subflows.iter_mut().find(same) {
        Some(known) => known.established |= established,
        None => connection.subflows.push(Subflow { local: found.local, remote: found.remote, established }),
    }
}

/// What the interfaces show of the first subflow.
fn read_openings(connection: &mut Connection, target: SocketAddr, seen: &[Packet]) {
    for (packet, segment) in seen.iter().filter_map(|packet| Some((packet, segment(&packet.bytes)?))) {
        let flags = segment.tcp.flags();
        let capable = mptcp_options(&segment.tcp).find_map(|option| match option {
            MptcpOption::Capable(capable) => Some(capable),
            _ => None,
        });
        let ours = |address: SocketAddr| connection.local.is_none_or(|local| local == address);
        if packet.outgoing && segment.destination == target && ours(segment.source) {
            connection.capable_syns += u32::from(is_syn(&segment.tcp) && capable.is_some());
        } else if !packet.outgoing
            && segment.source == target
            && ours(segment.destination)
            && flags.contains(Flags::SYN | Flags::ACK)
        {
            connection.stripped = Some(capable.is_none());
            connection.initial_address_closed =
                capable.is_some_and(|capable| capable.flags.contains(CapableFlags::NO_MORE_SUBFLOWS));
        }
    }
}

/// What the interfaces show of further subflows.
fn read_joins(connection: &mut Connection, target: SocketAddr, seen: &[Packet]) {
    let known = |address: SocketAddr| address == target || connection.announced.contains(&address);
    let mut joins: Vec<Join> = Vec::new();
    for (packet, segment) in seen.iter().filter_map(|packet| Some((packet, segment(&packet.bytes)?))) {
        let flags = segment.tcp.flags();
        let options: Vec<MptcpOption> = mptcp_options(&segment.tcp).collect();
        if packet.outgoing {
            let is_join =
                options.iter().any(|option| matches!(option, MptcpOption::Join(JoinOption::Syn { .. })));
            let (local, remote) = (segment.source, segment.destination);
            let repeated = joins.iter().any(|join| (join.local, join.remote) == (local, remote));
            if is_join && known(remote) && !repeated {
                joins.push(Join { local, remote, if_index: packet.if_index, answer: None });
            }
        } else {
            let of = joins
                .iter_mut()
                .find(|join| (join.remote, join.local) == (segment.source, segment.destination));
            let Some(join) = of else { continue };
            join.answer = if flags.contains(Flags::RST) {
                let mptcp = options.iter().any(|option| matches!(option, MptcpOption::Reset(_)));
                Some(JoinAnswer::Reset { mptcp })
            } else if options.iter().any(|option| matches!(option, MptcpOption::Join(_))) {
                Some(JoinAnswer::Joined)
            } else {
                Some(JoinAnswer::Stripped)
            };
        }
    }
    connection.joins = joins;
}

/// Longer than it takes the kernel to try MP_CAPABLE thrice and then TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A second until the first keepalive probe, and three SYNs.
const SUBFLOWS_TIMEOUT: Duration = Duration::from_millis(4500);
/// More than hosts have: each is probed.
const MAX_ANNOUNCED: usize = 8;
/// A peer announces its addresses in the first round trips; one that is lost is repeated later.
const ANNOUNCEMENTS: Duration = Duration::from_millis(1500);
