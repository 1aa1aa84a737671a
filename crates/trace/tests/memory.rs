//! Memory of an analysis, measured in a separate process: a flood of packets must not leave state that accumulates.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};

use plait_config::Role;
use plait_trace::{Capture, Connection, Interval, Path, ReadOptions, Sink, read};
use plait_wire::capture::{CaptureReader, PcapHeader, PcapWriter, Timestamp};
use plait_wire::checksum::PseudoHeader;
use plait_wire::mptcp::{
    AddressId, Capable, CapableFlags, CapableKeys, Join, MptcpOption, Nonce, Token, Version,
};
use plait_wire::tcp::{Flags, Seq, TcpOption};
use plait_wire::{LinkType, ipv4, protocol, tcp};

/// The length of a capture's header.
const PCAP_HEADER: usize = 24;

/// A capture that is generated while it is read.
struct Made<F> {
    packet: F,
    index: u64,
    ready: Vec<u8>,
    at: usize,
}

impl<F: FnMut(u64) -> Option<Vec<u8>>> Made<F> {
    fn new(packet: F) -> Self {
        let writer = PcapWriter::new(Vec::new(), PcapHeader::new(LinkType::Ipv4)).expect("memory");
        Self { packet, index: 0, ready: writer.into_inner(), at: 0 }
    }
}

impl<F: FnMut(u64) -> Option<Vec<u8>>> Read for Made<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.ready.len() {
            let mut writer = PcapWriter::new(Vec::new(), PcapHeader::new(LinkType::Ipv4)).expect("memory");
            let Some(packet) = (self.packet)(self.index) else { return Ok(0) };
            writer.write(Timestamp(1_000_000_000 + self.index * 100_000), &packet).expect("memory");
            (self.ready, self.at) = (writer.into_inner(), PCAP_HEADER);
            self.index += 1;
        }
        let count = buffer.len().min(self.ready.len() - self.at);
        buffer[..count].copy_from_slice(&self.ready[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[derive(Default)]
struct Counted {
    connections: u64,
    evicted: u64,
    intervals: u64,
}

impl Sink for Counted {
    fn interval(&mut self, _: &Interval) -> io::Result<()> {
        self.intervals += 1;
        Ok(())
    }

    fn connection(&mut self, connection: Connection) -> io::Result<()> {
        self.connections += 1;
        self.evicted += u64::from(connection.evicted);
        Ok(())
    }
}

/// A SYN from one of very many clients.
fn syn(index: u64, option: MptcpOption<'_>) -> Vec<u8> {
    packet(index, true, [0, 0], Flags::SYN, vec![TcpOption::Mptcp(option)], 0)
}

/// A packet between one of very many clients and the server.
fn packet(
    end: u64,
    to_server: bool,
    [seq, ack]: [u32; 2],
    flags: Flags,
    options: Vec<TcpOption<'_>>,
    data: usize,
) -> Vec<u8> {
    let [_, a, b, c] = (end as u32 / 50_000).to_be_bytes();
    let client = SocketAddrV4::new(Ipv4Addr::new(10, a, b, c), 1024 + (end % 50_000) as u16);
    let server = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80);
    let (source, destination) = if to_server { (client, server) } else { (server, client) };
    let header = tcp::Repr {
        source_port: source.port(),
        destination_port: destination.port(),
        seq: Seq(seq),
        ack: Seq(ack),
        flags,
        window: 1000,
        urgent: 0,
        options,
    };
    let pseudo = PseudoHeader::V4 { source: *source.ip(), destination: *destination.ip() };
    let (mut segment, mut packet) = (Vec::new(), Vec::new());
    header.emit(pseudo, &vec![0; data], &mut segment).expect("options that fit");
    let ip = ipv4::Repr::new(*source.ip(), *destination.ip(), protocol::TCP);
    ip.emit(segment.len(), &mut packet).expect("a packet that fits");
    packet.extend_from_slice(&segment);
    packet
}

/// Peak memory of this process, in bytes.
fn greatest() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[test]
fn floods_leave_no_more_than_64_megabytes_behind() {
    let Some(before) = greatest() else {
        println!("SKIP floods_leave_no_more_than_64_megabytes_behind: no /proc/self/status");
        return;
    };
    let flood = |packet: fn(u64) -> Vec<u8>, count: u64| {
        let made = Made::new(move |index| (index < count).then(|| packet(index)));
        let path = Path { name: "flood".into(), role: Role::Untrusted };
        let capture = Capture { path, reader: CaptureReader::new(made).expect("a pcap file") };
        let interval = Some(std::time::Duration::from_millis(100));
        let options = ReadOptions { payload_limit: 0, interval, ..ReadOptions::default() };
        let mut sink = Counted::default();
        let totals = read(vec![capture], options, &mut sink).expect("neither input nor sink fails");
        assert_eq!(totals.packets, count);
        (totals, sink)
    };
    let (_, half_open) = flood(
        |index| {
            let (version, flags, keys) = (Version::V1, CapableFlags::HMAC, CapableKeys::None);
            syn(index, MptcpOption::Capable(Capable { version, flags, keys }))
        },
        200_000,
    );
    assert_eq!((half_open.connections, half_open.intervals), (200_000, 200_000));
    assert!(half_open.evicted >= 190_000, "{}", half_open.evicted);
    let (totals, joins) = flood(
        |index| {
            let (address_id, token, nonce) = (AddressId(1), Token(index as u32), Nonce(1));
            syn(index, MptcpOption::Join(Join::Syn { backup: false, address_id, token, nonce }))
        },
        200_000,
    );
    assert_eq!((totals.unanswered_joins, joins.connections), (200_000, 0));
    // Connections with one exchange that are never closed.
    let (_, open) = flood(
        |index| {
            let (end, step) = (index / 6, index % 6);
            let stamps = |value| vec![TcpOption::Timestamps { value, echo: value }];
            match step {
                0 => packet(end, true, [0, 0], Flags::SYN, stamps(1), 0),
                1 => packet(end, false, [0, 1], Flags::SYN | Flags::ACK, stamps(1), 0),
                2 => packet(end, true, [1, 1], Flags::ACK, stamps(1), 100),
                3 => packet(end, false, [1, 101], Flags::ACK, stamps(1), 100),
                4 => packet(end, true, [101, 101], Flags::ACK, stamps(1), 100),
                _ => packet(end, false, [101, 201], Flags::ACK, stamps(1), 0),
            }
        },
        6 * 50_000,
    );
    assert_eq!(open.connections, 50_000);
    assert!(open.evicted >= 40_000, "{}", open.evicted);
    let after = greatest().expect("it was there before");
    println!("{before} bytes before, at most {after} bytes");
    assert!(after <= 64 << 20, "{after} bytes");
}
