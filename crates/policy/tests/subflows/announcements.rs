//! ADD_ADDR blocked, echoed and added, packet by packet.

use plait_policy::engine::Verdict;

use crate::packets::{
    ACK, Checksum, DATA_ACK_4, DATA_ACK_8, FIN, PacketFormat, Segment, Subflow, TIMESTAMPS, acknowledgment,
    dry_run, errors, for_each_format, may_run, packet_formats, usual,
};

/// RFC 8684, section 3.4.1: kind, length, subtype, id, address, port, HMAC, by length.
fn announcement(length: u8) -> Vec<u8> {
    [&[30, length, 0x30, 9][..], &(10..6 + length).collect::<Vec<_>>()].concat()
}

const LENGTHS: [u8; 4] = [16, 18, 28, 30];

const BLOCK: [(&str, &str); 1] = [("packet(add_addr)", "\"block_subflow\"")];
const BLOCK_AND_ADD: [(&str, &str); 2] = [BLOCK[0], ("not packet(add_addr)", "\"add_subflow\"")];

/// Padded with NOPs.
fn padded(option: &[u8]) -> Vec<u8> {
    let mut padded = option.to_vec();
    padded.resize(option.len().next_multiple_of(4), 1);
    padded
}

#[test]
fn block_subflow_drops_pure_acknowledgments_with_add_addr() {
    for_each_format(&BLOCK, |subflow| {
        subflow.open();
        for length in LENGTHS {
            let announcement = acknowledgment(&padded(&announcement(length)));
            for _ in 0..2 {
                assert_eq!(subflow.run(&announcement).verdict, Verdict::Drop);
                assert_eq!(subflow.direction().withheld, length);
            }
        }
        subflow.stays(&usual());
        subflow.stays(&acknowledgment(&[30, 8, 0x31, 9, 10, 0, 0, 1]));
    });
}

#[test]
fn block_subflow_invalidates_the_hmac_on_data_packets() {
    for_each_format(&BLOCK, |subflow| {
        // In a test run at TC the kernel treats the checksum as covering the whole packet and adjusts it.
        let PacketFormat { checksum, via_tc, .. } = subflow.format;
        if checksum == Checksum::Partial && via_tc {
            return;
        }
        subflow.open();
        for length in LENGTHS {
            for before in [&[][..], &[1], &[1, 1, 1]] {
                let mut options = [before, &announcement(length)].concat();
                let end = options.len();
                options.resize(end.next_multiple_of(4), 1);
                for (flags, payload) in [(ACK, vec![1, 2, 3]), (ACK | FIN, vec![])] {
                    let segment = Segment { flags, payload, ..acknowledgment(&options) };
                    let after = subflow.becomes(&segment);
                    let hmac = end - 8..end;
                    assert_ne!(after.options[hmac.clone()], options[hmac.clone()]);
                    let mut mended = after.clone();
                    mended.options[hmac.clone()].copy_from_slice(&options[hmac]);
                    assert_eq!(mended, segment);
                }
                assert_eq!(subflow.direction().withheld, length);
            }
        }
    });
}

#[test]
fn block_subflow_echoes_on_request() {
    for_each_format(&[("packet(add_addr)", "{ block_subflow = { echo = true } }")], |subflow| {
        subflow.open();
        let option = announcement(18);
        let segment = acknowledgment(&[&TIMESTAMPS[..], &padded(&option)].concat());
        assert_eq!(subflow.run(&segment).verdict, Verdict::Drop, "no window of the other side is known");
        subflow.acknowledged(77);
        let answer = subflow.answer(&segment);
        // Without the HMAC, and with the flag E.
        let echo = [&[30, 10, 0x31][..], &option[3..10], &[1, 1]].concat();
        let times = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 7];
        let options = [&echo[..], &times, &[1; 8]].concat();
        assert_eq!(answer, Segment { seq: 5001, ack: 1001, window: 77, options, ..segment });
        assert_eq!(subflow.direction().withheld, 18);
    });
}

#[test]
fn block_subflow_ignores_other_options() {
    if !may_run() {
        return;
    }
    let format: PacketFormat = packet_formats()[0];
    let dry_run = dry_run(format.hook, &[("any", "\"block_subflow\"")]);
    let subflow = Subflow { dry_run: &dry_run, format, port: 1 };
    subflow.open();
    let version_0 = [30, 8, 0x34, 9, 10, 0, 0, 1];
    for (count, option) in (1..).zip([&version_0[..], &announcement(17), &announcement(20), &[30, 3, 0x30]]) {
        subflow.stays(&acknowledgment(&padded(option)));
        assert_eq!(errors(&dry_run, 0), count);
    }
}

#[test]
fn add_subflow_adds_the_blocked_option_to_a_pure_acknowledgment() {
    for_each_format(&BLOCK_AND_ADD, |subflow| {
        for length in LENGTHS {
            let subflow = &Subflow { port: subflow.port + u16::from(length % 7), ..*subflow };
            subflow.open();
            subflow.stays(&usual());
            let option = padded(&announcement(length));
            assert_eq!(subflow.run(&acknowledgment(&option)).verdict, Verdict::Drop);
            subflow.stays(&Segment { payload: vec![1], ..usual() });
            // With an 8-byte DATA_ACK and timestamps there is room for 16 bytes; first the DATA_ACK is shortened,
            // then timestamps are dropped.
            let rest: &[u8] = match length {
                16 => &usual().options,
                18 | 28 => &TIMESTAMPS,
                _ => &[],
            };
            let after = subflow.becomes(&usual());
            assert_eq!(after, Segment { options: [&option[..], rest].concat(), ..usual() });
            subflow.stays(&usual());
            assert_eq!(subflow.direction().withheld, 0);
        }
    });
}

#[test]
fn add_subflow_replaces_only_padding_and_timestamps() {
    for_each_format(&BLOCK_AND_ADD, |subflow| {
        subflow.open();
        let option = announcement(28);
        subflow.run(&acknowledgment(&option));
        let before = errors(subflow.dry_run, 1);
        // SACK, and a DATA_FIN.
        let sack = [&TIMESTAMPS[..], &[1, 1, 5, 10], &[7; 8], &DATA_ACK_4].concat();
        subflow.stays(&acknowledgment(&sack));
        let data_fin = [&[30, 18, 0x20, 0x15][..], &[7; 14], &[1; 2]].concat();
        subflow.stays(&acknowledgment(&data_fin));
        assert_eq!(errors(subflow.dry_run, 1), before + 2);
        let room = acknowledgment(&DATA_ACK_8);
        let after = subflow.becomes(&room);
        assert_eq!(after.options, [&option[..], &DATA_ACK_8].concat());
    });
}
