//! Writes a connection as the packets of one TCP connection.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use plait_wire::capture::{PcapWriter, Timestamp};
use plait_wire::checksum::PseudoHeader;
use plait_wire::tcp::{Flags, Seq};
use plait_wire::{ipv4, ipv6, protocol, tcp};

use crate::direction::Direction;

/// A TCP connection that is written. Data is collected into large segments, so that what crossed several paths is in one
/// packet as often as possible.
#[derive(Debug)]
pub(super) struct TcpWriter {
    /// By the direction in which they send.
    ends: [SocketAddr; 2],
    /// The next sequence number of each.
    seq: [Seq; 2],
    pending: [Vec<u8>; 2],
    /// When the oldest pending byte was added.
    pending_since: Timestamp,
}

/// Maximum number of bytes in a packet.
const MAX_SEGMENT: usize = 8 << 10;

/// How long data is collected, in nanoseconds.
const MAX_DELAY: u64 = 50_000_000;

/// Gaps of more bytes are shortened: TCP cannot express them (RFC 9293 3.4).
const MAX_GAP: u64 = 1 << 30;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Not within the captures.
    Open,
    Fin,
    Reset,
}

impl TcpWriter {
    /// Opens a connection: the three-way handshake.
    pub(super) fn open<W: Write>(
        client: SocketAddr,
        server: SocketAddr,
        isn: u32,
        time: Timestamp,
        out: &mut PcapWriter<W>,
    ) -> io::Result<Self> {
        let mut writer = Self {
            ends: [client, server],
            seq: [Seq(isn), Seq(isn.rotate_left(16))],
            pending: Default::default(),
            pending_since: time,
        };
        writer.packet(Direction::ClientToServer, Flags::SYN, &[], time, out)?;
        writer.packet(Direction::ServerToClient, Flags::SYN | Flags::ACK, &[], time, out)?;
        writer.packet(Direction::ClientToServer, Flags::ACK, &[], time, out)?;
        Ok(writer)
    }

    /// Adds bytes in a direction.
    pub(super) fn bytes<W: Write>(
        &mut self,
        direction: Direction,
        mut bytes: &[u8],
        time: Timestamp,
        out: &mut PcapWriter<W>,
    ) -> io::Result<()> {
        // The order of a request and its response is kept.
        self.flush(direction.reverse(), time, out)?;
        while !bytes.is_empty() {
            let pending = &mut self.pending[direction as usize];
            if pending.is_empty() {
                self.pending_since = time;
            }
            let (part, rest) = bytes.split_at(bytes.len().min(MAX_SEGMENT - pending.len()));
            pending.extend_from_slice(part);
            bytes = rest;
            if pending.len() == MAX_SEGMENT {
                self.flush(direction, time, out)?;
            }
        }
        Ok(())
    }

    /// Leaves out bytes that were not captured: their sequence numbers are skipped.
    pub(super) fn gap<W: Write>(
        &mut self,
        direction: Direction,
        length: u64,
        time: Timestamp,
        out: &mut PcapWriter<W>,
    ) -> io::Result<()> {
        self.flush(direction, time, out)?;
        let seq = &mut self.seq[direction as usize];
        // At most 2^30.
        *seq = seq.advance(length.min(MAX_GAP) as u32);
        Ok(())
    }

    /// Writes what was collected long enough ago.
    pub(super) fn flush_old<W: Write>(&mut self, time: Timestamp, out: &mut PcapWriter<W>) -> io::Result<()> {
        if time.0.saturating_sub(self.pending_since.0) < MAX_DELAY {
            return Ok(());
        }
        self.flush_all(time, out)
    }

    /// Ends the connection.
    pub(super) fn end<W: Write>(
        mut self,
        ending: Ending,
        time: Timestamp,
        out: &mut PcapWriter<W>,
    ) -> io::Result<()> {
        self.flush_all(time, out)?;
        let [client, server] = Direction::BOTH;
        match ending {
            Ending::Open => Ok(()),
            Ending::Reset => self.packet(client, Flags::RST | Flags::ACK, &[], time, out),
            Ending::Fin => {
                self.packet(client, Flags::FIN | Flags::ACK, &[], time, out)?;
                self.packet(server, Flags::FIN | Flags::ACK, &[], time, out)?;
                self.packet(client, Flags::ACK, &[], time, out)
            }
        }
    }

    fn flush_all<W: Write>(&mut self, time: Timestamp, out: &mut PcapWriter<W>) -> io::Result<()> {
        Direction::BOTH.into_iter().try_for_each(|direction| self.flush(direction, time, out))
    }

    /// Writes the collected data of a direction, and its acknowledgement, at which intrusion detection systems inspect it.
    fn flush<W: Write>(
        &mut self,
        direction: Direction,
        time: Timestamp,
        out: &mut PcapWriter<W>,
    ) -> io::Result<()> {
        let data = std::mem::take(&mut self.pending[direction as usize]);
        if data.is_empty() {
            return Ok(());
        }
        self.packet(direction, Flags::PSH | Flags::ACK, &data, time, out)?;
        self.packet(direction.reverse(), Flags::ACK, &[], time, out)
    }

    fn packet<W: Write>(
        &mut self,
        direction: Direction,
        flags: Flags,
        data: &[u8],
        time: Timestamp,
        out: &mut PcapWriter<W>,
    ) -> io::Result<()> {
        let (from, to) = (direction as usize, direction.reverse() as usize);
        let [source, destination] = [self.ends[from], self.ends[to]];
        let header = tcp::Repr {
            source_port: source.port(),
            destination_port: destination.port(),
            seq: self.seq[from],
            ack: if flags.contains(Flags::ACK) { self.seq[to] } else { Seq(0) },
            flags,
            window: u16::MAX,
            urgent: 0,
            options: Vec::new(),
        };
        // As many bytes as the flags and the data take sequence numbers (RFC 9293 3.4).
        let taken =
            data.len() as u32 + u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN));
        self.seq[from] = self.seq[from].advance(taken);
        out.write(time, &ip_packet(source.ip(), destination.ip(), &header, data)?)
    }
}

fn ip_packet(
    source: IpAddr,
    destination: IpAddr,
    header: &tcp::Repr<'_>,
    data: &[u8],
) -> io::Result<Vec<u8>> {
    let mut packet = Vec::new();
    let length = tcp::MIN_HEADER_LEN + data.len();
    let emitted = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ipv4::Repr::new(source, destination, protocol::TCP)
            .emit(length, &mut packet)
            .and_then(|()| header.emit(PseudoHeader::V4 { source, destination }, data, &mut packet)),
        (source, destination) => {
            let v6 = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            let (source, destination) = (v6(source), v6(destination));
            ipv6::Repr::new(source, destination, protocol::TCP)
                .emit(length, &mut packet)
                .and_then(|()| header.emit(PseudoHeader::V6 { source, destination }, data, &mut packet))
        }
    };
    emitted.map_err(io::Error::other)?;
    Ok(packet)
}
