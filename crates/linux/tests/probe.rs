//! What is found here, by root and by an ordinary user.

use std::process::Command;

use plait_linux::mptcp::{Protocol, stream_socket};
use plait_linux::probe::features;

#[test]
fn what_is_there_is_found() {
    let features = features();
    let present =
        |name: &str| features.iter().find(|feature| feature.name == name).expect("the feature").present;
    let mptcp = matches!(stream_socket(socket2::Domain::IPV4), Ok((_, Protocol::Mptcp)));
    assert_eq!(present("MPTCP"), mptcp);
    assert_eq!(present("curl"), Command::new("curl").arg("--version").output().is_ok());
    for feature in &features {
        assert!(
            !feature.detail.is_empty() && !feature.lost_without.is_empty() && !feature.how_to_get.is_empty()
        );
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIP what_is_there_is_found: what root finds takes root");
        return;
    }
    assert!(present("privileges"));
    for other in ["network namespaces", "cgroup2"] {
        assert!(present(other), "{features:#?}");
    }
}

#[test]
fn what_is_not_there_is_not_found() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP what_is_not_there_is_not_found: taking things away takes root");
        return;
    }
    // Privileges and MPTCP are those of a thread and of its namespace.
    let features = std::thread::spawn(|| {
        // SAFETY: only the network namespace is unshared, not the table of file descriptors.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("a namespace");
        std::fs::write("/proc/sys/net/mptcp/enabled", "0").expect("MPTCP switched off");
        let mut sets = rustix::thread::capabilities(None).expect("capabilities");
        sets.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).expect("no capabilities");
        features()
    });
    let features = features.join().expect("the features");
    let detail = |name: &str| {
        let feature = features.iter().find(|feature| feature.name == name).expect("the feature");
        assert!(!feature.present, "{feature:?}");
        feature.detail.clone()
    };
    assert!(detail("MPTCP").contains("net.mptcp.enabled is 0"));
    assert!(detail("privileges").contains("CAP_NET_ADMIN"));
    detail("user-space path management");
    detail("BPF programs");
    detail("network namespaces");
}
