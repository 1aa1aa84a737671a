//! pcapng files of several sections, interfaces and byte orders, generated: they read as written and as Wireshark reads
//! them, and damaged ones cause no panic.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::blocks::Blocks;
use crate::pcapng::{Owned, read};
use plait_wire::LinkType;
use plait_wire::capture::{ByteOrder, CaptureError, Timestamp};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

#[derive(Clone, Debug)]
struct Section {
    order: ByteOrder,
    interfaces: Vec<Interface>,
    packets: Vec<Packet>,
}

#[derive(Clone, Debug)]
struct Interface {
    link_type: LinkType,
    snap_len: u32,
    /// The value of if_tsresol, and the ticks per second that it specifies.
    resolution: (u8, u64),
    /// The value of if_tsoffset.
    offset: Option<i64>,
}

#[derive(Clone, Debug)]
struct Packet {
    form: Form,
    interface: Index,
    /// The interface's clock in seconds and 2^-32 seconds.
    time: (u32, u32),
    wire_len: u32,
    data: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Enhanced,
    Obsolete,
    Simple,
    /// A block without a packet.
    Other,
}

fn section() -> impl Strategy<Value = Section> {
    let order = select(vec![ByteOrder::Little, ByteOrder::Big]);
    (order, vec(interface(), 1..4), vec(packet(), 0..8)).prop_map(|(order, interfaces, packets)| Section {
        order,
        interfaces,
        packets,
    })
}

fn interface() -> impl Strategy<Value = Interface> {
    let link_type = select(vec![LinkType::Ethernet, LinkType::RawIp, LinkType::LinuxSll2]);
    let resolution = select(vec![(0, 1), (3, 1000), (6, 1_000_000), (9, 1_000_000_000), (0x80 | 10, 1024)]);
    let offset = select(vec![None, Some(0), Some(3600), Some(-86_400)]);
    (link_type, select(vec![0, 5, 64, 262_144]), resolution, offset).prop_map(
        |(link_type, snap_len, resolution, offset)| Interface { link_type, snap_len, resolution, offset },
    )
}

fn packet() -> impl Strategy<Value = Packet> {
    let form = select(vec![Form::Enhanced, Form::Enhanced, Form::Obsolete, Form::Simple, Form::Other]);
    let time = (1_000_000_000u32..4_000_000_000, any::<u32>());
    (form, any::<Index>(), time, 0u32..2000, vec(any::<u8>(), 0..90)).prop_map(
        |(form, interface, time, more, data)| Packet {
            form,
            interface,
            time,
            wire_len: data.len() as u32 + more,
            data,
        },
    )
}

/// Writes a file of these sections, and returns it with its records.
fn write(sections: &[Section]) -> (Vec<u8>, Vec<Owned>) {
    let (mut file, mut records, mut last) = (Blocks::new(), Vec::new(), Timestamp(0));
    for section in sections {
        file.section(section.order);
        for interface in &section.interfaces {
            let mut options = vec![(2, b"eth0".to_vec()), (9, vec![interface.resolution.0])];
            options.extend(interface.offset.map(|offset| (14, file.long(offset))));
            file.interface(interface.link_type.number(), interface.snap_len, &options);
        }
        for packet in &section.packets {
            let number = match packet.form {
                Form::Simple => 0,
                _ => packet.interface.index(section.interfaces.len()),
            };
            let interface = &section.interfaces[number];
            let (ticks, time) = clock(interface, packet.time);
            let Packet { wire_len, data, .. } = packet;
            let (mut wire_len, mut data) = (*wire_len, data.as_slice());
            match packet.form {
                Form::Enhanced => file.enhanced(number as u32, ticks, wire_len, data),
                Form::Obsolete => file.obsolete(number as u16, ticks, wire_len, data),
                Form::Simple => {
                    // Its captured length is not written, but follows from the snap length.
                    let limit = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
                    if limit as usize > data.len() {
                        wire_len = data.len() as u32;
                    }
                    data = &data[..data.len().min(limit as usize)];
                    file.simple(wire_len, data);
                }
                Form::Other => {
                    file.block(0x0bad_0bad, data);
                    continue;
                }
            }
            if !matches!(packet.form, Form::Simple) {
                last = time;
            }
            records.push((last, number as u32, interface.link_type, wire_len, data.to_vec()));
        }
    }
    (file.bytes, records)
}

