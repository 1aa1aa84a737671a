//! Which position of the stream each byte of a subflow has, by DSS mappings.

use std::collections::VecDeque;

/// The most recent mappings of one side of a subflow. Where they overlap, the newest takes precedence.
///
/// The visible parts of the mappings are kept apart, in order, so that a segment visits only the parts that it covers,
/// however many mappings overlap: a capture chooses both.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    /// The most recent mappings, oldest first.
    latest: VecDeque<StreamMapping>,
    /// Number of mappings before `latest`.
    dropped: u64,
    /// The parts of `latest` that no newer mapping covers, ascending and disjoint.
    visible: VecDeque<VisiblePart>,
}

/// The offsets from `start` on belong to positions of the stream from `position` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamMapping {
    pub(crate) start: i64,
    /// Exclusive; `i64::MAX` for an infinite mapping.
    pub(crate) end: i64,
    pub(crate) position: u64,
}

/// A part of a mapping that no newer one covers; never empty.
#[derive(Clone, Copy, Debug)]
struct VisiblePart {
    part: StreamMapping,
    /// Number of mappings before the one that it belongs to.
    number: u64,
}

/// Maximum number of mappings kept: older ones are needed only for segments without a mapping, or merged by the network
/// card.
const MAX_MAPPINGS: usize = 256;

impl Mappings {
    pub(crate) fn is_empty(&self) -> bool {
        self.latest.is_empty()
    }

    /// The most recent mapping.
    pub(crate) fn newest(&self) -> Option<&StreamMapping> {
        self.latest.back()
    }

    /// Adds a mapping, unless it repeats the most recent one.
    pub(crate) fn insert(&mut self, mapped: StreamMapping) {
        if self.newest() == Some(&mapped) {
            return;
        }
        if self.latest.len() == MAX_MAPPINGS {
            self.drop_oldest();
        }
        let number = self.dropped + self.latest.len() as u64;
        self.latest.push_back(mapped);
        let StreamMapping { start, end, .. } = mapped;
        if start >= end {
            return;
        }
        let first = self.index_after(start);
        let behind = first + self.visible.range(first..).take_while(|other| visit(other).start < end).count();
        let before = self.visible.get(first).filter(|other| other.part.start < start).copied();
        let after = behind.checked_sub(1).and_then(|last| self.visible.get(last)).copied();
        let after = after.filter(|other| behind > first && other.part.end > end);
        self.visible.drain(first..behind);
        let new = VisiblePart { part: mapped, number };
        let parts = [
            before.map(|other| other.ending_at(start)),
            Some(new),
            after.map(|other| other.starting_at(end)),
        ];
        for (place, part) in (first..).zip(parts.into_iter().flatten()) {
            self.visible.insert(place, part);
        }
    }

    /// The longest part of `from..to` from its start that one mapping covers, the newest, or none. Returns its end and the
    /// stream position of `from`.
    pub(crate) fn next_part(&self, from: i64, to: i64) -> (i64, Option<u64>) {
        match self.visible.get(self.index_after(from)).map(visit) {
            Some(part) if part.start <= from => (part.end.min(to), Some(part.position_of(from))),
            Some(next) => (next.start.min(to), None),
            None => (to, None),
        }
    }

    fn drop_oldest(&mut self) {
        let Some(StreamMapping { start, end, .. }) = self.latest.pop_front() else { return };
        let number = self.dropped;
        self.dropped += 1;
        let mut place = self.index_after(start);
        while let Some(other) = self.visible.get(place)
            && visit(other).start < end
        {
            if other.number == number {
                self.visible.remove(place);
            } else {
                place += 1;
            }
        }
    }

    /// The index of the first visible part that ends after `offset`: in a connection without loss, one of the last two.
    fn index_after(&self, offset: i64) -> usize {
        let count = self.visible.len();
        let ends_after =
            |index: usize| self.visible.get(index).is_some_and(|other| visit(other).end > offset);
        match count {
            0 => 0,
            _ if !ends_after(count - 1) => count,
            1 => 0,
            _ if !ends_after(count - 2) => count - 1,
            _ => self.visible.partition_point(|other| visit(other).end <= offset),
        }
    }
}

impl StreamMapping {
    fn position_of(&self, offset: i64) -> u64 {
        self.position.wrapping_add_signed(offset - self.start)
    }
}

impl VisiblePart {
    fn ending_at(mut self, end: i64) -> Self {
        self.part.end = end;
        self
    }

    fn starting_at(mut self, start: i64) -> Self {
        self.part.position = self.part.position_of(start);
        self.part.start = start;
        self
    }
}

