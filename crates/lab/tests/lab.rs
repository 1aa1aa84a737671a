//! The contract of a lab, tested on the real kernel. These tests require root and are skipped by name without.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plait_lab::{Capture, Error, Host, Lab, Link, Rate, Seed, Side, Topology};
use plait_linux::netns;
use plait_linux::signal::StopSignal;

fn may_run(test: &str, programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| Command::new(program).arg("--version").output().is_err());
    match missing {
        _ if !rustix::process::geteuid().is_root() => println!("SKIP {test}: needs root"),
        Some(program) => println!("SKIP {test}: needs {program}"),
        None => return true,
    }
    false
}

/// Two hosts, and links with rates of [`RATES`] between them.
const TOPOLOGY: &str = r#"
[hosts]
server = {}
client = {}
[[links]]
name = "eth"
role = "trusted"
a = "client"
b = "server"
each_way = { rate = "40mbit" }
[[links]]
name = "wlan"
a = "client"
b = "server"
each_way = { rate = "20mbit" }
"#;
const RATES: [Rate; 2] = [Rate::mbit(40), Rate::mbit(20)];

fn up(topology: &str) -> Result<Lab, Error> {
    let topology = Topology::parse(topology, "lab.toml").expect("a topology");
    Lab::up(&topology, None, Seed(1), StopSignal::default())
}

fn two_links() -> (Lab, [Host; 2], [Link; 2]) {
    let lab = up(TOPOLOGY).expect("a lab");
    let hosts = ["client", "server"].map(|name| lab.find_host(name).expect("a host").clone());
    let links = ["eth", "wlan"].map(|name| lab.find_link(name).expect("a link").clone());
    (lab, hosts, links)
}

/// The namespaces, processes and files that carry the lab's id.
fn traces_of(id: &str) -> BTreeSet<String> {
    let prefix = format!("plait-{id}-");
    // The ids of later labs of this process begin with that of the first.
    let is_host = |rest: &str| !rest.starts_with(|first: char| first.is_ascii_digit());
    let namespaces = netns::list().expect("a list").into_iter();
    let namespaces = namespaces.filter(|name| name.strip_prefix(&prefix).is_some_and(is_host));
    let files = Path::new("/run/plait").join(format!("lab-{id}"));
    namespaces.chain(files.exists().then(|| files.display().to_string())).collect()
}

/// Sends `size` bytes from `b` to `a` over one TCP connection to `address`; returns the time from the first byte to
/// the last.
fn transfer(a: &Host, b: &Host, address: IpAddr, size: usize) -> Duration {
    let listener = b
        .namespace()
        .run(|| TcpListener::bind(SocketAddr::new(address, 0)))
        .expect("enters b")
        .expect("listens");
    let to = listener.local_addr().expect("a bound socket");
    thread::scope(|scope| {
        scope.spawn(|| listener.accept().expect("accepts").0.write_all(&vec![b'x'; size]).expect("sends"));
        let mut stream = a.namespace().run(|| TcpStream::connect(to)).expect("enters a").expect("connects");
        let begin = Instant::now();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("receives");
        assert_eq!(received.len(), size);
        begin.elapsed()
    })
}

#[test]
fn links_carry_both_families_and_never_faster_than_their_rate() {
    let true = may_run("links_carry_both_families_and_never_faster_than_their_rate", &[]) else { return };
    let (_lab, [client, server], links) = two_links();
    let size = 1_000_000;
    for (link, rate) in links.iter().zip(RATES) {
        for address in link.addresses(Side::B).iter().map(|address| address.ip) {
            let took = transfer(&client, &server, address, size);
            let least = size as f64 * 8.0 / rate.bits_per_second() as f64;
            assert!(took.as_secs_f64() > least, "{} to {address}: {took:?}, expected {least} s", link.name());
        }
        let statistics = link.statistics().expect("statistics");
        assert!(statistics.b_to_a.bytes_out >= 2 * size as u64, "not over this link: {statistics:?}");
    }
}

