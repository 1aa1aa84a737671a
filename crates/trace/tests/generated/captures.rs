//! Packets at chosen times, in any number of captures.

use std::net::{Ipv4Addr, SocketAddrV4};

use plait_config::Role;
use plait_trace::{Capture, Connections, Path, ReadOptions};
use plait_wire::capture::{CaptureReader, PcapHeader, PcapWriter, Timestamp};
use plait_wire::checksum::PseudoHeader;
use plait_wire::mptcp::{
    AddressId, Capable, CapableFlags, CapableKeys, DataSeq, Dss, Join, JoinHmac, Key, Mapping, MptcpOption,
    Nonce, SeqField, SubflowSeq, Version,
};
use plait_wire::tcp::{Flags, Seq, TcpOption};
use plait_wire::{LinkType, ipv4, protocol, tcp};

use crate::generate::{CLIENT_KEY, SERVER_KEY, Side};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const MILLISECOND: u64 = 1_000_000;

/// The start of all captures, in nanoseconds since 1970.
pub(crate) const BEGIN: u64 = 1_000 * SECOND;

/// The nonces of the joining client and of the server.
pub(crate) const NONCES: [Nonce; 2] = [Nonce(0x0102_0304), Nonce(0xa0b0_c0d0)];

/// A TCP segment of the subflow over a path. Numbers count from the SYN.
#[derive(Clone)]
pub(crate) struct Packet<'a> {
    pub(crate) path: usize,
    pub(crate) side: Side,
    pub(crate) client_port: u16,
    pub(crate) isn: [u32; 2],
    pub(crate) seq: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) options: Vec<TcpOption<'a>>,
    pub(crate) data: Vec<u8>,
}

impl<'a> Packet<'a> {
    /// An acknowledgement of everything before `ack`.
    pub(crate) fn new(path: usize, side: Side, seq: u32, ack: u32) -> Self {
        Self {
            path,
            side,
            client_port: 50_000,
            // Just below the wrap.
            isn: [0xffff_f000, 0xffff_ff00],
            seq,
            ack: Some(ack),
            flags: Flags::ACK,
            window: 1000,
            options: Vec::new(),
            data: Vec::new(),
        }
    }

    pub(crate) fn flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    pub(crate) fn option(mut self, option: TcpOption<'a>) -> Self {
        self.options.push(option);
        self
    }

    pub(crate) fn mptcp(self, option: MptcpOption<'a>) -> Self {
        self.option(TcpOption::Mptcp(option))
    }

    pub(crate) fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    /// Adds data of the side's stream, starting at `offset`.
    pub(crate) fn carries(self, offset: u64, len: usize) -> Self {
        let mapping = Mapping {
            data_seq: SeqField::Full(data_seq(self.side, offset)),
            subflow_seq: SubflowSeq(self.seq),
            length: len as u16,
            checksum: None,
        };
        self.mptcp(MptcpOption::Dss(Dss { data_ack: None, mapping: Some(mapping), data_fin: false }))
            .data(&vec![0x61; len])
    }

    /// Acknowledges everything before `offset` in the other side's stream.
    pub(crate) fn data_ack(self, offset: u64) -> Self {
        let data_ack = Some(SeqField::Full(data_seq(1 - self.side, offset)));
        self.mptcp(MptcpOption::Dss(Dss { data_ack, mapping: None, data_fin: false }))
    }

    pub(crate) fn with_port(mut self, client_port: u16) -> Self {
        self.client_port = client_port;
        self
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let ends = [
            SocketAddrV4::new(address(self.path, 0), self.client_port),
            SocketAddrV4::new(address(self.path, 1), 80),
        ];
        let (source, destination) = (ends[self.side], ends[1 - self.side]);
        let header = tcp::Repr {
            source_port: source.port(),
            destination_port: destination.port(),
            seq: Seq(self.isn[self.side]).advance(self.seq),
            ack: self.ack.map_or(Seq(0), |ack| Seq(self.isn[1 - self.side]).advance(ack)),
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: self.options.clone(),
        };
        let pseudo = PseudoHeader::V4 { source: *source.ip(), destination: *destination.ip() };
        let mut segment = Vec::new();
        header.emit(pseudo, &self.data, &mut segment).expect("options that fit");
        ip(*source.ip(), *destination.ip(), protocol::TCP, &segment)
    }
}

