//! Samples, one after the other, that miss as little as possible of what happens between them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use super::message::{self, Head, MptcpSocket, SubflowSocket};
use super::{Closed, Connection, Error, Sample, Subflow};
use crate::interfaces::{self, Interface};
use crate::mptcp::Token;
use crate::netlink::{Listener, Socket};
use crate::pm::{Event, Events};
use crate::tcp_info::TcpInfo;

/// Takes samples of all MPTCP connections of the network namespace of the thread that opened it.
///
/// A subflow that ends between two samples is part of one more sample, with [`Subflow::closed`] set. Its figures are
/// those it ended with, as the kernel tells when it frees the socket; where it does not (the initial subflow of an
/// accepted connection is emptied first), those of the sample before. A subflow that both began and ended between
/// two samples is known only to those who may listen to the path manager (`CAP_NET_ADMIN`).
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    routes: Socket,
    freed: Option<Listener>,
    events: Option<Events>,
    /// Subflows of the sample before, by cookie.
    seen: HashMap<u64, (Token, Subflow)>,
    /// Subflows that were not there at the last sample; how they ended may still be told.
    gone: HashMap<u64, (Token, Subflow)>,
    /// Subflows that the path manager spoke of.
    announced: HashMap<Ends, Announced>,
    endings: HashMap<u64, (Head, TcpInfo)>,
    interfaces: Vec<Interface>,
    unknown_addresses: HashSet<IpAddr>,
    lost: u64,
}

type Ends = (SocketAddr, SocketAddr);

#[derive(Debug)]
struct Announced {
    token: Token,
    joined: bool,
    /// Samples since the path manager said that it ended.
    ended: Option<u8>,
}

impl Watch {
    /// Starts to watch.
    ///
    /// # Errors
    /// [`Error::Open`]
    pub fn open() -> Result<Watch, Error> {
        Ok(Watch {
            socket: Socket::diag().map_err(Error::Open)?,
            routes: Socket::route().map_err(Error::Open)?,
            // Without these two, less is known of subflows that end.
            freed: Listener::diag(&[SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY]).ok(),
            events: Events::open().ok(),
            seen: HashMap::new(),
            gone: HashMap::new(),
            announced: HashMap::new(),
            endings: HashMap::new(),
            interfaces: Vec::new(),
            unknown_addresses: HashSet::new(),
            lost: 0,
        })
    }

    /// Takes a sample: every connection, by token.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Refused`]; another attempt may succeed after the latter.
    pub fn sample(&mut self) -> Result<Vec<Sample>, Error> {
        self.listen();
        let connections = message::mptcp_sockets(&mut self.socket)?;
        let sockets = message::subflow_sockets(&mut self.socket)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.listen();
        let mut samples: BTreeMap<Token, Sample> =
            connections.iter().map(|socket| (socket.info.token, Sample::of(time, socket))).collect();
        let mut seen = HashMap::new();
        for (token, socket) in group(&connections, sockets) {
            let subflow = self.subflow(socket);
            self.gone.remove(&subflow.id);
            seen.insert(subflow.id, (token, subflow.clone()));
            samples.entry(token).or_insert_with(|| Sample::ended(time, token)).subflows.push(subflow);
        }
        let mut ended = self.pick_up_endings(&seen);
        // Those whose end may still be told get until the next sample.
        ended.extend(mem::take(&mut self.gone).into_values().map(last_seen));
        let before = mem::replace(&mut self.seen, seen);
        self.gone = before.into_iter().filter(|(id, _)| !self.seen.contains_key(id)).collect();
        for (token, subflow) in ended {
            samples.entry(token).or_insert_with(|| Sample::ended(time, token)).subflows.push(subflow);
        }
        self.forget_announced();
        let mut samples: Vec<Sample> = samples.into_values().collect();
        samples.iter_mut().for_each(|sample| {
            sample.subflows.sort_by_key(|subflow| (subflow.closed.is_some(), subflow.joined, subflow.id));
        });
        Ok(samples)
    }

    /// Takes the last sample: subflows that are no longer there do not wait for another one.
    ///
    /// # Errors
    /// As [`sample`](Watch::sample).
    pub fn last_sample(&mut self) -> Result<Vec<Sample>, Error> {
        let mut samples = self.sample()?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        for (token, subflow) in mem::take(&mut self.gone).into_values().map(last_seen) {
            match samples.iter_mut().find(|sample| sample.token == token) {
                Some(sample) => sample.subflows.push(subflow),
                None => samples.push(Sample { subflows: vec![subflow], ..Sample::ended(time, token) }),
            }
        }
        Ok(samples)
    }

    /// How often the kernel told of ends faster than samples were taken, so that some of them were lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether subflows that begin and end between two samples are known.
    pub fn sees_short_subflows(&self) -> bool {
        self.events.is_some() && self.freed.is_some()
    }

