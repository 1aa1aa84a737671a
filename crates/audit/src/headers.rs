//! What packet headers reveal beyond what `plait-trace` reports: plait's option, the MPTCP keys, packet sizes and times,
//! and how much of the payload the capture lacks.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::net::SocketAddr;

use plait_proto::option::Variant;
use plait_wire::capture::{CaptureError, CaptureReader, Timestamp};
use plait_wire::mptcp::{CapableKeys, Key, MptcpOption};
use plait_wire::tcp::{Flags, TcpOption};
use plait_wire::{Segment, Skip};

use crate::sequence::{self, SequenceSpace};

/// The option's experiment identifier, "PLAI", and its version (docs/internals/protocol.md, Negotiation).
const EX_ID: u32 = 0x504c_4149;
const VERSION: u8 = 1;

/// How many TCP connections of a capture are remembered; the handshakes of further ones are unknown.
const MAX_FLOWS: usize = 100_000;

/// How many contiguous runs of sequence numbers are remembered of all connections: 16 MiB. Beyond that, those of a connection
/// with gaps are not kept apart.
const MAX_RUNS: usize = 1 << 20;

/// The headers of one capture, by TCP connection.
#[derive(Default)]
pub(crate) struct Headers {
    flows: HashMap<(SocketAddr, SocketAddr), Flow>,
    /// The runs that the flows remember.
    runs: usize,
    pub(crate) completeness: Completeness,
}

/// How much payload crossed the path, and how much of it the capture contains. All copies count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completeness {
    /// Payload of TCP segments, and all of the packets below.
    pub(crate) wire_bytes: u64,
    pub(crate) captured_bytes: u64,
    /// Packets whose TCP header was not captured or is invalid, and IP fragments after the first.
    pub(crate) unreadable_packets: usize,
    /// Packets that were not checked for gaps before them.
    pub(crate) untracked_packets: usize,
    /// Whether a damaged record ends the capture early.
    pub(crate) damaged: bool,
}

/// What a capture lacks of TCP connections, by their sequence numbers and handshakes. Connections of which only a SYN was
/// captured count as attempts, of which nothing is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps {
    /// Payload bytes that no captured packet carries.
    pub(crate) missing_bytes: u64,
    /// Connections of which no SYN or no SYN-ACK was captured.
    pub(crate) unopened: usize,
    /// Connections of which neither both FINs nor a RST were captured.
    pub(crate) unclosed: usize,
    /// MPTCP connections that carried payload and whose handshake was captured without both of their keys.
    pub(crate) without_keys: usize,
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
    sequence: SequenceSpace,
}