/// Reads a visible part. Tests count how many are read.
fn visit(visible: &VisiblePart) -> &StreamMapping {
    #[cfg(test)]
    tests::PARTS_VISITED.set(tests::PARTS_VISITED.get() + 1);
    &visible.part
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{Ipv4Addr, SocketAddrV4};

    use plait_config::Role;
    use plait_wire::capture::{CaptureReader, PcapHeader, PcapWriter, Timestamp};
    use plait_wire::checksum::PseudoHeader;
    use plait_wire::mptcp::{DataSeq, Dss, Mapping, MptcpOption, SeqField, SubflowSeq};
    use plait_wire::tcp::{Flags, Seq, TcpOption};
    use plait_wire::{LinkType, ipv4, protocol, tcp};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::options::ReadOptions;
    use crate::path::Path;
    use crate::read::{Capture, Connections};

    thread_local! {
        pub(super) static PARTS_VISITED: Cell<u64> = const { Cell::new(0) };
    }

    proptest! {
        /// Compares with an array in which each mapping overwrites what it covers.
        #[test]
        fn newest_mapping_takes_precedence(
            mapped in vec((0..60i64, 0..30i64, 0..1000u64), 0..20),
            from in 0..60i64,
            len in 1..40i64,
        ) {
            let (mut mappings, mut array) = (Mappings::default(), [None; 200]);
            for (start, len, position) in mapped {
                mappings.insert(StreamMapping { start, end: start + len, position });
                for offset in 0..len {
                    array[(start + offset) as usize] = Some(position + offset as u64);
                }
            }
            let (mut at, to) = (from, from + len);
            while at < to {
                let (end, position) = mappings.next_part(at, to);
                prop_assert!(at < end && end <= to);
                for offset in at..end {
                    let expected = position.map(|position| position + (offset - at) as u64);
                    prop_assert_eq!(array[offset as usize], expected);
                }
                at = end;
            }
        }

        /// Compares each part with a search of the last mappings, newest first.
        #[test]
        fn equals_search_of_the_last_mappings(
            mapped in vec((0..2000i64, 1..300i64, 0..1_000_000u64), 0..700),
            from in 0..2000i64,
            len in 1..400i64,
        ) {
            let mut mappings = Mappings::default();
            let mut all: Vec<StreamMapping> = Vec::new();
            for (start, len, position) in mapped {
                let mapping = StreamMapping { start, end: start + len, position };
                mappings.insert(mapping);
                all.push(mapping);
            }
            all.dedup();
            let newest: Vec<_> = all.into_iter().rev().take(MAX_MAPPINGS).collect();
            let to = from + len;
            let covers = |mapping: &StreamMapping| mapping.start <= from && from < mapping.end;
            let found = newest.iter().position(covers);
            let newer = &newest[..found.unwrap_or(newest.len())];
            let cut = newer.iter().map(|mapping| mapping.start).filter(|start| *start > from).min();
            let end = cut.unwrap_or(to).min(found.map_or(to, |index| newest[index].end)).min(to);
            let position = found.map(|index| newest[index].position_of(from));
            prop_assert_eq!(mappings.next_part(from, to), (end, position));
            prop_assert!(mappings.visible.len() < 2 * MAX_MAPPINGS);
        }
    }

    /// A capture of truncated segments of 60,000 bytes, each with a mapping of one byte, at alternate bytes: each segment
    /// has as many parts as mappings are kept, twice.
    fn overlapping_mappings(segments: u32) -> Vec<u8> {
        let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let header = PcapHeader::new(LinkType::Ipv4);
        let mut writer = PcapWriter::new(Vec::new(), header).expect("memory");
        for index in 0..segments {
            let mapping = Mapping {
                data_seq: SeqField::Full(DataSeq(1 + 1000 * u64::from(index))),
                subflow_seq: SubflowSeq(1 + 2 * (index % 300)),
                length: 1,
                checksum: None,
            };
            let dss = Dss { data_ack: None, mapping: Some(mapping), data_fin: false };
            let (source, destination) = (SocketAddrV4::new(source, 4000), SocketAddrV4::new(destination, 80));
            let header = tcp::Repr {
                source_port: source.port(),
                destination_port: destination.port(),
                seq: Seq(1),
                ack: Seq(1),
                flags: Flags::ACK,
                window: 1000,
                urgent: 0,
                options: vec![TcpOption::Mptcp(MptcpOption::Dss(dss))],
            };
            let pseudo = PseudoHeader::V4 { source: *source.ip(), destination: *destination.ip() };
            let (mut segment, mut packet) = (Vec::new(), Vec::new());
            header.emit(pseudo, &[], &mut segment).expect("options that fit");
            let ip = ipv4::Repr::new(*source.ip(), *destination.ip(), protocol::TCP);
            ip.emit(segment.len() + 60_000, &mut packet).expect("a packet that fits");
            packet.extend_from_slice(&segment);
            writer.write(Timestamp(1_000_000_000 + u64::from(index) * 1000), &packet).expect("memory");
        }
        writer.into_inner()
    }

    #[test]
    fn work_per_segment_is_bounded_by_its_parts() {
        const SEGMENTS: u32 = 2000;
        let capture = overlapping_mappings(SEGMENTS);
        let path = Path { name: "crafted".into(), role: Role::Untrusted };
        let reader = CaptureReader::new(capture.as_slice()).expect("a pcap file");
        PARTS_VISITED.set(0);
        let read = Connections::read(vec![Capture { path, reader }], ReadOptions::default()).expect("memory");
        let visits = PARTS_VISITED.take();
        assert_eq!((read.totals.packets, read.connections.len()), (u64::from(SEGMENTS), 1));
        // Each part is found by bisection, as one of at most 511, after the two last ones.
        let parts_per_segment = 2 * MAX_MAPPINGS as u64 + 1;
        let per_segment = visits / u64::from(SEGMENTS);
        assert!(per_segment > parts_per_segment / 2, "{per_segment}: the segments have few parts");
        assert!(per_segment < 16 * parts_per_segment, "{per_segment} visits per segment");
    }
}
