//! What packet headers reveal beyond what `plait-trace` reports: plait's option, the MPTCP keys, and packet sizes and
//! times.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use std::net::SocketAddr;

use plait_proto::option::Variant;
use plait_wire::Segment;
use plait_wire::capture::{CaptureError, CaptureReader, Timestamp};
use plait_wire::mptcp::{CapableKeys, Key, MptcpOption};
use plait_wire::tcp::{Flags, TcpOption};

/// The option's experiment identifier, "PLAI", and its version (docs/internals/protocol.md, Negotiation).
const EX_ID: u32 = 0x504c_4149;
const VERSION: u8 = 1;

/// How many TCP connections of a capture are remembered; the handshakes of further ones are unknown.
const MAX_FLOWS: usize = 100_000;

/// The headers of one capture, by TCP connection.
#[derive(Default)]
pub(crate) struct Headers {
    flows: HashMap<(SocketAddr, SocketAddr), Flow>,
}

/// A TCP connection; the side with the lower address comes first.
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
    /// The modes byte of plait's option, if the segment has one.
    modes: Option<u8>,
}

/// The packets with payload that one side sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) min_bytes: u32,
    pub(crate) max_bytes: u32,
    /// The times of the first and the last packet.
    pub(crate) span: Option<(Timestamp, Timestamp)>,
}

/// The mode that a handshake negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Negotiated {
    /// None: a side sent no plait option, or the responder chose no known mode.
    Plain,
    /// The responder chose this variant.
    Variant(Variant),
}

impl Headers {
    /// Reads a capture, up to the first damaged record.
    ///
    /// # Errors
    /// Reading the input fails.
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
                // `plait-trace` reports the damage.
                Ok(None) | Err(_) => return Ok(headers),
            }
        }
    }

    /// What these two negotiated; `None` unless both SYN and SYN-ACK were captured.
    pub(crate) fn negotiated(&self, client: SocketAddr, server: SocketAddr) -> Option<Negotiated> {
        let (offer, choice) = (self.side(client, server)?.syn?, self.side(server, client)?.syn?);
        let modes = choice.modes.filter(|_| offer.modes.is_some() && offer.capable && choice.capable);
        Some(modes.and_then(Variant::from_bit).map_or(Negotiated::Plain, Negotiated::Variant))
    }

    /// The MPTCP key that `of` used towards `peer`, if it was captured.
    pub(crate) fn key(&self, of: SocketAddr, peer: SocketAddr) -> Option<&Key> {
        self.side(of, peer)?.key.as_ref()
    }

    /// The traffic from one address to another.
    pub(crate) fn traffic(&self, from: SocketAddr, to: SocketAddr) -> Option<&Traffic> {
        Some(&self.side(from, to)?.traffic)
    }

    fn side(&self, of: SocketAddr, peer: SocketAddr) -> Option<&Side> {
        let (key, side) = flow_key(of, peer);
        Some(&self.flows.get(&key)?.sides[side])
    }

    fn segment(&mut self, segment: &Segment<'_>, time: Timestamp) {
        let (key, side) = flow_key(segment.source, segment.destination);
        let known = self.flows.len();
        let flow = match self.flows.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if known < MAX_FLOWS => entry.insert(Flow::default()),
            Entry::Vacant(_) => return,
        };
        let flags = segment.tcp.flags();
        if flags.contains(Flags::SYN) || flow.sides.iter().any(|side| side.key.is_none()) {
            flow.options(side, segment, flags);
        }
        flow.sides[side].traffic.count(segment.payload_len, time);
    }
}

/// The key of a TCP connection, the same for both directions, and which side of it `of` is.
fn flow_key(of: SocketAddr, peer: SocketAddr) -> ((SocketAddr, SocketAddr), usize) {
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
            // A SYN retransmitted without the option does not withdraw the option of the first one.
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
        self.min_bytes = if self.packets == 0 { length } else { self.min_bytes.min(length) };
        self.max_bytes = self.max_bytes.max(length);
        self.packets += 1;
        self.bytes += u64::from(length);
        let (first, last) = self.span.unwrap_or((time, time));
        self.span = Some((first.min(time), last.max(time)));
    }

    /// Adds the traffic of another subflow.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.packets == 0 {
            return;
        }
        self.min_bytes =
            if self.packets == 0 { other.min_bytes } else { self.min_bytes.min(other.min_bytes) };
        self.max_bytes = self.max_bytes.max(other.max_bytes);
        self.packets += other.packets;
        self.bytes += other.bytes;
        let both = [self.span, other.span].into_iter().flatten();
        self.span = both.reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)));
    }
}
