//! Every option, field by field, compared with Wireshark's dissector: on generated captures with each form, and on the
//! captures in the directory `PLAIT_CAPTURES`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::forms::{frame, options};
use plait_wire::capture::{CaptureError, PcapHeader, PcapReader, PcapWriter, Timestamp};
use plait_wire::mptcp::{
    AddAddressForm, CapableFlags, CapableKeys, Join, Key, MptcpOption, ResetFlags, SeqField, Version,
};
use plait_wire::tcp::TcpOption;
use plait_wire::{LinkType, Segment};

/// Field name to values in the packet's order, joined by commas; names as tshark's without `tcp.`.
type Facts = BTreeMap<&'static str, String>;

/// All fields of the options that tshark prints, except DSS checksums, which it omits by default.
const FIELDS: [&str; 42] = [
    "srcport",
    "dstport",
    "seq_raw",
    "ack_raw",
    "window_size_value",
    "len",
    "options.mss_val",
    "options.wscale.shift",
    "options.sack_le",
    "options.sack_re",
    "options.timestamp.tsval",
    "options.timestamp.tsecr",
    "options.mptcp.subtype",
    "options.mptcp.version",
    "options.mptcp.checksumreq.flags",
    "options.mptcp.extensibility.flag",
    "options.mptcp.nomoresubflows.flag",
    "options.mptcp.sha256.flag",
    "options.mptcp.sha1.flag",
    "options.mptcp.sendkey",
    "options.mptcp.recvkey",
    "options.mptcp.datalvllen",
    "options.mptcp.backup.flag",
    "options.mptcp.addrid",
    "options.mptcp.recvtok",
    "options.mptcp.sendrand",
    "options.mptcp.sendtrunchmac",
    "options.mptcp.sendhmac",
    "options.mptcp.datafin.flag",
    "options.mptcp.dseqn8.flag",
    "options.mptcp.dseqnpresent.flag",
    "options.mptcp.dataack8.flag",
    "options.mptcp.dataackpresent.flag",
    "options.mptcp.rawdataack",
    "options.mptcp.rawdataseqno",
    "options.mptcp.subflowseqno",
    "options.mptcp.ipv4",
    "options.mptcp.ipv6",
    "options.mptcp.port",
    "options.mptcp.addaddrtrunchmac",
    "options.mptcp.rst_reason",
    "options.mptcp.flag_T.flag",
];

