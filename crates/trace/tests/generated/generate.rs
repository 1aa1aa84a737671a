//! Generates captures: an MPTCP connection over any number of paths, segment by segment.

use plait_trace::{Connections, ReadOptions};
use plait_wire::LinkType;
use plait_wire::capture::{PcapHeader, PcapWriter, Timestamp};
use plait_wire::mptcp::{
    AddressId, Capable, CapableFlags, CapableKeys, DataSeq, Dss, Join, Key, Mapping, MptcpOption, Nonce,
    SeqField, SubflowSeq, Token, Version,
};
use plait_wire::tcp::{Flags, TcpOption};

use crate::captures::{Packet, captures};

pub(crate) const CLIENT_KEY: [u8; 8] = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
pub(crate) const SERVER_KEY: [u8; 8] = [0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x01];

/// How a connection encodes its sequence numbers, and how it is captured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) version: Version,
    /// Data sequence numbers and acknowledgements have 64 bits.
    pub(crate) full: bool,
    /// The snap length of the captures.
    pub(crate) snap_len: u32,
}

pub(crate) const PLAIN_STYLE: Style = Style { version: Version::V1, full: true, snap_len: 262_144 };

/// A connection between two hosts whose path `n` is the subflow between 10.n.0.1 and 10.n.0.2.
pub(crate) struct Net {
    style: Style,
    time: u64,
    paths: Vec<PathState>,
}

struct PathState {
    writer: PcapWriter<Vec<u8>>,
    /// The next relative sequence number of the client and of the server.
    next: [u32; 2],
}

/// Who sends: 0 the client, 1 the server.
pub(crate) type Side = usize;

impl Net {
    pub(crate) fn new(paths: usize, style: Style) -> Self {
        let header = PcapHeader { snap_len: style.snap_len, ..PcapHeader::new(LinkType::Ipv4) };
        let path =
            |_| PathState { writer: PcapWriter::new(Vec::new(), header).expect("memory"), next: [1, 1] };
        Self { style, time: 1_000_000_000, paths: (0..paths).map(path).collect() }
    }

