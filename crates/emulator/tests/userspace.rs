//! Tests of the backend `emu` on the real kernel. They require root and TUN, and are skipped by name without.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plait_emulator::{
    Adjustment, Backend, Change, Counters, DirectionSpec, End, Error, Link, LinkSpec, Loss, Medium, Pace,
    Probability, Toward, Trace,
};
use plait_linux::counters::counters;
use plait_linux::interfaces::interfaces;
use plait_linux::netns::Named;

fn may_run(test: &str) -> bool {
    let program = Command::new("ip").arg("-V").output();
    match Backend::Emu.probe() {
        _ if program.is_err() => println!("SKIP {test}: needs ip"),
        Err(error) => println!("SKIP {test}: {error}"),
        Ok(()) => return true,
    }
    false
}

/// Makes interface names unique.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Namespaces without IPv6, so that only the tests send traffic.
fn namespaces<const N: usize>() -> [Named; N] {
    std::array::from_fn(|_| {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace =
            Named::create(&format!("plait-{}-emu{number}", std::process::id())).expect("a namespace");
        let set = || {
            for (key, value) in [("ipv4/ip_forward", "1"), ("ipv6/conf/default/disable_ipv6", "1")] {
                fs::write(format!("/proc/sys/net/{key}"), value).expect("a sysctl");
            }
        };
        namespace.run(set).expect("enters");
        namespace
    })
}

