//! Creates, enters and removes network namespaces.

use std::io::ErrorKind;

use plait_linux::netns::{self, Named, NetNs};

fn identity(namespace: &NetNs) -> netns::Identity {
    namespace.identity().expect("identity is readable")
}

#[test]
fn named_namespace_is_removed_when_dropped() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP named_namespace_is_removed_when_dropped: creating namespaces requires root");
        return;
    }
    let name = format!("plait-{}-owned", std::process::id());
    let outside = identity(&NetNs::current().expect("namespace is available"));
    let created = Named::create(&name).expect("namespace is created");
    assert_eq!(created.name(), name);
    assert!(netns::list().expect("names are listed").contains(&name));
    assert_ne!(identity(&created), outside);

    let inside = created
        .run(|| identity(&NetNs::current().expect("namespace is available")))
        .expect("namespace can be entered");
    assert_eq!(inside, identity(&created));
    assert_eq!(
        identity(&NetNs::current().expect("namespace is available")),
        outside,
        "the calling thread is not affected"
    );
    assert_eq!(identity(&NetNs::named(&name).expect("name exists")), inside);

    let taken = Named::create(&name).expect_err("name is taken");
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    assert_eq!(identity(&NetNs::named(&name).expect("first namespace still exists")), inside);

    drop(created);
    assert!(!netns::list().expect("names are listed").contains(&name));
    let gone = NetNs::named(&name).expect_err("namespace does not exist");
    assert!(gone.to_string().contains(&name), "{gone}");
}

#[test]
fn is_compatible_with_ip_netns() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP is_compatible_with_ip_netns: creating namespaces requires root");
        return;
    }
    let created = Named::create(&format!("plait-{}-seen", std::process::id())).expect("namespace is created");
    let output = std::process::Command::new("ip")
        .args(["netns", "exec", created.name(), "readlink", "/proc/self/ns/net"])
        .output()
        .expect("command ip runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.trim(), format!("net:[{}]", identity(&created).inode));
}

#[test]
fn rejects_names_outside_the_directory() {
    for name in ["", "..", "a/b", "../../tmp/x", ".hidden", "nul\0"] {
        for result in [NetNs::named(name).map(drop), netns::delete(name), Named::create(name).map(drop)] {
            assert_eq!(result.expect_err("request is rejected").kind(), ErrorKind::InvalidInput, "{name}");
        }
    }
}

#[test]
fn rejects_files_that_are_not_namespaces() {
    let file = NetNs::at(std::path::Path::new("/proc/self/stat")).expect("file opens");
    file.run(|| ()).expect_err("file is not a namespace");
}
