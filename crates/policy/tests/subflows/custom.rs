//! Custom actors that remove and add options.

use std::fs;
use std::process::Command;

use plait_policy::Hook;

use crate::packets::{
    Checksum, DATA_ACK_8, Segment, Subflow, TIMESTAMPS, acknowledgment, dry_run_with, may_run,
    packet_formats, usual,
};

const SOURCE: &str = r#"
#include "plait.bpf.h"

PLAIT_ACTOR(no_timestamps)
{
	return plait_erase_option(context, packet, TCPOPT_TIMESTAMP) ? PLAIT_MISS : PLAIT_HIT;
}

PLAIT_ACTOR(no_dss)
{
	return plait_erase_mptcp(context, packet, MPTCP_DSS) ? PLAIT_MISS : PLAIT_HIT;
}

PLAIT_ACTOR(experiment)
{
	/* Of kind 253, with an ExID (RFC 6994). */
	struct plait_option option = {{bpf_htonl(0xfd06abcd), bpf_htonl(0x01020000)}};

	return plait_add_option(context, packet, &option, 6) ? PLAIT_ERROR : PLAIT_HIT;
}

char _license[] SEC("license") = "Dual MIT/GPL";
"#;

#[test]
fn custom_actors_remove_and_add_options() {
    let compiler = std::env::var("PLAIT_CLANG").unwrap_or_else(|_| "clang-19".into());
    if Command::new(&compiler).arg("--version").output().is_err() {
        println!("SKIP custom_actors_remove_and_add_options: there is no {compiler}");
        return;
    }
    if !may_run() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("custom.bpf.c");
    fs::write(&file, SOURCE).expect("a file");
    let names = ["no_timestamps", "no_dss", "experiment"];
    let own: String = names.iter().map(|name| format!("{name}.file = \"{}\"\n", file.display())).collect();
    for hook in [Hook::Ingress, Hook::Egress] {
        let of_port = |port: u16| match hook {
            Hook::Ingress => format!("subflow(sport = {port})"),
            Hook::Egress => format!("subflow(dport = {port})"),
        };
        let selectors = [1, 2, 3].map(of_port);
        let actors = names.map(|name| format!("\"{name}\""));
        let chains: Vec<_> = selectors.iter().zip(&actors).map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let dry_run = dry_run_with(&format!("[custom]\n{own}"), hook, &chains);
        for format in packet_formats().into_iter().filter(|format| format.hook == hook) {
            // In a test run at TC the kernel treats the checksum as covering the whole packet and adjusts it.
            let mends = format.checksum == Checksum::Full || !format.via_tc;
            let subflow = |port| Subflow { dry_run: &dry_run, format, port };
            let odd = acknowledgment(&[&[1], &TIMESTAMPS[2..], &[1], &DATA_ACK_8].concat());
            if mends {
                let nops = |segment: &Segment, at: std::ops::Range<usize>| {
                    let mut segment = segment.clone();
                    segment.options[at].fill(1);
                    segment
                };
                assert_eq!(subflow(1).becomes(&odd), nops(&odd, 1..11));
                assert_eq!(subflow(2).becomes(&odd), nops(&odd, 12..24));
                let data = Segment { payload: vec![5; 33], ..usual() };
                if format.checksum == Checksum::Full {
                    assert_eq!(subflow(1).becomes(&data), nops(&data, 2..12));
                }
                subflow(1).stays(&acknowledgment(&DATA_ACK_8));
            }
            let added = [&[253, 6, 0xab, 0xcd, 1, 2, 1, 1][..], &odd.options].concat();
            assert_eq!(subflow(3).becomes(&odd), Segment { options: added, ..odd.clone() });
            subflow(3).stays(&Segment { payload: vec![5; 33], ..usual() });
        }
    }
}