    /// Takes in what the kernel told since the last time.
    fn listen(&mut self) {
        while let Some(event) = self.events.as_mut().and_then(|events| events.try_next().ok().flatten()) {
            match event {
                Event::Created(new) | Event::Established(new) => {
                    self.announce(new.local, new.remote, new.token, false)
                }
                Event::SubflowEstablished(new) => self.announce(new.local, new.remote, new.token, true),
                Event::SubflowClosed(old) => {
                    if let Some(announced) = self.announced.get_mut(&(old.local, old.remote)) {
                        announced.ended = Some(0);
                    }
                }
                Event::Closed { token } => {
                    self.announced
                        .values_mut()
                        .filter(|announced| announced.token == token)
                        .for_each(|announced| announced.ended = Some(0));
                }
                Event::Lost => {
                    self.lost += 1;
                    // Which of these have ended is no longer known.
                    self.announced.clear();
                }
                _ => {}
            }
        }
        let Some(freed) = &mut self.freed else { return };
        loop {
            match freed.try_next() {
                Ok(Some(messages)) => {
                    let found = messages.filter_map(|message| message::read_freed(&message));
                    self.endings.extend(found.map(|(head, tcp)| (head.cookie, (head, tcp))));
                }
                Ok(None) => return,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.lost += 1,
                Err(_) => return,
            }
        }
    }

    fn announce(&mut self, local: SocketAddr, remote: SocketAddr, token: Token, joined: bool) {
        self.announced.insert((local, remote), Announced { token, joined, ended: None });
    }

    /// Subflows whose end was told, with their last figures.
    fn pick_up_endings(&mut self, now: &HashMap<u64, (Token, Subflow)>) -> Vec<(Token, Subflow)> {
        let mut ended = Vec::new();
        for (cookie, (head, tcp)) in mem::take(&mut self.endings) {
            if now.contains_key(&cookie) {
                // It was freed after it was listed.
                self.endings.insert(cookie, (head, tcp));
                continue;
            }
            let known = self.seen.remove(&cookie).or_else(|| self.gone.remove(&cookie));
            if let Some((token, mut subflow)) = known {
                // A socket that was emptied for another use says nothing of what it carried.
                if tcp.bytes_received >= subflow.tcp.bytes_received
                    && tcp.bytes_acked >= subflow.tcp.bytes_acked
                {
                    subflow.tcp = tcp;
                    subflow.closed = Some(Closed::Final);
                } else {
                    subflow.closed = Some(Closed::LastSeen);
                }
                ended.push((token, subflow));
            } else if let Some(announced) = self.announced.remove(&(head.local, head.remote)) {
                let (token, joined) = (announced.token, announced.joined);
                let socket =
                    SubflowSocket { head, tcp, congestion_control: None, token: Some(token), details: None };
                let joined = Some(joined);
                let closed = Some(Closed::Final);
                ended.push((token, Subflow { joined, closed, ..self.subflow(socket) }));
            }
        }
        ended
    }

    /// Forgets what the path manager said of subflows that have ended, once the kernel had time to free them.
    fn forget_announced(&mut self) {
        self.announced.retain(|_, announced| match &mut announced.ended {
            None => true,
            Some(samples) => {
                *samples += 1;
                *samples <= 2
            }
        });
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

    /// The list of interfaces is read again whenever there is an address that was not in it.
    fn interface(&mut self, index: u32, address: IpAddr) -> Option<String> {
        let find = |interfaces: &[Interface]| {
            let mut candidates = interfaces.iter();
            let found = candidates.find(|interface| match index {
                0 => interface.addresses.iter().any(|own| own.ip == address),
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

/// Finds the connection of each subflow: by token where the kernel tells it; else by the program's socket, which
/// they share; else, after the program has closed that, by the addresses of the initial subflow.
fn group(connections: &[MptcpSocket], sockets: Vec<SubflowSocket>) -> Vec<(Token, SubflowSocket)> {
    let token = |socket: &MptcpSocket| socket.info.token;
    let tokens: HashSet<Token> = connections.iter().map(token).collect();
    let with_inode = connections.iter().filter(|connection| connection.head.inode != 0);
    let by_inode: HashMap<u32, Token> =
        with_inode.map(|connection| (connection.head.inode, token(connection))).collect();
    let by_ends: HashMap<Ends, Token> = connections
        .iter()
        .map(|connection| ((connection.head.local, connection.head.remote), token(connection)))
        .collect();
    let find = |socket: &SubflowSocket| match socket.token {
        Some(token) => tokens.get(&token).copied(),
        None => by_inode
            .get(&socket.head.inode)
            .or_else(|| by_ends.get(&(socket.head.local, socket.head.remote)))
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
