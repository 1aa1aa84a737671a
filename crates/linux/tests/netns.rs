//! Network namespaces: made, entered, removed.

use std::io::ErrorKind;

use plait_linux::netns::{self, Named, NetNs};

fn identity(namespace: &NetNs) -> netns::Identity {
    namespace.identity().expect("an identity")
}

#[test]
fn a_namespace_lives_as_long_as_its_owner() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP a_namespace_lives_as_long_as_its_owner: making namespaces takes root");
        return;
    }
    let name = format!("plait-{}-owned", std::process::id());
    let outside = identity(&NetNs::current().expect("a namespace"));
    let made = Named::create(&name).expect("a namespace");
    assert_eq!(made.name(), name);
    assert!(netns::list().expect("names").contains(&name));
    assert_ne!(identity(&made), outside);

    let inside = made.run(|| identity(&NetNs::current().expect("a namespace"))).expect("inside");
    assert_eq!(inside, identity(&made));
    assert_eq!(identity(&NetNs::current().expect("a namespace")), outside, "this thread stayed where it was");
    assert_eq!(identity(&NetNs::named(&name).expect("the name")), inside);

    let taken = Named::create(&name).expect_err("the name is taken");
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    assert_eq!(identity(&NetNs::named(&name).expect("the first one is unharmed")), inside);

    drop(made);
    assert!(!netns::list().expect("names").contains(&name));
    let gone = NetNs::named(&name).expect_err("no such namespace");
    assert!(gone.to_string().contains(&name), "{gone}");
}

#[test]
fn the_command_ip_sees_it() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP the_command_ip_sees_it: making namespaces takes root");
        return;
    }
    let made = Named::create(&format!("plait-{}-seen", std::process::id())).expect("a namespace");
    let output = std::process::Command::new("ip")
        .args(["netns", "exec", made.name(), "readlink", "/proc/self/ns/net"])
        .output()
        .expect("the command ip");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.trim(), format!("net:[{}]", identity(&made).inode));
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    for name in ["", "..", "a/b", "../../tmp/x", ".hidden", "nul\0"] {
        assert_eq!(NetNs::named(name).expect_err("a refusal").kind(), ErrorKind::InvalidInput, "{name}");
        assert_eq!(netns::delete(name).expect_err("a refusal").kind(), ErrorKind::InvalidInput, "{name}");
        assert_eq!(Named::create(name).expect_err("a refusal").kind(), ErrorKind::InvalidInput, "{name}");
    }
}

#[test]
fn what_is_no_namespace_is_not_entered() {
    let file = NetNs::at(std::path::Path::new("/proc/self/stat")).expect("a file");
    file.run(|| ()).expect_err("it is no namespace");
}
