//! Reassembly of connections into a capture with one TCP stream for each, for tools that know no MPTCP.
//!
//! Intrusion detection systems and packet analyzers reassemble TCP. A signature that MPTCP splits across paths is invisible
//! to them; in the streams written here it is contiguous. Memory is bounded: what is in order is written at once.

mod ordered_stream;
mod tcp_writer;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;

use plait_wire::LinkType;
use plait_wire::capture::{PcapHeader, PcapWriter, Timestamp};

use crate::analyze::{AnalyzeError, read_captures};
use crate::connection::{Close, Connection, Protocol};
use crate::direction::Direction;
use crate::export::document;
use crate::interval::Interval;
use crate::options::ReadOptions;
use crate::sink::Sink;
use crate::stream_event::{StreamEvent, StreamEventKind};
use ordered_stream::{OrderedStream, Part};
use tcp_writer::{Ending, TcpWriter};

/// Maximum number of bytes ahead of order that are kept, of all connections together.
const MAX_WAITING: usize = 64 << 20;

/// Maximum number of entries of [`Reassembled::gaps`].
const MAX_GAPS: usize = 1_000;

/// What was written.
#[derive(Debug, Default)]
pub struct Reassembled {
    /// Number of connections with data, each of which is a TCP stream.
    pub connections: u64,
    /// How many of them use MPTCP.
    pub mptcp: u64,
    /// How many of them began before the captures: their streams begin where the captures do.
    pub partial: u64,
    /// Number of bytes in all streams.
    pub bytes: u64,
    /// Number of bytes that are missing in them.
    pub missing: u64,
    /// The streams with missing bytes; the first 1,000.
    pub gaps: Vec<StreamGaps>,
}

/// Missing bytes in a stream: they were not captured, or so late that memory did not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamGaps {
    /// The [connection's id](Connection::id).
    pub connection: u64,
    /// The direction of the stream.
    pub direction: Direction,
    /// Number of gaps.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Writes the connections of one measurement as a pcap file with one TCP stream for each, between the addresses of its first
/// subflow. Captures are given, and progress is reported, as in [`analyze`](crate::analyze).
///
/// Handshakes, acknowledgements and packet boundaries are synthetic; the bytes of the streams are those that were captured,
/// in the order of the data sequence numbers. Bytes that were not captured are skipped by sequence number, as if the capture
/// had missed packets. A packet has the time at which its last byte could be delivered, or up to 50 ms later.
///
/// # Errors
/// As in [`analyze`](crate::analyze).
pub fn reassemble<W: Write>(
    measurement: &[PathBuf],
    out: W,
    progress: &dyn Fn(u64) -> io::Result<()>,
) -> Result<(Reassembled, document::Totals, W), AnalyzeError> {
    let pcap = PcapWriter::new(out, PcapHeader::new(LinkType::RawIp)).map_err(AnalyzeError::Output)?;
    let mut reassembler = Reassembler {
        pcap,
        live: HashMap::default(),
        waiting: 0,
        now: Timestamp::default(),
        seen: 0,
        found: Reassembled::default(),
    };
    let options = ReadOptions { payload_limit: 0, stream_events: true, ..ReadOptions::default() };
    let totals = read_captures(measurement, options, &mut reassembler, progress)?;
    if reassembler.seen == 0 {
        return Err(AnalyzeError::NoTcp(Box::new(totals)));
    }
    Ok((reassembler.found, totals, reassembler.pcap.into_inner()))
}

struct Reassembler<W: Write> {
    pcap: PcapWriter<W>,
    live: HashMap<u64, Live>,
    /// Memory that data ahead of order takes.
    waiting: usize,
    /// The latest time so far.
    now: Timestamp,
    /// Number of connections, with data or not.
    seen: u64,
    found: Reassembled,
}

/// A connection that has carried data.
struct Live {
    tcp: TcpWriter,
    streams: [OrderedStream; 2],
    gaps: [(u64, u64); 2],
    bytes: u64,
}

impl<W: Write> Sink for Reassembler<W> {
    fn interval(&mut self, _: &Interval) -> io::Result<()> {
        Ok(())
    }

