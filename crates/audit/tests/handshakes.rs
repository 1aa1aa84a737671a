//! Synthetic connections in every mode, from the handshake on: what an eavesdropper on the path of the handshake learns,
//! and that damaged captures cause at most an error.

use std::io::Write as _;
use std::net::Ipv4Addr;

use plait_audit::{
    Audit, AuditError, Conclusion, Mode, ModeSource, Options, PathView, Source, audit, write_html,
};
use plait_proto::codec::stream::{Direction, StreamCipher, StreamSecret};
use plait_proto::codec::xor64::{Encoder, Seed};
use plait_wire::capture::{PcapHeader, PcapWriter, Timestamp};
use plait_wire::checksum::PseudoHeader;
use plait_wire::mptcp::{
    Capable, CapableFlags, CapableKeys, Dss, Key, Mapping, MptcpOption, SeqField, SubflowSeq, Version,
};
use plait_wire::tcp::{Experimental, ExperimentalKind, Flags, Seq, TcpOption};
use plait_wire::{LinkType, ipv4, protocol, tcp};
use proptest::prelude::*;
use ring::hmac;

const KEYS: [[u8; 8]; 2] = [*b"initiate", *b"responds"];
const RANDOM: [u8; 32] = [0x5a; 32];
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const PORTS: [u16; 2] = [40_000, 443];

/// A connection on one path: the modes bytes of plait's option in SYN and SYN-ACK, and what both sides sent.
struct CapturedConnection {
    option: Option<(u8, u8)>,
    sent: [Vec<u8>; 2],
}

impl CapturedConnection {
    fn capture(&self) -> Vec<u8> {
        self.capture_of(262_144)
    }

    /// A capture with the first `snap_len` bytes of each packet.
    fn capture_of(&self, snap_len: u32) -> Vec<u8> {
        written(self.packets(), snap_len)
    }

    /// All packets, from the SYN to both FINs.
    fn packets(&self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        let bodies = self
            .option
            .map(|(offered, chosen)| [offered, chosen].map(|modes| [b'P', b'L', b'A', b'I', 1, modes]));
        let plait = |side: usize| {
            let body = bodies.as_ref().map(|bodies| bodies[side].as_slice());
            body.map(|body| TcpOption::Experimental(Experimental { kind: ExperimentalKind::Kind254, body }))
        };
        let key = |side: usize| Key::new(KEYS[side]);
        let both = CapableKeys::Both { sender: key(0), receiver: key(1), data: None };
        let syn = capable(CapableKeys::None).chain(plait(0));
        let syn_ack = capable(CapableKeys::Sender(key(1))).chain(plait(1));
        packets.push(packet(0, 0, Flags::SYN, syn, &[]));
        packets.push(packet(1, 0, Flags::SYN | Flags::ACK, syn_ack, &[]));
        packets.push(packet(0, 1, Flags::ACK, capable(both), &[]));
        for side in [0, 1] {
            for (number, piece) in self.sent[side].chunks(1000).enumerate() {
                let offset = number as u32 * 1000;
                let mapping = Mapping {
                    data_seq: SeqField::Full(key(side).idsn(Version::V1).advance(1 + u64::from(offset))),
                    subflow_seq: SubflowSeq(1 + offset),
                    length: piece.len() as u16,
                    checksum: None,
                };
                let dss = MptcpOption::Dss(Dss { data_ack: None, mapping: Some(mapping), data_fin: false });
                packets.push(packet(side, 1 + offset, Flags::ACK, [TcpOption::Mptcp(dss)], piece));
            }
        }
        for side in [0, 1] {
            packets.push(packet(side, 1 + self.sent[side].len() as u32, Flags::FIN | Flags::ACK, [], &[]));
        }
        packets
    }
}

/// A capture of these packets with the first `snap_len` bytes of each.
fn written(packets: impl IntoIterator<Item = Vec<u8>>, snap_len: u32) -> Vec<u8> {
    let header = PcapHeader { snap_len, ..PcapHeader::new(LinkType::RawIp) };
    let mut pcap = PcapWriter::new(Vec::new(), header).expect("a vector takes all");
    for (number, packet) in packets.into_iter().enumerate() {
        pcap.write(Timestamp(1_000_000_000_000 + number as u64 * 1_000_000), &packet)
            .expect("a vector takes all");
    }
    pcap.into_inner()
}

