//! What stands in the headers of a capture besides what `plait-trace` tells: plait's option, MPTCP's keys, and how
//! packets come one after the other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use std::net::SocketAddr;

use plait_wire::Segment;
use plait_wire::capture::{CaptureError, CaptureReader, Timestamp};
use plait_wire::mptcp::{CapableKeys, Key, MptcpOption};
use plait_wire::tcp::{Flags, TcpOption};

use crate::mode::Chosen;

/// The option's experiment, "PLAI", and its version (docs/internals/protocol.md, Negotiation).
const EX_ID: u32 = 0x504c_4149;
const VERSION: u8 = 1;

/// How many TCP connections of a capture are kept; beyond them nothing is known of a handshake.
const FLOWS: usize = 100_000;

/// What the headers of one capture say, by TCP connection.
#[derive(Default)]
pub(crate) struct Headers {
    flows: HashMap<(SocketAddr, SocketAddr), Flow>,
}

/// A TCP connection: what either side said, by who sorts first.
#[derive(Clone, Default)]
struct Flow {
    sides: [Side; 2],
}

#[derive(Clone, Default)]
struct Side {
    syn: Option<Syn>,
    key: Option<Key>,
    traffic: Traffic,
}

/// A SYN or a SYN-ACK.
#[derive(Clone, Copy)]
struct Syn {
    capable: bool,
    /// The modes byte of plait's option.
    modes: Option<u8>,
}

/// Packets with payload that one side sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) shortest: u32,
    pub(crate) longest: u32,
    /// When the first and the last came.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
}

/// What a handshake said of the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreed {
    /// A handshake that says nothing of plait, or came to nothing.
    Plain,
    /// Both sides agreed.
    On(Chosen),
}

impl Headers {
    /// Reads a capture; one that is damaged is read up to there.
    ///
    /// # Errors
    /// Its input fails.
    pub(crate) fn read<R: Read>(mut reader: CaptureReader<R>) -> Result<Self, std::io::Error> {
        let mut headers = Self::default();
        loop {
            match reader.next_record() {
                Ok(Some(record)) => {
                    if let Ok(segment) = record.segment() {
                        headers.segment(&segment, record.time);
                    }
                }
                Err(CaptureError::Io(error)) => return Err(error),
                // What is damaged, `plait-trace` tells.
                Ok(None) | Err(_) => return Ok(headers),
            }
        }
    }

    /// What was agreed between these two; `None` where SYN or SYN-ACK were not captured.
    pub(crate) fn agreed(&self, client: SocketAddr, server: SocketAddr) -> Option<Agreed> {
        let (offer, choice) = (self.side(client, server)?.syn?, self.side(server, client)?.syn?);
        let modes = choice.modes.filter(|_| offer.modes.is_some() && offer.capable && choice.capable);
        Some(modes.and_then(Chosen::of).map_or(Agreed::Plain, Agreed::On))
    }

    /// The key of the first of these two in their connection, where it was captured.
    pub(crate) fn key(&self, of: SocketAddr, peer: SocketAddr) -> Option<&Key> {
        self.side(of, peer)?.key.as_ref()
    }

    /// What the first of these two sent to the other.
    pub(crate) fn traffic(&self, from: SocketAddr, to: SocketAddr) -> Option<&Traffic> {
        Some(&self.side(from, to)?.traffic)
    }

    fn side(&self, of: SocketAddr, peer: SocketAddr) -> Option<&Side> {
        let (name, side) = place(of, peer);
        Some(&self.flows.get(&name)?.sides[side])
    }

    fn segment(&mut self, segment: &Segment<'_>, time: Timestamp) {
        let (name, side) = place(segment.source, segment.destination);
        let known = self.flows.len();
        let flow = match self.flows.entry(name) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if known < FLOWS => entry.insert(Flow::default()),
            Entry::Vacant(_) => return,
        };
        let flags = segment.tcp.flags();
        if flags.contains(Flags::SYN) || flow.sides.iter().any(|side| side.key.is_none()) {
            flow.options(side, segment, flags);
        }
        flow.sides[side].traffic.count(segment.payload_len, time);
    }
}

/// The name of a TCP connection, whoever sends, and which side of it `of` is.
fn place(of: SocketAddr, peer: SocketAddr) -> ((SocketAddr, SocketAddr), usize) {
    if of <= peer { ((of, peer), 0) } else { ((peer, of), 1) }
}

impl Flow {
    fn options(&mut self, side: usize, segment: &Segment<'_>, flags: Flags) {
        let mut syn = Syn { capable: false, modes: None };
        for option in segment.tcp.options().flatten() {
            match option {
                TcpOption::Mptcp(MptcpOption::Capable(capable)) => {
                    syn.capable = true;
                    match capable.keys {
                        CapableKeys::None => {}
                        CapableKeys::Sender(key) => self.sides[side].key = Some(key),
                        CapableKeys::Both { sender, receiver, .. } => {
                            self.sides[side].key = Some(sender);
                            self.sides[1 - side].key = Some(receiver);
                        }
                    }
                }
                TcpOption::Experimental(experimental) => {
                    if let Some((EX_ID, &[VERSION, modes])) = experimental.ex_id32() {
                        syn.modes = Some(modes);
                    }
                }
                _ => {}
            }
        }
        if flags.contains(Flags::SYN) {
            // A SYN that is repeated without the option does not take the first one back.
            let before = self.sides[side].syn.and_then(|syn| syn.modes);
            self.sides[side].syn = Some(Syn { modes: syn.modes.or(before), ..syn });
        }
    }
}

impl Traffic {
    fn count(&mut self, length: u32, time: Timestamp) {
        if length == 0 {
            return;
        }
        self.shortest = if self.packets == 0 { length } else { self.shortest.min(length) };
        self.longest = self.longest.max(length);
        self.packets += 1;
        self.bytes += u64::from(length);
        let (first, last) = self.span.unwrap_or((time, time));
        self.span = Some((first.min(time), last.max(time)));
    }

    /// Of several subflows together.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.packets == 0 {
            return;
        }
        self.shortest = if self.packets == 0 { other.shortest } else { self.shortest.min(other.shortest) };
        self.longest = self.longest.max(other.longest);
        self.packets += other.packets;
        self.bytes += other.bytes;
        let both = [self.span, other.span].into_iter().flatten();
        self.span = both.reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)));
    }
}