    /// The time stamp of the last packet.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.time)
    }

    /// The number of byte `offset` of a side's stream.
    pub(crate) fn data_seq(&self, side: Side, offset: u64) -> DataSeq {
        let key = Key::new([CLIENT_KEY, SERVER_KEY][side]);
        key.idsn(self.style.version).advance(1).advance(offset)
    }

    /// The three packets that open the connection.
    pub(crate) fn open(&mut self, path: usize) {
        let keys = || (Key::new(CLIENT_KEY), Key::new(SERVER_KEY));
        let capable = |keys| {
            let version = self.style.version;
            vec![MptcpOption::Capable(Capable { version, flags: CapableFlags::HMAC, keys })]
        };
        let syn = capable(match self.style.version {
            Version::V0 => CapableKeys::Sender(keys().0),
            Version::V1 => CapableKeys::None,
        });
        let syn_ack = capable(CapableKeys::Sender(keys().1));
        let ack = capable(CapableKeys::Both { sender: keys().0, receiver: keys().1, data: None });
        self.handshake(path, [syn, syn_ack, ack]);
    }

    /// The three packets that add a subflow.
    pub(crate) fn join(&mut self, path: usize) {
        let token = Key::new(SERVER_KEY).token(self.style.version);
        let (backup, address_id, nonce) = (false, AddressId(path as u8), Nonce(7));
        self.handshake(
            path,
            [
                vec![MptcpOption::Join(Join::Syn { backup, address_id, token, nonce })],
                vec![MptcpOption::Join(Join::SynAck { backup, address_id, hmac: [1; 8], nonce })],
                vec![MptcpOption::Join(Join::Ack { hmac: [2; 20] })],
            ],
        );
    }

    /// The first packet of a join.
    pub(crate) fn join_syn(&mut self, path: usize, token: Token) {
        let join = Join::Syn { backup: false, address_id: AddressId(path as u8), token, nonce: Nonce(7) };
        self.packet(path, 0, 0, Flags::SYN, vec![MptcpOption::Join(join)], &[]);
    }

    pub(crate) fn handshake(&mut self, path: usize, options: [Vec<MptcpOption<'_>>; 3]) {
        let [syn, syn_ack, ack] = options;
        self.packet(path, 0, 0, Flags::SYN, syn, &[]);
        self.packet(path, 1, 0, Flags::SYN | Flags::ACK, syn_ack, &[]);
        self.packet(path, 0, 1, Flags::ACK, ack, &[]);
    }

    /// Reserves `len` relative sequence numbers of a side's subflow, and returns the first.
    pub(crate) fn reserve(&mut self, path: usize, side: Side, len: usize) -> u32 {
        let next = &mut self.paths[path].next[side];
        let first = *next;
        *next += len as u32;
        first
    }

    /// Sends bytes of the stream, starting at `offset`, as new data of the subflow.
    pub(crate) fn send(&mut self, path: usize, side: Side, offset: u64, data: &[u8]) {
        let relative = self.reserve(path, side, data.len());
        let mapping = self.mapping(side, offset, relative, data.len());
        self.segment(path, side, relative, Some(mapping), data);
    }

    pub(crate) fn mapping(&self, side: Side, offset: u64, relative: u32, len: usize) -> Mapping {
        Mapping {
            data_seq: self.field(self.data_seq(side, offset)),
            subflow_seq: SubflowSeq(relative),
            length: len as u16,
            checksum: None,
        }
    }

    pub(crate) fn segment(
        &mut self,
        path: usize,
        side: Side,
        relative: u32,
        mapping: Option<Mapping>,
        data: &[u8],
    ) {
        let dss = Dss { data_ack: None, mapping, data_fin: false };
        let options = if mapping.is_some() { vec![MptcpOption::Dss(dss)] } else { Vec::new() };
        self.packet(path, side, relative, Flags::ACK, options, data);
    }

    /// Acknowledges everything before `offset` in the other side's stream.
    pub(crate) fn data_ack(&mut self, path: usize, side: Side, offset: u64) {
        let data_ack = Some(self.field(self.data_seq(1 - side, offset)));
        let dss = Dss { data_ack, mapping: None, data_fin: false };
        let relative = self.paths[path].next[side];
        self.packet(path, side, relative, Flags::ACK, vec![MptcpOption::Dss(dss)], &[]);
    }

    /// The end of a side's stream of `length` bytes.
    pub(crate) fn data_fin(&mut self, path: usize, side: Side, length: u64) {
        let mapping = self.mapping(side, length, 0, 1);
        let dss = Dss { data_ack: None, mapping: Some(mapping), data_fin: true };
        let relative = self.paths[path].next[side];
        self.packet(path, side, relative, Flags::ACK, vec![MptcpOption::Dss(dss)], &[]);
    }

    /// Adds any packet, a microsecond after the last.
    pub(crate) fn packet(
        &mut self,
        path: usize,
        side: Side,
        relative: u32,
        flags: Flags,
        options: Vec<MptcpOption<'_>>,
        data: &[u8],
    ) {
        let packet = Packet {
            flags,
            options: options.into_iter().map(TcpOption::Mptcp).collect(),
            ..Packet::new(path, side, relative, flags.contains(Flags::SYN).into())
        };
        let packet = packet.data(data).emit();
        self.time += 1000;
        self.paths[path].writer.write(Timestamp(self.time), &packet).expect("memory");
    }

    fn field(&self, data_seq: DataSeq) -> SeqField {
        if self.style.full { SeqField::Full(data_seq) } else { SeqField::Low32(data_seq.0 as u32) }
    }

    /// The capture of each path.
    pub(crate) fn files(self) -> Vec<Vec<u8>> {
        self.paths.into_iter().map(|path| path.writer.into_inner()).collect()
    }
}

/// Reads the captures of paths named `path0`, `path1`, ...
pub(crate) fn read(files: &[Vec<u8>], options: ReadOptions) -> Connections {
    Connections::read(captures(files), options).expect("memory does not fail")
}
