//! Probes the features of this host, with and without privileges.

use std::process::Command;

use plait_linux::mptcp::{Protocol, stream_socket};
use plait_linux::probe::features;

#[test]
fn reports_available_features() {
    let features = features();
    let present =
        |name: &str| features.iter().find(|feature| feature.name == name).expect("feature is listed").present;
    let mptcp = matches!(stream_socket(socket2::Domain::IPV4), Ok((_, Protocol::Mptcp)));
    assert_eq!(present("MPTCP"), mptcp);
    assert_eq!(present("curl"), Command::new("curl").arg("--version").output().is_ok());
    for feature in &features {
        assert!(
            !feature.detail.is_empty() && !feature.lost_without.is_empty() && !feature.how_to_get.is_empty()
        );
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIP reports_available_features: features for root are not checked without root");
        return;
    }
    assert!(present("privileges"));
    for other in ["network namespaces", "cgroup2"] {
        assert!(present(other), "{features:#?}");
    }
}

#[test]
fn reports_missing_features() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP reports_missing_features: disabling features requires root");
        return;
    }
    // On a separate thread, as capabilities and the network namespace are per thread.
    let features = std::thread::spawn(|| {
        // SAFETY: only the network namespace is unshared, not the table of file descriptors.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
            .expect("namespace is available");
        std::fs::write("/proc/sys/net/mptcp/enabled", "0").expect("MPTCP is disabled");
        let mut sets = rustix::thread::capabilities(None).expect("capabilities are readable");
        sets.effective = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).expect("capabilities are dropped");
        features()
    });
    let features = features.join().expect("probe succeeds");
    let detail = |name: &str| {
        let feature = features.iter().find(|feature| feature.name == name).expect("feature is listed");
        assert!(!feature.present, "{feature:?}");
        feature.detail.clone()
    };
    assert!(detail("MPTCP").contains("net.mptcp.enabled is 0"));
    assert!(detail("privileges").contains("CAP_NET_ADMIN"));
    detail("user-space path management");
    detail("BPF programs");
    detail("network namespaces");
}