fn ip(namespace: &Named, arguments: &str) {
    let words = ["-n", namespace.name()].into_iter().chain(arguments.split_whitespace());
    let output = Command::new("ip").args(words).output().expect("runs ip");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn rate(text: &str) -> Pace {
    Pace::Rate(text.parse().expect("a rate"))
}

fn certain(text: &str) -> Probability {
    text.parse().expect("a probability")
}

/// A link between two namespaces, `a` with 10.0.0.1 and `b` with 10.0.0.2.
struct Pair {
    link: Link,
    /// The interface name at both ends, unique so that the thread of the link can be identified by name.
    interface: String,
    a: Named,
    b: Named,
}

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

impl Pair {
    fn new(spec: &LinkSpec) -> Self {
        let [a, b] = namespaces();
        let interface = format!("wlan{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let end = |namespace| End { namespace, interface: &interface };
        let link = Link::make(spec, Backend::Emu, end(&a), end(&b)).expect("a link");
        ip(&a, &format!("address add 10.0.0.1/24 dev {interface}"));
        ip(&b, &format!("address add 10.0.0.2/24 dev {interface}"));
        // Static neighbour entries, so that no ARP frames are counted.
        for (here, there, address) in [(&a, &b, B), (&b, &a, A)] {
            let shown =
                Command::new("ip").args(["-n", there.name(), "-br", "link", "show", &interface]).output();
            let shown = String::from_utf8(shown.expect("runs ip").stdout).expect("text");
            let mac = shown.split_whitespace().nth(2).expect("an address of Ethernet");
            ip(here, &format!("neighbour add {address} lladdr {mac} dev {interface}"));
        }
        Self { link, interface, a, b }
    }

    fn counters(&self) -> [Counters; 2] {
        let statistics = self.link.statistics().expect("statistics");
        [statistics.a_to_b, statistics.b_to_a]
    }

    fn sockets(&self) -> [UdpSocket; 2] {
        let bind = |namespace: &Named, address| {
            let socket = namespace.run(|| UdpSocket::bind((address, 7))).expect("enters").expect("binds");
            socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            socket
        };
        let sockets = [bind(&self.a, A), bind(&self.b, B)];
        sockets[0].connect((B, 7)).expect("a route");
        sockets[1].connect((A, 7)).expect("a route");
        sockets
    }
}

/// Generous, for machines under load.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Counts arrivals until none follow for a while.
fn received(socket: &UdpSocket) -> usize {
    std::iter::from_fn(|| arrives_soon(socket).then_some(())).count()
}

fn arrives_soon(socket: &UdpSocket) -> bool {
    socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let arrived = socket.recv(&mut [0; 2000]).is_ok();
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    arrived
}

fn conserved(counters: Counters) -> bool {
    let known = |count: Option<u64>| count.expect("the emulator counts it");
    counters.frames_in + known(counters.duplicated)
        == counters.frames_out
            + known(counters.lost)
            + known(counters.queue_full)
            + known(counters.no_path)
            + known(counters.refused)
}

#[test]
fn a_frame_takes_at_least_the_delay() {
    let true = may_run("a_frame_takes_at_least_the_delay") else { return };
    let delay = Duration::from_millis(20);
    let pair = Pair::new(&LinkSpec::symmetric(DirectionSpec { delay, ..DirectionSpec::default() }));
    let [a, b] = pair.sockets();
    for _ in 0..5 {
        let start = Instant::now();
        a.send(b"there").expect("sends");
        b.recv(&mut [0; 10]).expect("arrives");
        b.send(b"back").expect("sends");
        a.recv(&mut [0; 10]).expect("arrives");
        assert!(start.elapsed() >= 2 * delay, "{:?}", start.elapsed());
    }
    let lateness = pair.link.statistics().expect("statistics").lateness.expect("the emulator counts it");
    assert_eq!(lateness.frames, 10);
    assert!(lateness.p50 <= lateness.p99 && lateness.p99 <= lateness.max);
}

#[test]
fn frames_do_not_exceed_the_rate_or_the_trace() {
    let true = may_run("frames_do_not_exceed_the_rate_or_the_trace") else { return };
    let trace = Trace::parse("1\n", "trace".as_ref()).expect("a trace");
    for pace in [rate("12mbit"), Pace::Trace(trace.into())] {
        let pair = Pair::new(&LinkSpec::symmetric(DirectionSpec {
            pace,
            queue: Some(30_000),
            ..DirectionSpec::default()
        }));
        let [a, b] = pair.sockets();
        let start = Instant::now();
        for _ in 0..30 {
            // With its headers, this is a frame of 1500 bytes, of which one can be sent every millisecond.
            a.send(&[0; 1500 - 42]).expect("sends");
        }
        assert_eq!(received_of(&b, 20), 20);
        // The first opportunity of the trace is within a millisecond.
        assert!(start.elapsed() >= Duration::from_millis(19), "{:?}", start.elapsed());
        let rest = received(&b) as u64;
        let [counters, _] = pair.counters();
        assert_eq!((counters.frames_in, counters.frames_out), (30, 20 + rest));
        assert_eq!(counters.bytes_out, counters.frames_out * 1500);
        assert!(conserved(counters) && counters.queue_max_bytes <= Some(30_000));
    }
}

#[test]
fn loss_and_duplication_are_applied_and_counted() {
    let true = may_run("loss_and_duplication_are_applied_and_counted") else { return };
    let spec = LinkSpec {
        a_to_b: DirectionSpec { loss: Loss::Random(certain("25%")), ..DirectionSpec::default() },
        b_to_a: DirectionSpec { duplication: certain("100%"), ..DirectionSpec::default() },
        ..LinkSpec::default()
    };
    let pair = Pair::new(&spec);
    let [a, b] = pair.sockets();
    let mut arrived = [0; 2];
    // In small batches, so that the socket buffers hold them.
    for _ in 0..8 {
        for _ in 0..50 {
            a.send(b"there").expect("sends");
            b.send(b"back").expect("sends");
        }
        arrived[0] += received(&b) as u64;
        arrived[1] += received(&a) as u64;
    }
    let [arrived, doubled] = arrived;
    assert_eq!(doubled, 800);
    let [to_b, to_a] = pair.counters();
    assert_eq!((to_b.frames_in, to_b.frames_out, to_b.lost), (400, arrived, Some(400 - arrived)));
    // The bounds are five standard deviations.
    assert!((57..=143).contains(&(400 - arrived)), "{arrived} of 400");
    assert_eq!((to_a.frames_in, to_a.frames_out, to_a.duplicated), (400, 800, Some(400)));
    assert!(conserved(to_b) && conserved(to_a));
}

#[test]
fn changes_apply_to_a_running_link() {
    let true = may_run("changes_apply_to_a_running_link") else { return };
    let mut pair = Pair::new(&LinkSpec::default());
    let [a, b] = pair.sockets();
    let mut send_after = |change: Change| {
        pair.link.apply(&change).expect("applies");
        // Without a carrier, the kernel may refuse to send.
        let _ = a.send(b"there");
    };
    send_after(Change::Blackhole);
    assert!(!arrives_soon(&b));
    send_after(Change::Restore);
    assert!(b.recv(&mut [0; 10]).is_ok());
    send_after(Change::Carrier(false));
    assert!(!arrives_soon(&b));
    let name = pair.interface.clone();
    let running = |namespace: &Named| {
        let there = namespace.run(interfaces).expect("enters").expect("interfaces");
        there.iter().any(|interface| interface.name == name && interface.running)
    };
    assert!(!running(&pair.a) && !running(&pair.b));
    pair.link.apply(&Change::Carrier(true)).expect("applies");
    wait_until(|| running(&pair.a) && running(&pair.b));
    // Frames dropped without a carrier are not overruns.
    let statistics = pair.link.statistics().expect("statistics");
    assert_eq!((statistics.a_to_b.overruns, statistics.b_to_a.overruns), (Some(0), Some(0)));
    let slow = Adjustment { pace: Some(rate("8kbit")), ..Adjustment::default() };
    pair.link.apply(&Change::Adjust(Toward::B, slow)).expect("applies");
    a.send(&[0; 1000]).expect("sends");
    assert!(!arrives_soon(&b), "a second of transmission is not over");
    // Queued frames leave at the new rate.
    let fast = Adjustment { pace: Some(Pace::Unlimited), ..Adjustment::default() };
    pair.link.apply(&Change::Adjust(Toward::B, fast)).expect("applies");
    assert_eq!(b.recv(&mut [0; 2000]).expect("arrives"), 1000);
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "it did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Transfers over a fast link, where super-packets arrive and are split, followed by a slow link, at whose end the
/// kernel verifies every checksum.
#[test]
fn tcp_is_intact_when_super_packets_are_split() {
    let true = may_run("tcp_is_intact_when_super_packets_are_split") else { return };
    let [client, router, server] = namespaces();
    let direction = DirectionSpec {
        pace: rate("1gbit"),
        loss: Loss::Random(certain("0.2%")),
        duplication: certain("1%"),
        ..DirectionSpec::default()
    };
    let end = |namespace, interface| End { namespace, interface };
    let fast = LinkSpec::symmetric(direction);
    let fast = Link::make(&fast, Backend::Emu, end(&client, "fast"), end(&router, "fast")).expect("a link");
    let slow = LinkSpec::symmetric(DirectionSpec { pace: rate("190mbit"), ..DirectionSpec::default() });
    let _slow = Link::make(&slow, Backend::Emu, end(&router, "slow"), end(&server, "slow")).expect("a link");
    for namespace in [&client, &router, &server] {
        let enable = || {
            for (key, value) in [("all/disable_ipv6", "0"), ("all/forwarding", "1")] {
                fs::write(format!("/proc/sys/net/ipv6/conf/{key}"), value).expect("a sysctl");
            }
        };
        namespace.run(enable).expect("enters");
    }
    for (namespace, interface, number, host) in
        [(&client, "fast", 1, 1), (&router, "fast", 1, 2), (&router, "slow", 2, 1), (&server, "slow", 2, 2)]
    {
        ip(namespace, &format!("address add 10.0.{number}.{host}/24 dev {interface}"));
        ip(namespace, &format!("address add fd00:{number}::{host}/64 dev {interface} nodad"));
    }
    for (namespace, number, gateway) in [(&client, 1, 2), (&server, 2, 1)] {
        ip(namespace, &format!("route add default via 10.0.{number}.{gateway}"));
        ip(namespace, &format!("-6 route add default via fd00:{number}::{gateway}"));
    }
    for address in
        [IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2)), IpAddr::V6(Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 2))]
    {
        transfer(&client, &server, SocketAddr::new(address, 7000));
    }
    let bad = server.run(counters).expect("enters").expect("counters");
    for counter in ["TcpInCsumErrors", "TcpInErrs", "IpExtInCsumErrors", "IpInHdrErrors"] {
        assert_eq!(bad.get(counter).copied().unwrap_or(0), 0, "{counter}");
    }
    let statistics = fast.statistics().expect("statistics");
    assert!(statistics.a_to_b.lost > Some(0) && statistics.a_to_b.duplicated > Some(0));
    assert!(conserved(statistics.a_to_b));
    let through =
        router.run(|| fs::read_to_string("/proc/thread-self/net/dev")).expect("enters").expect("a file");
    let line = through.lines().find_map(|line| line.trim().strip_prefix("fast:")).expect("the interface");
    let packets: u64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    assert!(
        packets < statistics.a_to_b.frames_out / 2,
        "super-packets were to be cut, not taken apart: {packets}"
    );
}

