//! Takes successive samples, which include the subflows closed in between.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::net::IpAddr;

use super::closed::{ClosedSubflow, ClosedSubflows};
use super::message::{self, MptcpSocket, SubflowSocket};
use super::{Closed, Connection, Error, Sample, Subflow};
use crate::clock::unix_seconds;
use crate::interfaces::{self, Interface};
use crate::mptcp::Token;
use crate::netlink::{Listener, Socket};
use crate::tcp_info::TcpInfo;

/// Takes samples of all MPTCP connections of the network namespace of the thread that opened it.
///
/// A subflow that is closed between two samples is part of one more sample, with [`Subflow::closed`] set. For root, a
/// BPF program reports its final statistics, even if it was created after the previous sample. For other users, the
/// kernel reports the statistics of a socket when it frees it, except for the initial subflow of an accepted connection
/// that the peer closed first, which is reset before. Its final statistics are then those of the previous sample.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    routes: Socket,
    source: Source,
    /// Subflows of the previous sample, by cookie.
    seen: HashMap<u64, (Token, Subflow)>,
    /// Subflows missing from the last sample, whose closing may still be reported.
    gone: HashMap<u64, (Token, Subflow)>,
    closed: HashMap<u64, ClosedSocket>,
    interfaces: Vec<Interface>,
    unknown_addresses: HashSet<IpAddr>,
    lost: u64,
}

/// The source of events for closed subflows.
#[derive(Debug)]
enum Source {
    Program(ClosedSubflows),
    Freed(Listener),
    None,
}

/// A closed socket.
#[derive(Debug)]
enum ClosedSocket {
    /// A subflow.
    Subflow(ClosedSubflow),
    /// A TCP socket with its final statistics, which may or may not have been a subflow.
    Socket(Box<TcpInfo>),
}

impl Watch {
    /// Subscribes to events and opens the sockets for samples.
    ///
    /// # Errors
    /// [`Error::Open`]
    pub fn open() -> Result<Watch, Error> {
        // Both are optional: without them, less is known about closed subflows.
        let freed = || Listener::diag(&[SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY]);
        let source = ClosedSubflows::start().map(Source::Program);
        let source = source.or_else(|_| freed().map(Source::Freed)).unwrap_or(Source::None);
        Ok(Watch {
            socket: Socket::diag().map_err(Error::Open)?,
            routes: Socket::route().map_err(Error::Open)?,
            source,
            seen: HashMap::new(),
            gone: HashMap::new(),
            closed: HashMap::new(),
            interfaces: Vec::new(),
            unknown_addresses: HashSet::new(),
            lost: 0,
        })
    }

    /// Takes a sample: every connection, by token.
    ///
    /// # Errors
    /// [`Error::Missing`], or [`Error::Refused`], which may be temporary.
    pub fn sample(&mut self) -> Result<Vec<Sample>, Error> {
        self.read_events();
        let connections = message::mptcp_sockets(&mut self.socket)?;
        let sockets = message::subflow_sockets(&mut self.socket)?;
        let time = unix_seconds();
        self.read_events();
        let mut samples: BTreeMap<Token, Sample> =
            connections.iter().map(|socket| (socket.info.token, Sample::of(time, socket))).collect();
        let mut seen = HashMap::new();
        for (token, socket) in group(&connections, sockets) {
            let subflow = self.subflow(socket);
            self.gone.remove(&subflow.id);
            seen.insert(subflow.id, (token, subflow.clone()));
            samples.entry(token).or_insert_with(|| Sample::ended(time, token)).subflows.push(subflow);
        }
        let mut ended = self.take_closed(&seen);
        // Closing may be reported with a delay of one sample.
        ended.extend(mem::take(&mut self.gone).into_values().map(last_seen));
        let before = mem::replace(&mut self.seen, seen);
        self.gone = before.into_iter().filter(|(id, _)| !self.seen.contains_key(id)).collect();
        for (token, subflow) in ended {
            samples.entry(token).or_insert_with(|| Sample::ended(time, token)).subflows.push(subflow);
        }
        let mut samples: Vec<Sample> = samples.into_values().collect();
        samples.iter_mut().for_each(|sample| {
            sample.subflows.sort_by_key(|subflow| (subflow.closed.is_some(), subflow.joined, subflow.id));
        });
        Ok(samples)
    }