    fn stream(&mut self, event: StreamEvent) -> io::Result<()> {
        self.now = self.now.max(event.time);
        let StreamEvent { connection, client, server, direction, kind, .. } = event;
        if !self.live.contains_key(&connection) {
            if matches!(kind, StreamEventKind::Delivered { .. }) {
                return Ok(());
            }
            // Differs from that of an earlier connection between the same ports.
            let isn = (connection as u32).wrapping_mul(0x9e37_79b9);
            let tcp = TcpWriter::open(client, server, isn, self.now, &mut self.pcap)?;
            let live = Live { tcp, streams: Default::default(), gaps: Default::default(), bytes: 0 };
            self.live.insert(connection, live);
        }
        self.step(connection, direction, |stream, now, next| match kind {
            StreamEventKind::Data { position, origin, length, captured } => {
                stream.add(position, length, captured, origin, &mut *next);
                stream.give_up_delivered(now, next);
            }
            StreamEventKind::Delivered { position } => {
                stream.delivered(position, now);
                stream.give_up_delivered(now, next);
            }
        })?;
        while self.waiting > MAX_WAITING {
            let Some((connection, direction)) = self.longest_queue() else { break };
            self.step(connection, direction, |stream, _, mut next| stream.skip_gap(&mut next))?;
        }
        Ok(())
    }

    fn connection(&mut self, connection: Connection) -> io::Result<()> {
        self.seen += 1;
        if !self.live.contains_key(&connection.id) {
            return Ok(());
        }
        for direction in Direction::BOTH {
            self.step(connection.id, direction, |stream, _, next| stream.finish(next))?;
        }
        let Some(Live { tcp, gaps, bytes, .. }) = self.live.remove(&connection.id) else { return Ok(()) };
        tcp.end(ending(&connection), self.now, &mut self.pcap)?;
        self.found.connections += 1;
        self.found.mptcp += u64::from(connection.protocol != Protocol::Tcp);
        self.found.partial += u64::from(connection.partial);
        self.found.bytes += bytes;
        for (direction, (count, bytes)) in Direction::BOTH.into_iter().zip(gaps) {
            self.found.missing += bytes;
            if count > 0 && self.found.gaps.len() < MAX_GAPS {
                self.found.gaps.push(StreamGaps { connection: connection.id, direction, count, bytes });
            }
        }
        Ok(())
    }
}

impl<W: Write> Reassembler<W> {
    /// Lets a stream take a step, and writes the parts that are in order after it.
    fn step(
        &mut self,
        connection: u64,
        direction: Direction,
        step: impl FnOnce(&mut OrderedStream, Timestamp, &mut dyn FnMut(Part<'_>)),
    ) -> io::Result<()> {
        let (now, pcap) = (self.now, &mut self.pcap);
        let Some(Live { tcp, streams, gaps, bytes }) = self.live.get_mut(&connection) else { return Ok(()) };
        tcp.flush_old(now, pcap)?;
        let (stream, gaps) = (&mut streams[direction as usize], &mut gaps[direction as usize]);
        let before = stream.waiting_bytes();
        let mut written = Ok(());
        step(stream, now, &mut |part| {
            if written.is_err() {
                return;
            }
            written = match part {
                Part::Bytes(part) => {
                    *bytes += part.len() as u64;
                    tcp.bytes(direction, part, now, pcap)
                }
                Part::Gap(length) => {
                    *gaps = (gaps.0 + 1, gaps.1.saturating_add(length));
                    tcp.gap(direction, length, now, pcap)
                }
            };
        });
        self.waiting = self.waiting + stream.waiting_bytes() - before;
        written
    }

    /// The stream with the most data ahead of order.
    fn longest_queue(&self) -> Option<(u64, Direction)> {
        let queues = self.live.iter().flat_map(|(connection, live)| {
            Direction::BOTH
                .map(|direction| (live.streams[direction as usize].waiting_bytes(), *connection, direction))
        });
        let longest = queues.max_by_key(|(bytes, connection, _)| (*bytes, *connection));
        longest.filter(|(bytes, ..)| *bytes > 0).map(|(_, connection, direction)| (connection, direction))
    }
}

/// How the TCP connection ends: as the last of the subflows that have ended.
fn ending(connection: &Connection) -> Ending {
    let closed = connection.subflows.iter().filter(|subflow| subflow.close.is_final());
    match closed.max_by_key(|subflow| subflow.last_seen).map(|subflow| subflow.close) {
        None => Ending::Open,
        Some(Close::Fin) => Ending::Fin,
        Some(_) => Ending::Reset,
    }
}