fn address(path: usize, side: Side) -> Ipv4Addr {
    Ipv4Addr::new(10, path as u8, 0, side as u8 + 1)
}

fn ip(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    ipv4::Repr::new(source, destination, protocol)
        .emit(payload.len(), &mut packet)
        .expect("a packet that fits");
    packet.extend_from_slice(payload);
    packet
}

/// The number of byte `offset` of a side's stream.
pub(crate) fn data_seq(side: Side, offset: u64) -> DataSeq {
    Key::new([CLIENT_KEY, SERVER_KEY][side]).idsn(Version::V1).advance(1).advance(offset)
}

/// The three packets that open a connection.
pub(crate) fn opening<'a>(path: usize) -> [Packet<'a>; 3] {
    let keys = || (Key::new(CLIENT_KEY), Key::new(SERVER_KEY));
    let capable =
        |keys| MptcpOption::Capable(Capable { version: Version::V1, flags: CapableFlags::HMAC, keys });
    handshake(path).map_options([
        capable(CapableKeys::None),
        capable(CapableKeys::Sender(keys().1)),
        capable(CapableKeys::Both { sender: keys().0, receiver: keys().1, data: None }),
    ])
}

/// The four packets that add a subflow, with valid HMACs.
pub(crate) fn joining<'a>(path: usize) -> [Packet<'a>; 4] {
    let (client, server) = (Key::new(CLIENT_KEY), Key::new(SERVER_KEY));
    let of_server = JoinHmac::of(Version::V1, &server, &client, NONCES[1], NONCES[0]);
    let of_client = JoinHmac::of(Version::V1, &client, &server, NONCES[0], NONCES[1]);
    join_with(path, of_server.syn_ack(), of_client.ack())
}

/// The four packets that add a subflow, with these HMACs.
pub(crate) fn join_with<'a>(path: usize, syn_ack: [u8; 8], ack: [u8; 20]) -> [Packet<'a>; 4] {
    let (token, address_id) = (Key::new(SERVER_KEY).token(Version::V1), AddressId(path as u8));
    let [first, second, third] = handshake(path).map_options([
        MptcpOption::Join(Join::Syn { backup: false, address_id, token, nonce: NONCES[0] }),
        MptcpOption::Join(Join::SynAck { backup: false, address_id, hmac: syn_ack, nonce: NONCES[1] }),
        MptcpOption::Join(Join::Ack { hmac: ack }),
    ]);
    [first, second, third, Packet::new(path, 1, 1, 1)]
}

/// The three packets that open a TCP connection.
pub(crate) fn handshake<'a>(path: usize) -> [Packet<'a>; 3] {
    let mut syn = Packet::new(path, 0, 0, 0).flags(Flags::SYN);
    syn.ack = None;
    [syn, Packet::new(path, 1, 0, 1).flags(Flags::SYN | Flags::ACK), Packet::new(path, 0, 1, 1)]
}