    /// Takes the last sample, which includes all closed subflows, even if their closing was not reported yet.
    ///
    /// # Errors
    /// As [`sample`](Watch::sample).
    pub fn last_sample(&mut self) -> Result<Vec<Sample>, Error> {
        let mut samples = self.sample()?;
        let time = unix_seconds();
        for (token, subflow) in mem::take(&mut self.gone).into_values().map(last_seen) {
            match samples.iter_mut().find(|sample| sample.token == token) {
                Some(sample) => sample.subflows.push(subflow),
                None => samples.push(Sample { subflows: vec![subflow], ..Sample::ended(time, token) }),
            }
        }
        Ok(samples)
    }

    /// The number of times that events were lost because the buffer was full.
    pub fn lost(&self) -> u64 {
        match &self.source {
            Source::Program(subflows) => subflows.lost(),
            Source::Freed(_) | Source::None => self.lost,
        }
    }

    /// Whether all closed subflows are reported with their final statistics, even those that also began after the
    /// previous sample.
    pub fn reports_every_close(&self) -> bool {
        matches!(self.source, Source::Program(_))
    }

    /// Reads the events since the last call.
    fn read_events(&mut self) {
        match &mut self.source {
            Source::Program(subflows) => {
                let ends = std::iter::from_fn(|| subflows.next());
                self.closed.extend(ends.map(|end| (end.id(), ClosedSocket::Subflow(end))));
            }
            Source::Freed(freed) => loop {
                match freed.try_next() {
                    Ok(Some(messages)) => {
                        let found = messages.filter_map(|message| message::read_freed(&message));
                        let found =
                            found.map(|(head, tcp)| (head.cookie, ClosedSocket::Socket(Box::new(tcp))));
                        self.closed.extend(found);
                    }
                    Ok(None) => return,
                    Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.lost += 1,
                    Err(_) => return,
                }
            },
            Source::None => {}
        }
    }

    /// Takes the subflows that were reported as closed, with their final statistics.
    fn take_closed(&mut self, now: &HashMap<u64, (Token, Subflow)>) -> Vec<(Token, Subflow)> {
        let mut ended = Vec::new();
        for (id, socket) in mem::take(&mut self.closed) {
            if now.contains_key(&id) {
                // It was closed after it was listed.
                self.closed.insert(id, socket);
                continue;
            }
            let known = self.seen.remove(&id).or_else(|| self.gone.remove(&id));
            match (known, socket) {
                (Some((token, subflow)), ClosedSocket::Subflow(end)) => {
                    let tcp = end.statistics(Some(subflow.tcp));
                    ended.push((token, Subflow { tcp, closed: Some(Closed::Final), ..subflow }));
                }
                (None, ClosedSocket::Subflow(end)) => {
                    let subflow = self.unseen_subflow(&end);
                    ended.push((end.token(), subflow));
                }
                (Some((token, subflow)), ClosedSocket::Socket(tcp)) => {
                    // The kernel may have reset the counters before it freed the socket.
                    let (before, after) = (&subflow.tcp, &tcp);
                    let valid = after.bytes_received >= before.bytes_received
                        && after.bytes_acked >= before.bytes_acked;
                    ended.push(match valid {
                        true => (token, Subflow { tcp: *tcp, closed: Some(Closed::Final), ..subflow }),
                        false => last_seen((token, subflow)),
                    });
                }
                (None, ClosedSocket::Socket(_)) => {}
            }
        }
        ended
    }

    fn unseen_subflow(&mut self, end: &ClosedSubflow) -> Subflow {
        let (local, remote) = end.addresses();
        Subflow {
            id: end.id(),
            interface: self.interface(0, local.ip()),
            local,
            remote,
            joined: Some(end.joined()),
            backup_local: None,
            backup_remote: None,
            local_id: None,
            remote_id: None,
            congestion_control: None,
            tcp: end.statistics(None),
            closed: Some(Closed::Final),
        }
    }