#[test]
fn nothing_is_left_after_success_error_and_panic() {
    let true = may_run("nothing_is_left_after_success_error_and_panic", &[]) else { return };
    let (lab, [client, _], _) = two_links();
    let id = lab.id().to_owned();
    assert_eq!(traces_of(&id).len(), 3, "two namespaces and a directory while it lives");
    let mut sleep = client.command("sleep");
    sleep.arg("1000");
    let sleep = client.spawn(sleep).expect("sleep starts");
    let process = Path::new("/proc").join(sleep.id().to_string());
    assert!(process.exists());
    drop(sleep);
    assert!(!process.exists(), "the program outlived its owner");
    drop(lab);
    assert_eq!(traces_of(&id), BTreeSet::new());

    let odd = TOPOLOGY.replace("client = {}", "client = { congestion_control = \"nosuch\" }");
    let error = up(&odd).expect_err("no such congestion control").to_string();
    assert!(error.contains("nosuch"), "{error}");
    let failing = r#"
[[services]]
name = "failing"
host = "client"
port = 1
command = ["sh", "-c", "ip netns identify $$ >&2; exit 1"]
"#;
    let error = up(&format!("{TOPOLOGY}{failing}")).expect_err("the service fails").to_string();
    let id = error.split_once("plait-").and_then(|(_, name)| name.split_once("-client"));
    let (id, _) = id.unwrap_or_else(|| panic!("the service prints its namespace: {error}"));
    assert_eq!(traces_of(id), BTreeSet::new());

    let mut id = String::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let (lab, [client, _], _) = two_links();
        id = lab.id().to_owned();
        let mut sleep = client.command("sleep");
        sleep.arg("1000");
        // The process is leaked, as if its destructor had not run: the lab must end it nevertheless.
        std::mem::forget(client.spawn(sleep).expect("sleep starts"));
        panic!("in the middle");
    }));
    assert!(panicked.is_err());
    assert!(!id.is_empty());
    assert_eq!(traces_of(&id), BTreeSet::new());
}

#[test]
fn the_next_lab_removes_what_a_killed_run_left() {
    let true = may_run("the_next_lab_removes_what_a_killed_run_left", &[]) else { return };
    let mut gone = Command::new("true").spawn().expect("runs");
    let dead = gone.id();
    gone.wait().expect("ends");
    let name = format!("plait-{dead}-client");
    let namespace = netns::Named::create(&name).expect("a namespace");
    let files = plait_linux::run_directory().expect("a run directory").join(format!("lab-{dead}"));
    std::fs::create_dir(&files).expect("a directory");
    let sleep = || Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn();
    let mut child = namespace.run(sleep).expect("enters").expect("sleep starts");

    let lab = Lab::new(Seed(1), StopSignal::default()).expect("a lab");
    let left = traces_of(&dead.to_string());
    let ended = child.try_wait().expect("a child");
    if ended.is_none() {
        child.kill().expect("kills");
        child.wait().expect("ends");
    }
    assert_eq!(left, BTreeSet::new());
    assert!(ended.is_some(), "the killed run's program still ran");
    drop(lab);
}

#[test]
fn a_capture_holds_every_packet() {
    let true = may_run("a_capture_holds_every_packet", &["tcpdump"]) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let (_lab, [client, server], [_, wlan]) = two_links();
    let capture = Capture::start(&client, "wlan", &directory.path().join("wlan.pcap")).expect("listens");
    let size = 300_000;
    transfer(&client, &server, wlan.addresses(Side::B)[0].ip, size);
    let file = capture.stop().expect("is complete");
    let bytes = std::fs::read(file).expect("a file");
    let payload = bytes.iter().filter(|byte| **byte == b'x').count();
    assert!(payload >= size, "{payload} of {size} bytes were captured");
}

#[test]
fn a_failing_program_says_why() {
    let true = may_run("a_failing_program_says_why", &[]) else { return };
    let (_lab, [client, _], _) = two_links();
    let mut shell = client.command("sh");
    shell.args(["-c", "echo no such thing >&2; exit 3"]);
    let error = client.spawn(shell).expect("starts").finish(Duration::from_secs(10)).expect_err("fails");
    assert!(error.to_string().contains("no such thing") && error.to_string().contains('3'), "{error}");

    let missing = client.spawn(client.command("plait-no-such-program")).expect_err("is missing");
    assert!(matches!(missing, Error::MissingProgram { .. }), "{missing}");
}
