//! MP_PRIO on pure acknowledgments, packet by packet.

use plait_policy::Hook;
use plait_policy::engine::DryRun;
use proptest::prelude::*;

use crate::packets::{
    ACK, Checksum, DATA_ACK_4, DATA_ACK_8, FIN, PacketFormat, Segment, Subflow, TIMESTAMPS, acknowledgment,
    dry_run, errors, for_each_format, may_run, packet_formats, usual,
};

/// RFC 8684, section 3.3.8: kind, length, subtype and B, and a NOP.
const SET: [u8; 4] = [30, 3, 0x51, 1];
const CLEAR: [u8; 4] = [30, 3, 0x50, 1];

const SET_BACKUP: [(&str, &str); 1] = [("any", "\"set_backup\"")];

fn with(option: &[u8], segment: &Segment) -> Segment {
    Segment { options: [option, &segment.options].concat(), ..segment.clone() }
}

#[test]
fn mp_prio_is_added_to_a_pure_acknowledgment() {
    for_each_format(&SET_BACKUP, |subflow| {
        subflow.open();
        let data = Segment { payload: vec![9; 33], ..usual() };
        subflow.stays(&data);
        subflow.stays(&Segment { flags: ACK | FIN, ..usual() });
        assert_eq!(subflow.becomes(&usual()), with(&SET, &usual()));
        subflow.stays(&usual());
    });
}

#[test]
fn overtaken_packets_do_not_change_the_recorded_state() {
    for_each_format(&[("any", "\"record\"")], |subflow| {
        subflow.open();
        // Window scale 7.
        for (value, window, expected) in [(9, 700, 700 << 7), (8, 300, 700 << 7), (10, 200, 200 << 7)] {
            let options = [&TIMESTAMPS[..7], &[value], &TIMESTAMPS[8..], &DATA_ACK_8].concat();
            subflow.run(&Segment { window, ..acknowledgment(&options) });
            assert_eq!(subflow.direction().window, Some(expected), "{:?}", subflow.format);
        }
    });
}

#[test]
fn mp_prio_of_version_0_carries_an_address_id() {
    for (actor, subtype) in [("set_backup", 0x51), ("clear_backup", 0x50)] {
        for_each_format(&[("any", &format!("{{ {actor} = {{ address_id = 3 }} }}"))], |subflow| {
            // The beginning of the subflow was not seen.
            assert_eq!(subflow.becomes(&usual()), with(&[30, 4, subtype, 3], &usual()));
        });
    }
}

#[test]
fn mp_prio_is_added_only_while_the_backup_flag_differs() {
    if !may_run() {
        return;
    }
    let format = *packet_formats().first().expect("a format");
    let set = dry_run(format.hook, &SET_BACKUP);
    let clear = dry_run(format.hook, &[("any", "\"clear_backup\"")]);
    let subflow = |dry_run, port| Subflow { dry_run, format, port };

    let requested = subflow(&set, 1);
    requested.join(1);
    requested.stays(&usual());
    let other = subflow(&set, 2);
    other.join(0);
    assert_eq!(other.becomes(&usual()), with(&SET, &usual()));

    let other = subflow(&clear, 3);
    other.join(1);
    assert_eq!(other.becomes(&usual()), with(&CLEAR, &usual()));
    let requested = subflow(&clear, 4);
    requested.join(0);
    requested.stays(&usual());
    // The host sends MP_PRIO itself, and later one that contradicts the actor.
    requested.stays(&with(&SET, &usual()));
    assert_eq!(requested.becomes(&usual()), with(&CLEAR, &usual()));

    // The beginning of the subflow was not seen.
    assert_eq!(subflow(&set, 5).becomes(&usual()), with(&SET, &usual()));
    assert_eq!(subflow(&clear, 6).becomes(&usual()), with(&CLEAR, &usual()));
}

#[test]
fn mp_prio_waits_for_a_packet_with_room() {
    for_each_format(&SET_BACKUP, |subflow| {
        let before = errors(subflow.dry_run, 0);
        subflow.open();
        let sack = [&[1, 1, 5, 18][..], &[7; 16]].concat();
        let full = acknowledgment(&[&sack[..], &DATA_ACK_4, &DATA_ACK_8].concat());
        assert_eq!(full.options.len(), 40);
        subflow.stays(&full);
        assert_eq!(errors(subflow.dry_run, 0), before + 1);
        let nearly = acknowledgment(&[&sack[..], &DATA_ACK_8, &[1; 4]].concat());
        assert_eq!(subflow.becomes(&nearly), with(&SET, &nearly));
    });
}

#[test]
fn mp_prio_is_added_only_to_acknowledgments_of_established_subflows() {
    if !may_run() {
        return;
    }
    let format = *packet_formats().first().expect("a format");
    let dry_run = dry_run(format.hook, &SET_BACKUP);
    let subflow = Subflow { dry_run: &dry_run, format, port: 1 };
    subflow.open();
    // Plain TCP, an announcement, truncated options.
    subflow.stays(&acknowledgment(&TIMESTAMPS));
    subflow.stays(&acknowledgment(&[&[30, 16, 0x30, 1][..], &[7; 12]].concat()));
    subflow.stays(&acknowledgment(&[&DATA_ACK_8[..], &[30, 20, 0x20, 1]].concat()));
    assert_eq!(errors(&dry_run, 0), 0);

    let wrong = PacketFormat { checksum: Checksum::Wrong, ..format };
    Subflow { format: wrong, ..subflow }.stays(&usual());
    assert_eq!(errors(&dry_run, 0), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn existing_options_are_kept(
        options in prop::collection::vec(any::<u8>(), 0..=40),
        format in 0..packet_formats().len(),
        has_data_ack: bool,
    ) {
        if !may_run() {
            return Ok(());
        }
        thread_local! {
            static TRIALS: [DryRun; 2] =
                [Hook::Ingress, Hook::Egress].map(|hook| dry_run(hook, &SET_BACKUP));
            static PORT: std::cell::Cell<u16> = const { std::cell::Cell::new(1) };
        }
        let format = packet_formats()[format];
        let mut options = options;
        if has_data_ack {
            options.splice(..options.len().min(8), DATA_ACK_4);
        }
        options.truncate(options.len() / 4 * 4);
        let segment = acknowledgment(&options);
        let port = PORT.get();
        PORT.set(port + 1);
        TRIALS.with(|trials| {
            let dry_run = &trials[format.hook as usize];
            let after = Subflow { dry_run, format, port }.becomes(&segment);
            assert!(after == segment || after == with(&SET, &segment), "{segment:?} {after:?}");
        });
    }
}