fn capable<'a>(keys: CapableKeys) -> impl Iterator<Item = TcpOption<'a>> {
    let capable = Capable { version: Version::V1, flags: CapableFlags::HMAC, keys };
    std::iter::once(TcpOption::Mptcp(MptcpOption::Capable(capable)))
}

/// `seq` is relative to the SYN.
fn packet<'a>(
    side: usize,
    seq: u32,
    flags: Flags,
    options: impl IntoIterator<Item = TcpOption<'a>>,
    payload: &[u8],
) -> Vec<u8> {
    let header = tcp::Repr {
        source_port: PORTS[side],
        destination_port: PORTS[1 - side],
        seq: Seq(7000).advance(seq),
        ack: if flags.contains(Flags::ACK) { Seq(7001) } else { Seq(0) },
        flags,
        window: 1000,
        urgent: 0,
        options: options.into_iter().collect(),
    };
    let [source, destination] = [ADDRESSES[side], ADDRESSES[1 - side]];
    let mut segment = Vec::new();
    header.emit(PseudoHeader::V4 { source, destination }, payload, &mut segment).expect("options that fit");
    let mut packet = Vec::new();
    ipv4::Repr::new(source, destination, protocol::TCP)
        .emit(segment.len(), &mut packet)
        .expect("a packet that fits");
    packet.extend(segment);
    packet
}

fn audited(capture: &[u8], options: &Options) -> Result<Audit, AuditError> {
    audited_together(&[capture], options)
}

fn audited_together(captures: &[&[u8]], options: &Options) -> Result<Audit, AuditError> {
    let stored = captures.iter().map(|capture| {
        let mut file = tempfile::NamedTempFile::new().expect("a file in the directory for temporary ones");
        file.write_all(capture).expect("there is room for it");
        file
    });
    let files: Vec<_> = stored.collect();
    let sources = files.iter().map(|file| Source { name: "path".into(), file: file.path().to_owned() });
    audit(&sources.collect::<Vec<_>>(), options, &|_| ())
}

/// Deterministic pseudorandom bytes.
fn random(mut state: u64, length: usize) -> Vec<u8> {
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A connection that carries `content` in the mode of the bit `chosen`.
fn protected_connection(offered: u8, chosen: u8, content: &[Vec<u8>; 2]) -> CapturedConnection {
    let mut sent = content.clone();
    for (side, bytes) in sent.iter_mut().enumerate() {
        match chosen {
            0x01 => Encoder::new(&Seed::new(&KEYS[side]).expect("8 bytes")).encode_in_place(bytes),
            0x02 => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, &KEYS[side]);
                let seed = hmac::sign(&key, &KEYS[1 - side]);
                Encoder::new(&Seed::new(seed.as_ref()).expect("32 bytes")).encode_in_place(bytes);
            }
            0x04 | 0x08 => {
                let cipher = if chosen == 0x04 { StreamCipher::ChaCha20 } else { StreamCipher::Aes256Ctr };
                let direction = [Direction::ToResponder, Direction::ToInitiator][side];
                StreamSecret::new(&KEYS[0], &KEYS[1], &RANDOM).keystream(cipher, direction).apply(bytes);
                if side == 0 {
                    bytes.splice(0..0, RANDOM);
                }
            }
            _ => {}
        }
    }
    CapturedConnection { option: Some((offered, chosen)), sent }
}