fn transfer(client: &Named, server: &Named, address: SocketAddr) {
    const SIZE: usize = 8 << 20;
    // No two parts are equal, so that misplaced data is detected.
    let sent: Vec<u8> =
        (0..SIZE as u32 / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
    let listener = server.run(|| TcpListener::bind(address)).expect("enters").expect("listens");
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let mut bytes = Vec::with_capacity(SIZE);
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
            stream.read_to_end(&mut bytes).expect("all of it");
            bytes
        });
        let mut stream = client.run(|| TcpStream::connect(address)).expect("enters").expect("connects");
        stream.write_all(&sent).expect("sends");
        drop(stream);
        receiver.join().expect("no panic")
    });
    assert_eq!(received.len(), sent.len());
    assert!(received == sent, "the bytes of {address} differ");
}

#[test]
fn a_shared_medium_carries_both_directions() {
    let true = may_run("a_shared_medium_carries_both_directions") else { return };
    let medium = Medium::HalfDuplex { per_frame: Duration::from_micros(500) };
    let direction = DirectionSpec { pace: rate("54mbit"), ..DirectionSpec::default() };
    let pair = Pair::new(&LinkSpec { medium, ..LinkSpec::symmetric(direction) });
    let [a, b] = pair.sockets();
    let start = Instant::now();
    for _ in 0..10 {
        a.send(b"there").expect("sends");
        b.send(b"back").expect("sends");
    }
    assert_eq!((received_of(&a, 10), received_of(&b, 10)), (10, 10));
    assert!(start.elapsed() >= Duration::from_millis(10), "{:?}", start.elapsed());
}

