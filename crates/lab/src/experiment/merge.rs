//! Merges the captures of a host's links into one, and records which link carried which packets.
//!
//! The packets of a subflow may leave a host by one link and return by another. Each subflow is complete in the
//! merged capture, which does not identify links; the [`LinkIndex`] does.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use plait_wire::Segment;
use plait_wire::capture::{CaptureReader, Record, Timestamp};
use plait_wire::mptcp::{MptcpOption, SeqField};
use plait_wire::tcp::{Flags, TcpOption};

/// The source and destination of packets.
pub(super) type Way = (SocketAddr, SocketAddr);

/// The traffic on the links of a host.
#[derive(Debug, Default)]
pub(super) struct LinkIndex {
    /// Payload bytes and packets, per link.
    carried: HashMap<Way, Vec<(u64, u64)>>,
    /// The DATA_ACKs sent, with their times.
    data_acks: HashMap<Way, Vec<AckSample>>,
    /// The TCP acknowledgements sent, with their times.
    acks: HashMap<Way, Vec<AckSample>>,
}

/// A time, and the low 32 bits of the cumulative acknowledgement at that time.
pub(super) type AckSample = (Timestamp, u32);

/// Merges the captures, one per link in the order of their numbers, into one file.
///
/// # Errors
/// A file cannot be read or written.
pub(super) fn merge(captures: &[PathBuf], into: &Path) -> io::Result<LinkIndex> {
    let open = |path: &PathBuf| {
        let input = BufReader::new(File::open(path)?);
        CaptureReader::new(input).map_err(io::Error::other)
    };
    let mut readers = captures.iter().map(open).collect::<io::Result<Vec<_>>>()?;
    let mut merged = Merged::create(into)?;
    let mut link_index = LinkIndex::default();
    let mut next = Vec::new();
    for reader in &mut readers {
        next.push(reader.peek_time().map_err(io::Error::other)?);
    }
    while let Some((link, _)) = next
        .iter()
        .enumerate()
        .filter_map(|(link, time)| Some((link, (*time)?)))
        .min_by_key(|(_, time)| *time)
    {
        if let Some(record) = readers[link].next_record().map_err(io::Error::other)? {
            merged.write(&record)?;
            if let Ok(segment) = record.segment() {
                link_index.take(link, captures.len(), record.time, &segment);
            }
        }
        next[link] = readers[link].peek_time().map_err(io::Error::other)?;
    }
    merged.0.flush()?;
    Ok(link_index)
}

impl LinkIndex {
    fn take(&mut self, link: usize, links: usize, time: Timestamp, segment: &Segment) {
        let way = (segment.source, segment.destination);
        let (bytes, packets) = &mut self.carried.entry(way).or_insert_with(|| vec![(0, 0); links])[link];
        *bytes += u64::from(segment.payload_len);
        *packets += 1;
        let data_ack = segment.tcp.options().flatten().find_map(|option| match option {
            TcpOption::Mptcp(MptcpOption::Dss(dss)) => dss.data_ack,
            _ => None,
        });
        match data_ack {
            Some(SeqField::Full(number)) => note(&mut self.data_acks, way, time, number.0 as u32),
            Some(SeqField::Low32(low)) => note(&mut self.data_acks, way, time, low),
            None if segment.tcp.flags().contains(Flags::ACK) => {
                note(&mut self.acks, way, time, segment.tcp.ack().0);
            }
            None => {}
        }
    }

    /// The link that carried most traffic from this source to this destination; `None` without any.
    pub(super) fn link(&self, way: Way) -> Option<usize> {
        let links = self.carried.get(&way)?.iter().enumerate();
        links.max_by_key(|(link, carried)| (**carried, std::cmp::Reverse(*link))).map(|(link, _)| link)
    }

    /// The times at which the receiver of a stream acknowledged new data, ascending. `ways` lead from the receiver to
    /// the sender, one per subflow; `multipath` selects DATA_ACKs instead of TCP acknowledgements.
    pub(super) fn advances(&self, ways: &[Way], multipath: bool) -> Vec<Timestamp> {
        let acks = if multipath { &self.data_acks } else { &self.acks };
        let mut samples: Vec<AckSample> =
            ways.iter().filter_map(|way| acks.get(way)).flatten().copied().collect();
        samples.sort_by_key(|(time, _)| *time);
        advances(samples)
    }
}

fn note(acks: &mut HashMap<Way, Vec<AckSample>>, way: Way, time: Timestamp, number: u32) {
    let samples = acks.entry(way).or_default();
    if samples.last().is_none_or(|(_, last)| *last != number) {
        samples.push((time, number));
    }
}

/// The times at which a wrapping number exceeded all earlier ones, including the first.
fn advances(samples: impl IntoIterator<Item = AckSample>) -> Vec<Timestamp> {
    let mut greatest: Option<u32> = None;
    let advances_further = |(_, number): &AckSample| {
        // A number is newer if it is less than half the number space ahead (RFC 1982).
        let ahead = greatest.is_none_or(|greatest| (number.wrapping_sub(greatest) as i32) > 0);
        if ahead {
            greatest = Some(*number);
        }
        ahead
    };
    samples.into_iter().filter(advances_further).map(|(time, _)| time).collect()
}

/// A pcap file of Ethernet frames, possibly truncated, with times in nanoseconds.
struct Merged(BufWriter<File>);

impl Merged {
    fn create(path: &Path) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(path)?);
        // Magic number, version 2.4, time zone, accuracy, longest frame, Ethernet.
        for field in [0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, 1u32] {
            out.write_all(&field.to_le_bytes())?;
        }
        Ok(Self(out))
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let (seconds, nanoseconds) = (record.time.0 / 1_000_000_000, record.time.0 % 1_000_000_000);
        for field in [seconds as u32, nanoseconds as u32, record.data.len() as u32, record.wire_len] {
            self.0.write_all(&field.to_le_bytes())?;
        }
        self.0.write_all(record.data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with numbers that do not wrap.
        #[test]
        fn advances_are_those_of_whole_numbers(
            start: u32,
            steps in prop::collection::vec(-5000i64..20_000, 1..200),
        ) {
            let (mut position, mut greatest, mut expected, mut samples) = (0i64, None, Vec::new(), Vec::new());
            for (time, step) in (0..).zip(steps) {
                position = (position + step).max(0);
                samples.push((Timestamp(time), start.wrapping_add(position as u32)));
                if greatest.is_none_or(|greatest| position > greatest) {
                    greatest = Some(position);
                    expected.push(Timestamp(time));
                }
            }
            prop_assert_eq!(advances(samples), expected);
        }
    }

    #[test]
    fn the_link_that_carried_most_is_the_one() {
        let way = (([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
        let mut link_index = LinkIndex::default();
        link_index.carried.insert(way, vec![(0, 9), (100, 1), (100, 2)]);
        assert_eq!(link_index.link(way), Some(2));
        assert_eq!(link_index.link((way.1, way.0)), None);
    }
}