/// The time of a packet in ticks of its interface, and the expected time stamp.
fn clock(interface: &Interface, (seconds, part): (u32, u32)) -> (u64, Timestamp) {
    let rate = interface.resolution.1;
    let rest = (u64::from(part) * rate) >> 32;
    let whole = i64::from(seconds) + interface.offset.unwrap_or(0);
    let nanoseconds = whole as u64 * 1_000_000_000 + rest * 1_000_000_000 / rate;
    (u64::from(seconds) * rate + rest, Timestamp(nanoseconds))
}

proptest! {
    #[test]
    fn written_sections_round_trip(sections in vec(section(), 1..5)) {
        let (file, expected) = write(&sections);
        let (records, error) = read(&file);
        prop_assert!(error.is_none(), "{:?}", error);
        prop_assert_eq!(records, expected);
    }

    #[test]
    fn keeps_records_before_damage(
        sections in vec(section(), 1..5),
        at in any::<Index>(),
        damage in vec(any::<u8>(), 1..9),
        shift in 0usize..9,
    ) {
        let (mut file, _) = write(&sections);
        let (whole, _) = read(&file);
        let at = at.index(file.len());
        // The records before the damage, from a file that ends there.
        let before = read(&file[..at]).0.len();
        let end = file.len().min(at + shift);
        file.splice(at..end, damage);
        let (records, error) = read(&file);
        prop_assert!(records.len() >= before);
        prop_assert_eq!(&records[..before], &whole[..before]);
        prop_assert!(records.iter().all(|(.., wire_len, data)| data.len() <= *wire_len as usize));
        prop_assert!(!matches!(error, Some(CaptureError::Io(_))), "{:?}", error);
    }
}

/// Interface, wire length, captured length and time as tshark prints them, with an empty time if there is none; `None`
/// if tshark is missing.
fn by_tshark(path: &Path) -> Option<Vec<[String; 4]>> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-T", "fields", "-E", "separator=;", "-r"]).arg(path);
    for field in ["interface_id", "len", "cap_len", "time_epoch"] {
        tshark.args(["-e", &format!("frame.{field}")]);
    }
    let output = match tshark.output() {
        Ok(output) => output,
        Err(error) => {
            println!("SKIP sections_read_as_tshark_reads_them: tshark cannot be run: {error}");
            return None;
        }
    };
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{message}");
    let rows = String::from_utf8(output.stdout).expect("text");
    let row = |row: &str| {
        let fields: Vec<String> = row.split(';').map(String::from).collect();
        fields.try_into().expect("four fields")
    };
    Some(rows.lines().map(row).collect())
}

#[test]
fn sections_read_as_tshark_reads_them() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("sections.pcapng");
    let (mut runner, mut compared) = (TestRunner::deterministic(), 0);
    for _ in 0..10 {
        let sections = vec(section(), 2..5).new_tree(&mut runner).expect("sections").current();
        let (file, _) = write(&sections);
        fs::write(&path, &file).expect("a writable directory");
        let Some(rows) = by_tshark(&path) else { return };
        let (records, error) = read(&file);
        assert!(error.is_none(), "{error:?}");
        assert_eq!(records.len(), rows.len());
        for ((time, interface, _, wire_len, data), row) in records.iter().zip(&rows) {
            let facts = [interface.to_string(), wire_len.to_string(), data.len().to_string()];
            assert_eq!(facts, row[..3]);
            // A simple packet has no time.
            assert!(row[3].is_empty() || row[3] == time.to_string(), "{time}, {row:?}");
            compared += 1;
        }
    }
    assert!(compared > 0);
}