#[test]
fn capturing_the_handshake_reveals_everything_except_sealed() {
    let content = [random(1, 3000), random(2, 5000)];
    for (chosen, mode) in [
        (0x01, Mode::Xor64),
        (0x02, Mode::Xor64),
        (0x04, Mode::Stream),
        (0x08, Mode::Stream),
        (0x10, Mode::Sealed),
        (0x20, Mode::Sealed),
    ] {
        // The ground truth is what the server sent.
        let options = Options { ground_truth: Some(content[1].clone()), ..Options::default() };
        let found =
            audited(&protected_connection(0x3f, chosen, &content).capture(), &options).expect("a capture");
        let path = &found.paths[0];
        assert_eq!(path.mode, Some(mode), "{chosen:#04x}");
        let connection = &path.connections[0];
        assert_eq!((connection.mode_source, connection.keys_captured), (ModeSource::Handshake, true));
        assert_eq!(path.exposure.fraction, 1.0);
        let (recovered, correct) = if mode == Mode::Sealed { (0.0, 0.0) } else { (1.0, 1.0) };
        assert_eq!(path.recovered_fraction, recovered, "{chosen:#04x}: {}", path.verdict);
        assert_eq!(path.correct_fraction, Some(correct), "{chosen:#04x}: {}", path.verdict);
    }
}

#[test]
fn failed_negotiation_is_mode_off() {
    let content = [random(1, 300), random(2, 500)];
    let plain = CapturedConnection { option: None, sent: content.clone() };
    // Chosen: no mode, several modes, an unknown mode.
    for connection in [
        plain,
        protected_connection(0x3f, 0, &content),
        protected_connection(0x3f, 0x30, &content),
        protected_connection(0xff, 0x80, &content),
    ] {
        let found = audited(&connection.capture(), &Options::default()).expect("a capture");
        assert_eq!(found.paths[0].mode, Some(Mode::Off));
        assert_eq!(found.paths[0].recovered_fraction, 1.0);
    }
}

#[test]
fn results_contain_no_keys() {
    let content = [b"nothing but text ".repeat(100), random(2, 3000)];
    for chosen in [0x01, 0x02, 0x08] {
        let found = audited(&protected_connection(0x3f, chosen, &content).capture(), &Options::default())
            .expect("a capture");
        let mut page = Vec::new();
        write_html(&found, &mut page).expect("a vector takes all");
        let written = serde_json::to_string(&found).expect("a document") + &String::from_utf8_lossy(&page);
        for secret in KEYS.iter().map(|key| String::from_utf8_lossy(key).into_owned()) {
            assert!(!written.contains(&secret));
        }
        let content = "nothing but text nothing";
        assert!(
            !serde_json::to_string(&found).expect("a document").contains(content),
            "only the page contains content"
        );
    }
}

#[test]
fn reports_payload_beyond_the_limit() {
    let content = [random(1, 100), random(2, 100_000)];
    let options = Options { payload_limit: 40_000, ..Options::default() };
    let found = audited(&protected_connection(0x3f, 0x02, &content).capture(), &options).expect("a capture");
    assert!(found.payload_dropped > 50_000);
    assert!(found.paths[0].recovered_fraction < 0.5);
}

fn path_of(connection: &CapturedConnection, snap_len: u32, options: &Options) -> Option<PathView> {
    audited(&connection.capture_of(snap_len), options).ok()?.paths.pop()
}

#[test]
fn nothing_read_requires_evidence() {
    let options = Options::default();
    let sealed = protected_connection(0x3f, 0x10, &[random(1, 3000), random(2, 5000)]);
    let view = path_of(&sealed, 262_144, &options).expect("a path");
    assert_eq!(
        (view.conclusion, view.missing_evidence.len()),
        (Conclusion::NothingRead, 0),
        "{}",
        view.verdict
    );

    let truncated = path_of(&sealed, 128, &options).expect("a path");
    assert_eq!(truncated.conclusion, Conclusion::CannotJudge);
    assert!(truncated.verdict.starts_with("Cannot judge: 9"), "{}", truncated.verdict);
    assert!(truncated.verdict.contains(" % of the payload was not captured"), "{}", truncated.verdict);

    let not_attacked = path_of(&sealed, 262_144, &Options { runs: 0, ..options.clone() }).expect("a path");
    assert_eq!(not_attacked.conclusion, Conclusion::CannotJudge);
    let short = protected_connection(0x3f, 0x01, &[random(1, 40), random(2, 50)]);
    let without_keys = CapturedConnection { option: None, sent: short.sent };
    assert_eq!(path_of(&without_keys, 262_144, &options).expect("a path").conclusion, Conclusion::Read);

    let silent = CapturedConnection { option: Some((0x3f, 0x10)), sent: [Vec::new(), Vec::new()] };
    assert_eq!(path_of(&silent, 262_144, &options).expect("a path").conclusion, Conclusion::NothingCrossed);
    assert_eq!(path_of(&silent, 44, &options).expect("a path").conclusion, Conclusion::NothingCrossed);
}