trait MapOptions<'a> {
    fn map_options(self, options: [MptcpOption<'a>; 3]) -> Self;
}

impl<'a> MapOptions<'a> for [Packet<'a>; 3] {
    fn map_options(self, options: [MptcpOption<'a>; 3]) -> Self {
        let mut options = options.into_iter();
        self.map(|packet| match options.next() {
            Some(option) => packet.mptcp(option),
            None => packet,
        })
    }
}

/// The packets of several captures.
#[derive(Clone, Default)]
pub(crate) struct CaptureBuilder {
    captures: Vec<Vec<(u64, Vec<u8>)>>,
}

impl CaptureBuilder {
    /// Adds a packet to a capture, at a time in nanoseconds since the start of the builder.
    pub(crate) fn at(&mut self, capture: usize, time: u64, packet: &Packet<'_>) {
        self.add(capture, time, packet.emit());
    }

    /// Adds consecutive packets, a microsecond apart.
    pub(crate) fn all_at<'a>(
        &mut self,
        capture: usize,
        time: u64,
        packets: impl IntoIterator<Item = Packet<'a>>,
    ) {
        for (index, packet) in packets.into_iter().enumerate() {
            self.at(capture, time + 1000 * index as u64, &packet);
        }
    }

    /// Adds a ping or its reply.
    pub(crate) fn ping(&mut self, capture: usize, time: u64, path: usize, side: Side) {
        self.add(capture, time, ip(address(path, side), address(path, 1 - side), 1, &[0; 8]));
    }

    fn add(&mut self, capture: usize, time: u64, packet: Vec<u8>) {
        if self.captures.len() <= capture {
            self.captures.resize_with(capture + 1, Vec::new);
        }
        self.captures[capture].push((time, packet));
    }

    /// The captures, each with its packets in order of time.
    pub(crate) fn files(&self) -> Vec<Vec<u8>> {
        self.captures.iter().map(|packets| file(&sorted(packets))).collect()
    }

    /// The captures, each with its packets in the order in which they were added.
    pub(crate) fn files_as_written(&self) -> Vec<Vec<u8>> {
        self.captures.iter().map(|packets| file(packets)).collect()
    }

    /// A capture split at these times.
    pub(crate) fn rotated(&self, capture: usize, times: &[u64]) -> Vec<Vec<u8>> {
        let packets = sorted(&self.captures[capture]);
        let bounds = [&[0], times, &[u64::MAX]].concat();
        let within = |bounds: &[u64]| {
            let part = packets.iter().filter(|(time, _)| bounds[0] <= *time && *time < bounds[1]);
            file(&part.cloned().collect::<Vec<_>>())
        };
        bounds.windows(2).map(within).collect()
    }

    /// A capture, in the order in which it was written, split after `count` packets.
    pub(crate) fn rotated_after(&self, capture: usize, count: usize) -> Vec<Vec<u8>> {
        let (first, second) = self.captures[capture].split_at(count);
        vec![file(first), file(second)]
    }

    /// The number of TCP packets in a capture.
    pub(crate) fn segments(&self, capture: usize) -> u64 {
        self.captures[capture].iter().filter(|(_, packet)| packet[9] == protocol::TCP).count() as u64
    }

    /// The same builder with clocks of resolution `step`.
    pub(crate) fn in_steps_of(&self, step: u64) -> Self {
        let coarse = |(time, packet): (u64, Vec<u8>)| (time / step * step, packet);
        let captures = self.captures.iter().map(|packets| sorted(packets).into_iter().map(coarse).collect());
        Self { captures: captures.collect() }
    }

    /// A capture split by path.
    pub(crate) fn by_path(&self, capture: usize) -> Self {
        let mut builder = Self::default();
        for (time, packet) in &self.captures[capture] {
            // The second byte of the source's address.
            builder.add(packet[13].into(), *time, packet.clone());
        }
        builder
    }

    /// A capture split by direction.
    pub(crate) fn by_side(&self, capture: usize) -> Self {
        let mut builder = Self::default();
        for (time, packet) in &self.captures[capture] {
            // The last byte of the source's address is 1 for the client.
            builder.add(usize::from(packet[15] != 1), *time, packet.clone());
        }
        builder
    }

    /// Swaps the packet at `index` with the next one.
    pub(crate) fn swap(&mut self, capture: usize, index: usize) {
        self.captures[capture] = sorted(&self.captures[capture]);
        self.captures[capture].swap(index, index + 1);
    }

    /// Sets the clock of a capture back at a given time.
    pub(crate) fn set_back(&mut self, capture: usize, at: u64, by: u64) {
        self.captures[capture] = sorted(&self.captures[capture]);
        self.captures[capture].iter_mut().filter(|(time, _)| *time >= at).for_each(|(time, _)| *time -= by);
    }
}

fn sorted(packets: &[(u64, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
    let mut packets = packets.to_vec();
    packets.sort_by_key(|(time, _)| *time);
    packets
}

fn file(packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), PcapHeader::new(LinkType::Ipv4)).expect("memory");
    for (time, packet) in packets {
        writer.write(Timestamp(BEGIN + time), packet).expect("memory");
    }
    writer.into_inner()
}

pub(crate) fn captures(files: &[Vec<u8>]) -> Vec<Capture<&[u8]>> {
    let named = files.iter().enumerate().map(|(index, file)| Capture {
        path: Path { name: format!("path{index}"), role: Role::Untrusted },
        reader: CaptureReader::new(file.as_slice()).expect("a pcap file"),
    });
    named.collect()
}

pub(crate) fn read(files: &[Vec<u8>]) -> Connections {
    crate::generate::read(files, ReadOptions::default())
}

/// A time relative to the start of its builder.
pub(crate) fn since_begin(time: Timestamp) -> u64 {
    time.0 - BEGIN
}