    fn subflow(&mut self, socket: SubflowSocket) -> Subflow {
        let SubflowSocket { head, tcp, congestion_control, details, .. } = socket;
        Subflow {
            id: head.cookie,
            interface: self.interface(head.if_index, head.local.ip()),
            local: head.local,
            remote: head.remote,
            joined: details.map(|details| details.joined()),
            backup_local: details.map(|details| details.backup_local()),
            backup_remote: details.map(|details| details.backup_remote()),
            local_id: details.map(|details| details.local_id),
            remote_id: details.map(|details| details.remote_id),
            congestion_control,
            tcp,
            closed: None,
        }
    }

    /// The name of an interface, by index or address. Lists the interfaces again for an unknown address.
    fn interface(&mut self, index: u32, address: IpAddr) -> Option<String> {
        let find = |interfaces: &[Interface]| {
            let mut candidates = interfaces.iter();
            let found = candidates.find(|interface| match index {
                0 => interface.has_address(address),
                index => interface.index == index,
            });
            found.map(|interface| interface.name.clone())
        };
        let found = find(&self.interfaces);
        if found.is_some() || !self.unknown_addresses.insert(address) {
            return found;
        }
        self.interfaces = interfaces::list(&mut self.routes).unwrap_or_default();
        find(&self.interfaces).inspect(|_| {
            self.unknown_addresses.remove(&address);
        })
    }
}

/// Finds the connection of each subflow: by token if the kernel shows it; otherwise by inode, which a connection and its
/// subflows share while the program has the socket open; otherwise by the addresses of the initial subflow.
pub(super) fn group(connections: &[MptcpSocket], sockets: Vec<SubflowSocket>) -> Vec<(Token, SubflowSocket)> {
    let token = |socket: &MptcpSocket| socket.info.token;
    let tokens: HashSet<Token> = connections.iter().map(token).collect();
    let with_inode = connections.iter().filter(|connection| connection.head.inode != 0);
    let by_inode: HashMap<u32, Token> =
        with_inode.map(|connection| (connection.head.inode, token(connection))).collect();
    let by_addresses: HashMap<_, Token> = connections
        .iter()
        .map(|connection| ((connection.head.local, connection.head.remote), token(connection)))
        .collect();
    let find = |socket: &SubflowSocket| match socket.token {
        Some(token) => tokens.get(&token).copied(),
        None => by_inode
            .get(&socket.head.inode)
            .or_else(|| by_addresses.get(&(socket.head.local, socket.head.remote)))
            .copied(),
    };
    sockets.into_iter().filter_map(|socket| Some((find(&socket)?, socket))).collect()
}

fn last_seen((token, subflow): (Token, Subflow)) -> (Token, Subflow) {
    (token, Subflow { closed: Some(Closed::LastSeen), ..subflow })
}

impl Sample {
    fn of(time: f64, socket: &MptcpSocket) -> Sample {
        let MptcpSocket { head, info } = socket;
        let connection = Connection {
            local: head.local,
            remote: head.remote,
            state: head.state,
            uid: head.uid,
            inode: head.inode,
            fallback: info.fallback,
            checksums: info.checksums,
            bytes_sent: info.bytes_sent,
            bytes_acked: info.bytes_acked,
            bytes_received: info.bytes_received,
            bytes_reinjected: info.bytes_retransmitted,
            timeouts: info.retransmits,
            bytes_unacked: u64::try_from(info.write_seq.wrapping_sub(info.snd_una) as i64).unwrap_or(0),
            addresses_announced: info.addresses_signalled,
            addresses_accepted: info.addresses_accepted,
        };
        Sample { time, token: info.token, connection: Some(connection), subflows: Vec::new() }
    }

    fn ended(time: f64, token: Token) -> Sample {
        Sample { time, token, connection: None, subflows: Vec::new() }
    }
}

const SKNLGRP_INET_TCP_DESTROY: u32 = 1;
const SKNLGRP_INET6_TCP_DESTROY: u32 = 3;