#[test]
fn every_option_reads_as_tshark_reads_it() {
    if !tshark_is_here("every_option_reads_as_tshark_reads_it") {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("options.pcap");
    let file = File::create(&path).expect("a file in it");
    let mut writer = PcapWriter::new(file, PcapHeader::new(LinkType::Ethernet)).expect("a writable file");
    for (index, option) in options().into_iter().enumerate() {
        for version in [4, 6] {
            let frame = frame(index as u16, version, vec![option.clone()]);
            writer.write(Timestamp(index as u64), &frame).expect("a writable file");
        }
    }
    drop(writer);
    compare(&path);
}

/// Checks the checksums too: tshark reports a correct one as 1.
#[test]
fn tshark_finds_the_checksums_right() {
    if !tshark_is_here("tshark_finds_the_checksums_right") {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("checksums.pcap");
    let file = File::create(&path).expect("a file in it");
    let mut writer = PcapWriter::new(file, PcapHeader::new(LinkType::Ethernet)).expect("a writable file");
    for (index, option) in options().into_iter().enumerate() {
        let frame = frame(index as u16, 4 + 2 * (index as u8 % 2), vec![option]);
        writer.write(Timestamp(index as u64), &frame).expect("a writable file");
    }
    drop(writer);
    let rows = tshark(&path, &["ip.checksum.status", "tcp.checksum.status"]);
    assert_eq!(rows.len(), options().len());
    for row in rows {
        assert!(row == ["1", "1"] || row == ["", "1"], "{row:?}");
    }
}

#[test]
fn real_captures_read_as_tshark_reads_them() {
    let name = "real_captures_read_as_tshark_reads_them";
    let Some(directory) = std::env::var_os("PLAIT_CAPTURES").map(PathBuf::from) else {
        println!("SKIP {name}: PLAIT_CAPTURES names no directory");
        return;
    };
    if !tshark_is_here(name) {
        return;
    }
    let mut compared = 0;
    for entry in fs::read_dir(&directory).expect("a readable directory") {
        let path = entry.expect("a readable directory").path();
        if path.extension().is_some_and(|extension| extension == "pcap") {
            compare(&path);
            compared += 1;
        }
    }
    assert!(compared > 0, "{} holds captures", directory.display());
}

/// Compares each TCP packet of a capture without malformed options.
fn compare(path: &Path) {
    let names: Vec<String> = FIELDS.iter().map(|field| format!("tcp.{field}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let rows = tshark(path, &names);
    let mut reader = PcapReader::new(File::open(path).expect("a capture")).expect("a pcap file");
    let mut number = 0;
    loop {
        let record = match reader.next_record() {
            Ok(Some(record)) => record,
            Ok(None) | Err(CaptureError::Truncated { .. }) => break,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let row = &rows[number];
        number += 1;
        let Ok(segment) = record.segment() else { continue };
        let Some(ours) = facts(&segment) else { continue };
        for (field, theirs) in FIELDS.iter().zip(row) {
            let ours = ours.get(field).map_or("", String::as_str);
            assert_eq!(ours, theirs, "{field} of packet {number} in {}: {segment:x?}", path.display());
        }
    }
    assert_eq!(number, rows.len(), "packets in {}", path.display());
    println!("{}: {number} packets", path.display());
}

fn tshark_is_here(test: &str) -> bool {
    let here = Command::new("tshark").arg("--version").output().is_ok_and(|output| output.status.success());
    if !here {
        println!("SKIP {test}: tshark cannot be run");
    }
    here
}

/// A row of values per packet.
fn tshark(path: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path);
    command.args(["-n", "-T", "fields", "-E", "separator=;", "-E", "occurrence=a", "-E", "aggregator=,"]);
    for preference in
        ["ip.check_checksum:TRUE", "tcp.check_checksum:TRUE", "tcp.relative_sequence_numbers:FALSE"]
    {
        command.args(["-o", preference]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect()
}

/// The fields that tshark should print for a segment; `None` if an option is malformed.
fn facts(segment: &Segment<'_>) -> Option<Facts> {
    let mut facts = Facts::new();
    let tcp = &segment.tcp;
    note(&mut facts, "srcport", tcp.source_port());
    note(&mut facts, "dstport", tcp.destination_port());
    note(&mut facts, "seq_raw", tcp.seq().0);
    note(&mut facts, "ack_raw", tcp.ack().0);
    note(&mut facts, "window_size_value", tcp.window());
    note(&mut facts, "len", segment.payload_len);
    for option in tcp.options() {
        match option.ok()? {
            TcpOption::MaxSegmentSize(size) => note(&mut facts, "options.mss_val", size),
            TcpOption::WindowScale(shift) => note(&mut facts, "options.wscale.shift", shift),
            TcpOption::Sack(blocks) => {
                for block in blocks.as_slice() {
                    note(&mut facts, "options.sack_le", block.left.0);
                    note(&mut facts, "options.sack_re", block.right.0);
                }
            }
            TcpOption::Timestamps { value, echo } => {
                note(&mut facts, "options.timestamp.tsval", value);
                note(&mut facts, "options.timestamp.tsecr", echo);
            }
            TcpOption::Mptcp(option) => mptcp_facts(&mut facts, &option),
            _ => {}
        }
    }
    Some(facts)
}

fn note(facts: &mut Facts, field: &'static str, value: impl ToString) {
    let values = facts.entry(field).or_default();
    if !values.is_empty() {
        values.push(',');
    }
    values.push_str(&value.to_string());
}

fn flag(facts: &mut Facts, field: &'static str, set: bool) {
    note(facts, field, u8::from(set));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mptcp_facts(facts: &mut Facts, option: &MptcpOption<'_>) {
    let subtype = "options.mptcp.subtype";
    match option {
        MptcpOption::Capable(capable) => {
            note(facts, subtype, 0);
            note(facts, "options.mptcp.version", if capable.version == Version::V0 { 0 } else { 1 });
            let has = |flag| capable.flags.contains(flag);
            flag(facts, "options.mptcp.checksumreq.flags", has(CapableFlags::CHECKSUM));
            flag(facts, "options.mptcp.extensibility.flag", has(CapableFlags::EXTENSIBILITY));
            match capable.version {
                Version::V0 => flag(facts, "options.mptcp.sha1.flag", has(CapableFlags::HMAC)),
                Version::V1 => {
                    flag(facts, "options.mptcp.sha256.flag", has(CapableFlags::HMAC));
                    flag(facts, "options.mptcp.nomoresubflows.flag", has(CapableFlags::NO_MORE_SUBFLOWS));
                }
            }
            let key = |key: &Key| u64::from_be_bytes(*key.as_bytes());
            match &capable.keys {
                CapableKeys::None => {}
                CapableKeys::Sender(sender) => note(facts, "options.mptcp.sendkey", key(sender)),
                CapableKeys::Both { sender, receiver, data } => {
                    note(facts, "options.mptcp.sendkey", key(sender));
                    note(facts, "options.mptcp.recvkey", key(receiver));
                    if let Some(data) = data {
                        note(facts, "options.mptcp.datalvllen", data.length);
                    }
                }
            }
        }
        MptcpOption::Join(join) => {
            note(facts, subtype, 1);
            match join {
                Join::Syn { backup, address_id, token, nonce } => {
                    flag(facts, "options.mptcp.backup.flag", *backup);
                    note(facts, "options.mptcp.addrid", address_id.0);
                    note(facts, "options.mptcp.recvtok", token.0);
                    note(facts, "options.mptcp.sendrand", nonce.0);
                }
                Join::SynAck { backup, address_id, hmac, nonce } => {
                    flag(facts, "options.mptcp.backup.flag", *backup);
                    note(facts, "options.mptcp.addrid", address_id.0);
                    note(facts, "options.mptcp.sendtrunchmac", u64::from_be_bytes(*hmac));
                    note(facts, "options.mptcp.sendrand", nonce.0);
                }
                Join::Ack { hmac } => note(facts, "options.mptcp.sendhmac", hex(hmac)),
            }
        }
        MptcpOption::Dss(dss) => {
            note(facts, subtype, 2);
            let full = |field: Option<SeqField>| matches!(field, Some(SeqField::Full(_)));
            let value = |field| match field {
                SeqField::Low32(low) => u64::from(low),
                SeqField::Full(data_seq) => data_seq.0,
            };
            flag(facts, "options.mptcp.datafin.flag", dss.data_fin);
            flag(facts, "options.mptcp.dseqnpresent.flag", dss.mapping.is_some());
            flag(facts, "options.mptcp.dseqn8.flag", full(dss.mapping.map(|mapping| mapping.data_seq)));
            flag(facts, "options.mptcp.dataackpresent.flag", dss.data_ack.is_some());
            flag(facts, "options.mptcp.dataack8.flag", full(dss.data_ack));
            if let Some(data_ack) = dss.data_ack {
                note(facts, "options.mptcp.rawdataack", value(data_ack));
            }
            if let Some(mapping) = dss.mapping {
                note(facts, "options.mptcp.rawdataseqno", value(mapping.data_seq));
                note(facts, "options.mptcp.subflowseqno", mapping.subflow_seq.0);
                note(facts, "options.mptcp.datalvllen", mapping.length);
            }
        }
        MptcpOption::AddAddress(add) => {
            note(facts, subtype, 3);
            note(facts, "options.mptcp.addrid", add.id.0);
            match add.address {
                IpAddr::V4(address) => note(facts, "options.mptcp.ipv4", address),
                IpAddr::V6(address) => note(facts, "options.mptcp.ipv6", address),
            }
            if let Some(port) = add.port {
                note(facts, "options.mptcp.port", port);
            }
            if let AddAddressForm::Announce { hmac } = add.form {
                note(facts, "options.mptcp.addaddrtrunchmac", u64::from_be_bytes(hmac));
            }
        }
        MptcpOption::RemoveAddress(ids) => {
            note(facts, subtype, 4);
            ids.iter().for_each(|id| note(facts, "options.mptcp.addrid", id.0));
        }
        MptcpOption::Priority(priority) => {
            note(facts, subtype, 5);
            flag(facts, "options.mptcp.backup.flag", priority.backup);
            priority.address_id.iter().for_each(|id| note(facts, "options.mptcp.addrid", id.0));
        }
        MptcpOption::Fail(data_seq) => {
            note(facts, subtype, 6);
            note(facts, "options.mptcp.rawdataseqno", data_seq.0);
        }
        MptcpOption::FastClose(key) => {
            note(facts, subtype, 7);
            note(facts, "options.mptcp.recvkey", u64::from_be_bytes(*key.as_bytes()));
        }
        MptcpOption::Reset(reset) => {
            note(facts, subtype, 8);
            flag(facts, "options.mptcp.flag_T.flag", reset.flags.contains(ResetFlags::TRANSIENT));
            note(facts, "options.mptcp.rst_reason", format!("0x{:02x}", reset.reason));
        }
        MptcpOption::Unknown(raw) => note(facts, subtype, raw.subtype()),
    }
}