fn received_of(socket: &UdpSocket, most: usize) -> usize {
    (0..most).take_while(|_| socket.recv(&mut [0; 2000]).is_ok()).count()
}

#[test]
fn interfaces_are_removed_with_the_link() {
    let true = may_run("interfaces_are_removed_with_the_link") else { return };
    let [a, b] = namespaces();
    let end = |namespace, interface| End { namespace, interface };
    let make = || Link::make(&LinkSpec::default(), Backend::Emu, end(&a, "eth0"), end(&b, "eth0"));
    let there = |namespace: &Named| {
        let there = namespace.run(interfaces).expect("enters").expect("interfaces");
        there.iter().any(|interface| interface.name == "eth0")
    };
    for _ in 0..3 {
        let link = make().expect("a link");
        assert!(there(&a) && there(&b));
        assert!(matches!(make(), Err(Error::Taken { .. })));
        drop(link);
        // A program that another test is starting may have the interfaces' files open, until it executes.
        wait_until(|| !there(&a) && !there(&b));
    }
}

#[test]
fn a_deleted_interface_only_affects_its_frames() {
    let true = may_run("a_deleted_interface_only_affects_its_frames") else { return };
    let mut pair = Pair::new(&LinkSpec::default());
    let [a, b] = pair.sockets();
    ip(&pair.b, &format!("link set {} down", pair.interface));
    a.send(b"there").expect("sends");
    wait_until(|| pair.counters()[0].refused == Some(1));
    ip(&pair.b, &format!("link set {} up", pair.interface));
    a.send(b"there").expect("sends");
    assert!(b.recv(&mut [0; 10]).is_ok());
    ip(&pair.b, &format!("link delete {}", pair.interface));
    a.send(b"there").expect("sends");
    wait_until(|| pair.counters()[0].refused == Some(2));
    assert!(conserved(pair.counters()[0]));
    pair.link.apply(&Change::Blackhole).expect("applies");
    assert!(slept_through(&pair, Duration::from_millis(200)), "the thread does not sleep");
}

#[test]
fn an_idle_link_does_not_wake() {
    let true = may_run("an_idle_link_does_not_wake") else { return };
    let pair =
        Pair::new(&LinkSpec::symmetric(DirectionSpec { pace: rate("10mbit"), ..DirectionSpec::default() }));
    for _ in 0..1000 {
        pair.counters();
    }
    thread::sleep(Duration::from_millis(100));
    assert!(slept_through(&pair, Duration::from_millis(300)));
}

/// Whether the thread of the link did not run during this time.
fn slept_through(pair: &Pair, time: Duration) -> bool {
    let name = format!("link {}", pair.interface);
    let mut tasks = fs::read_dir("/proc/self/task").expect("threads").flatten().map(|task| task.path());
    let of_link =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|found| found.trim() == name);
    let thread = tasks.find(of_link).expect("the thread of the link");
    let status = || fs::read_to_string(thread.join("status")).expect("its status");
    let runs = || status().lines().filter(|line| line.contains("ctxt_switches")).collect::<String>();
    // After the last command, the thread may not be asleep again yet.
    wait_until(|| status().contains("State:\tS"));
    let before = runs();
    thread::sleep(time);
    runs() == before
}

#[test]
fn unsupported_properties_are_errors() {
    let true = may_run("unsupported_properties_are_errors") else { return };
    let trace = Trace::parse("1\n", "trace".as_ref()).expect("a trace");
    let traced =
        LinkSpec::symmetric(DirectionSpec { pace: Pace::Trace(trace.into()), ..DirectionSpec::default() });
    let shared = LinkSpec { medium: Medium::HalfDuplex { per_frame: Duration::ZERO }, ..traced };
    let large = LinkSpec { mtu: 65_535, ..LinkSpec::default() };
    let [a, b] = namespaces();
    let end = |namespace| End { namespace, interface: "wlan0" };
    for spec in [shared, large] {
        let error = Link::make(&spec, Backend::Emu, end(&a), end(&b)).expect_err("not to be had");
        assert!(matches!(error, Error::Unsupported { backend: Backend::Emu, .. }), "{error}");
    }
    let largest = LinkSpec { mtu: 65_521, ..LinkSpec::default() };
    Link::make(&largest, Backend::Emu, end(&a), end(&b)).expect("a link");
}