/// A SYN or a SYN-ACK.
#[derive(Clone, Copy, Default)]
struct Syn {
    /// Whether the capture lacks some of its options.
    cut: bool,
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
                Ok(Some(record)) => match record.segment() {
                    Ok(segment) => headers.segment(&segment, record.time),
                    Err(Skip::LaterFragment | Skip::Malformed(_)) => {
                        headers.completeness.unreadable_packets += 1;
                        headers.completeness.wire_bytes += u64::from(record.wire_len);
                    }
                    Err(Skip::NotIp | Skip::NotTcp { .. }) => {}
                },
                Err(CaptureError::Io(error)) => return Err(error),
                Ok(None) => return Ok(headers),
                // `plait-trace` reports the damage.
                Err(_) => {
                    headers.completeness.damaged = true;
                    return Ok(headers);
                }
            }
        }
    }

    /// What these two negotiated; `None` unless the options of both SYN and SYN-ACK were captured.
    pub(crate) fn negotiated(&self, client: SocketAddr, server: SocketAddr) -> Option<Negotiated> {
        let (offer, choice) = (self.side(client, server)?.syn?, self.side(server, client)?.syn?);
        if offer.cut || choice.cut {
            return None;
        }
        let modes = choice.modes.filter(|_| offer.modes.is_some() && offer.capable && choice.capable);
        Some(modes.and_then(Variant::from_bit).map_or(Negotiated::Plain, Negotiated::Variant))
    }

    /// The MPTCP key that `of` used towards `peer`, if it was captured.
    pub(crate) fn key(&self, of: SocketAddr, peer: SocketAddr) -> Option<&Key> {
        self.side(of, peer)?.key.as_ref()
    }

    /// The payload bytes of all TCP connections but those between these pairs of addresses.
    pub(crate) fn bytes_of_others(&self, known: &HashSet<(SocketAddr, SocketAddr)>) -> u64 {
        let others = self
            .flows
            .iter()
            .filter(|((one, other), _)| !known.contains(&(*one, *other)) && !known.contains(&(*other, *one)));
        others.flat_map(|(_, flow)| &flow.sides).map(|side| side.traffic.bytes).sum()
    }

    /// The traffic from one address to another.
    pub(crate) fn traffic(&self, from: SocketAddr, to: SocketAddr) -> Option<&Traffic> {
        Some(&self.side(from, to)?.traffic)
    }

    /// What this capture lacks. A side whose packets are only in another of all the captures sends on another path: that is no
    /// gap.
    pub(crate) fn gaps(&self, all: &[Self]) -> Gaps {
        let mut gaps = Gaps::default();
        for (ends, flow) in self.flows.iter().filter(|(_, flow)| flow.was_answered()) {
            let is_elsewhere = |side: usize| {
                let captured = |headers: &Self| {
                    headers.flows.get(ends).is_some_and(|flow| flow.sides[side].sequence.was_captured())
                };
                !flow.sides[side].sequence.was_captured() && all.iter().any(captured)
            };
            let here = [0, 1].into_iter().filter(|side| !is_elsewhere(*side));
            let here: Vec<&Side> = here.map(|side| &flow.sides[side]).collect();
            gaps.missing_bytes += here.iter().map(|side| side.sequence.missing()).sum::<u64>();
            gaps.unopened += usize::from(!here.iter().all(|side| side.sequence.has_start()));
            let was_reset = flow.sides.iter().any(|side| side.sequence.was_reset());
            gaps.unclosed += usize::from(!was_reset && !here.iter().all(|side| side.sequence.has_end()));
            gaps.without_keys += usize::from(flow.lacks_keys());
        }
        gaps
    }

    fn side(&self, of: SocketAddr, peer: SocketAddr) -> Option<&Side> {
        let (key, side) = flow_key(of, peer);
        Some(&self.flows.get(&key)?.sides[side])
    }

    fn segment(&mut self, segment: &Segment<'_>, time: Timestamp) {
        self.completeness.wire_bytes += u64::from(segment.payload_len);
        self.completeness.captured_bytes += segment.payload().len() as u64;
        let (key, side) = flow_key(segment.source, segment.destination);
        let known = self.flows.len();
        let flow = match self.flows.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) if known < MAX_FLOWS => entry.insert(Flow::default()),
            Entry::Vacant(_) => {
                self.completeness.untracked_packets += 1;
                return;
            }
        };
        let flags = segment.tcp.flags();
        if flags.contains(Flags::SYN) || flow.sides.iter().any(|side| side.key.is_none()) {
            flow.options(side, segment, flags);
        }
        flow.sides[side].traffic.count(segment.payload_len, time);
        let max_runs = if self.runs < MAX_RUNS { sequence::MAX_RUNS } else { 1 };
        let before = flow.runs();
        if flow.sequence(side, segment, max_runs).is_err() {
            self.completeness.untracked_packets += 1;
        }
        self.runs = self.runs + flow.runs() - before;
    }
}

/// The key of a TCP connection, the same for both directions, and which side of it `of` is.
fn flow_key(of: SocketAddr, peer: SocketAddr) -> ((SocketAddr, SocketAddr), usize) {
    if of <= peer { ((of, peer), 0) } else { ((peer, of), 1) }
}

impl Flow {
    /// Records the sequence and acknowledgement numbers of a segment.
    fn sequence(
        &mut self,
        side: usize,
        segment: &Segment<'_>,
        max_runs: usize,
    ) -> Result<(), sequence::Untracked> {
        let flags = segment.tcp.flags();
        if flags.contains(Flags::ACK) && !flags.contains(Flags::RST) {
            self.sides[1 - side].sequence.acknowledged(segment.tcp.ack());
        }
        self.sides[side].sequence.sent(segment.tcp.seq(), flags, segment.payload_len, max_runs)
    }

    fn runs(&self) -> usize {
        self.sides.iter().map(|side| side.sequence.runs()).sum()
    }

    /// Whether more than attempts to open it was captured.
    fn was_answered(&self) -> bool {
        self.carried() || self.sides.iter().any(|side| side.sequence.was_acknowledged())
    }

    fn carried(&self) -> bool {
        self.sides.iter().any(|side| side.traffic.packets > 0)
    }

    /// Whether it carried payload, and the capture contains the options of both SYNs but not both keys.
    fn lacks_keys(&self) -> bool {
        let capable = |side: &Side| side.syn.is_some_and(|syn| syn.capable);
        self.carried() && self.sides.iter().all(capable) && self.sides.iter().any(|side| side.key.is_none())
    }

    fn options(&mut self, side: usize, segment: &Segment<'_>, flags: Flags) {
        let mut syn = Syn { cut: segment.tcp.has_truncated_options(), ..Syn::default() };
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
            let modes = syn.modes.or(before);
            self.sides[side].syn = Some(Syn { modes, cut: syn.cut && modes.is_none(), ..syn });
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