#[test]
fn a_damaged_capture_is_no_evidence_of_nothing() {
    let sealed = protected_connection(0x3f, 0x10, &[random(1, 3000), random(2, 5000)]);
    let mut capture = sealed.capture();
    capture.truncate(capture.len() - 300);
    let view = audited(&capture, &Options::default()).expect("a capture").paths.pop().expect("a path");
    assert_eq!(view.conclusion, Conclusion::CannotJudge, "{}", view.verdict);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever the mode, the content and the snap length: a capture that lacks payload never says that nothing is read, nor
    /// that more is read than the whole shows.
    #[test]
    fn truncation_never_makes_a_verdict_better(
        chosen in prop_oneof![Just(0u8), Just(1), Just(2), Just(4), Just(8), Just(0x10)],
        text: bool, lengths in (0..1500usize, 0..4000usize), snap_len in 40..1200u32,
    ) {
        let text_of = |length: usize| b"The quick brown fox jumps over the lazy dog. ".repeat(90)[..length].to_vec();
        let content = match text {
            true => [text_of(lengths.0), text_of(lengths.1)],
            false => [random(3, lengths.0), random(4, lengths.1)],
        };
        let connection = protected_connection(0x3f, chosen, &content);
        let whole = path_of(&connection, 262_144, &Options::default()).expect("a path");
        let Some(cut) = path_of(&connection, snap_len, &Options::default()) else {
            return Ok(());
        };
        prop_assert_eq!(whole.not_captured_bytes, 0);
        prop_assert!(cut.recovered_bytes <= whole.recovered_bytes, "{} beyond {}", cut.verdict, whole.verdict);
        if cut.not_captured_bytes > 0 {
            let expected = [Conclusion::CannotJudge, Conclusion::Read];
            prop_assert!(expected.contains(&cut.conclusion), "{}", cut.verdict);
            prop_assert!(!cut.missing_evidence.is_empty());
            prop_assert!(cut.verdict.contains("annot judge"), "{}", cut.verdict);
        }
        // A handshake that was cut says nothing of the mode.
        if cut.connections.iter().any(|connection| connection.mode_source == ModeSource::Handshake) {
            prop_assert_eq!(cut.mode, whole.mode);
        }
        if whole.conclusion == Conclusion::Read {
            prop_assert!(cut.conclusion == Conclusion::Read || cut.conclusion == Conclusion::CannotJudge);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Whatever the mode and the content, and whichever packets a capture lacks: as long as it shows that a connection was
    /// accepted, it never says that nothing is read.
    #[test]
    fn missing_packets_never_make_a_verdict_better(
        chosen in prop_oneof![Just(0u8), Just(1), Just(2), Just(4), Just(8), Just(0x10)],
        text: bool,
        lengths in (0..1500usize, 1..4000usize),
        kept in proptest::collection::vec(proptest::bool::weighted(0.8), 16),
    ) {
        let text_of = |length: usize| b"The quick brown fox jumps over the lazy dog. ".repeat(90)[..length].to_vec();
        let content = match text {
            true => [text_of(lengths.0), text_of(lengths.1)],
            false => [random(3, lengths.0), random(4, lengths.1)],
        };
        let connection = protected_connection(0x3f, chosen, &content);
        let packets = connection.packets();
        let options = Options::default();
        let whole = path_of(&connection, 262_144, &options).expect("a path");
        let is_complete = packets.iter().zip(&kept).all(|(_, kept)| *kept);
        let only_asked = !kept[1..packets.len()].contains(&true);
        let rest = packets.into_iter().zip(&kept).filter(|(_, kept)| **kept).map(|(packet, _)| packet);
        let cut = match audited(&written(rest, 262_144), &options) {
            Ok(mut audit) => audit.paths.pop().expect("a path"),
            Err(error) => {
                prop_assert!(matches!(error, AuditError::NoTcp { .. }), "{}", error);
                return Ok(());
            }
        };
        if is_complete {
            prop_assert_eq!((cut.conclusion, cut.verdict), (whole.conclusion, whole.verdict));
        } else if only_asked {
            prop_assert_eq!(cut.conclusion, Conclusion::NothingCrossed);
        } else {
            let expected = [Conclusion::CannotJudge, Conclusion::Read];
            prop_assert!(expected.contains(&cut.conclusion), "{}", cut.verdict);
            prop_assert!(!cut.missing_evidence.is_empty());
            prop_assert!(cut.verdict.contains("annot judge"), "{}", cut.verdict);
        }
    }
}

/// A side whose packets take another path, of which there is a capture, is missing in none.
#[test]
fn directions_on_different_paths_are_no_gaps() {
    let text = |length: usize| b"The quick brown fox jumps over the lazy dog. ".repeat(90)[..length].to_vec();
    let connection = protected_connection(0x3f, 0, &[text(1500), text(3000)]);
    let of_side = |side: usize| {
        let mut packets = connection.packets();
        // The source address of an IPv4 header.
        packets.retain(|packet| packet[12..16] == ADDRESSES[side].octets());
        written(packets, 262_144)
    };
    let (client, server) = (of_side(0), of_side(1));
    let both = audited_together(&[&client, &server], &Options::default()).expect("two captures");
    for path in &both.paths {
        assert_eq!((path.missing_bytes, path.missing_evidence.len()), (0, 0), "{}", path.verdict);
    }
    let alone = audited(&server, &Options::default()).expect("a capture").paths.pop().expect("a path");
    assert!(alone.verdict.contains("no opening was captured of 1 TCP connection"), "{}", alone.verdict);
}

#[test]
fn counts_the_bytes_of_missing_packets() {
    let sealed = protected_connection(0x3f, 0x10, &[random(1, 3000), random(2, 5000)]);
    assert_eq!(path_of(&sealed, 262_144, &Options::default()).expect("a path").missing_bytes, 0);
    // The handshake has 3 packets; the data follows in packets of 1000 bytes.
    let without = |missing: &[usize]| {
        let packets = sealed.packets().into_iter().enumerate();
        let packets = packets.filter(|(number, _)| !missing.contains(number)).map(|(_, packet)| packet);
        audited(&written(packets, 262_144), &Options::default())
            .expect("a capture")
            .paths
            .pop()
            .expect("a path")
    };
    let view = without(&[4, 9, 10]);
    assert_eq!((view.conclusion, view.missing_bytes), (Conclusion::CannotJudge, 3000));
    assert!(
        view.verdict.starts_with("Cannot judge: 3,000 bytes are missing in the capture"),
        "{}",
        view.verdict
    );
    let without_end = without(&[11, 12]);
    assert_eq!((without_end.conclusion, without_end.missing_bytes), (Conclusion::CannotJudge, 0));
    assert!(
        without_end.verdict.contains("no end was captured of 1 TCP connection"),
        "{}",
        without_end.verdict
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn damaged_captures_give_a_result_or_an_error(
        chosen in prop_oneof![Just(0u8), Just(1), Just(2), Just(4), Just(8), Just(0x10)],
        damage in proptest::collection::vec((0..20_000usize, any::<u8>()), 0..40),
        cut in 0..20_000usize,
    ) {
        let mut capture = protected_connection(0x3f, chosen, &[random(3, 400), random(4, 2000)]).capture();
        for (at, byte) in damage {
            if let Some(place) = capture.get_mut(at) {
                *place = byte;
            }
        }
        capture.truncate(cut.max(24));
        if let Ok(found) = audited(&capture, &Options::default()) {
            write_html(&found, &mut Vec::new()).expect("a vector takes all");
            for path in &found.paths {
                prop_assert!((0.0..=1.0).contains(&path.recovered_fraction));
                prop_assert!((0.0..=1.0).contains(&path.confidence));
            }
        }
    }
}
