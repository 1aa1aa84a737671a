//! Each decision of the programs on real connections over two narrow paths, whose queues overflow, beside what the model
//! makes of the same acknowledgments and losses.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use libbpf_rs::{Link, MapCore as _, MapType, Object, RingBufferBuilder};
use plait_linux::mptcp::Info;
use plait_linux::netns::Named;
use socket2::{Domain, Protocol, Socket, Type};

use super::{bound, can_run, path, run};
use crate::bindings::{PLAIT_STEP_INCREASE, PLAIT_STEP_LOSS, plait_path, plait_step};
use crate::{Algorithm, Path, object};

const SECONDS: Duration = Duration::from_secs(3);

/// An algorithm that tells its steps, registered by a name of this test alone.
struct Told {
    name: String,
    object: Object,
    _link: Link,
}

impl Told {
    fn register(algorithm: Algorithm, mark: char) -> Told {
        let name = format!("{mark}{}{}", std::process::id(), &algorithm.name()[..1]);
        let mut object = object::open(object::program_of(algorithm)).expect("an object");
        for mut program in object.progs_mut() {
            let wanted = program.name() != "calculate";
            program.set_autoload(wanted);
        }
        for mut map in object.maps_mut() {
            if map.name() == ".rodata.telling" {
                map.set_initial_value(&1u32.to_ne_bytes()).expect("a value");
            }
            if map.map_type() == MapType::StructOps {
                rename(map.initial_value_mut().expect("a value"), algorithm.kernel_name(), &name);
            }
        }
        let mut object = object.load().expect("the kernel takes it");
        let link = object::attach(&mut object, algorithm).expect("a registration");
        Told { name, object, _link: link }
    }

    /// The steps that are told until `done`.
    fn steps(&self, done: &AtomicBool) -> Vec<plait_step> {
        let mut steps = Vec::new();
        {
            let map = self.object.maps().find(|map| map.name() == "steps").expect("the map");
            let mut builder = RingBufferBuilder::new();
            let tell = |bytes: &[u8]| {
                steps.push(bytemuck::pod_read_unaligned(bytes));
                0
            };
            builder.add(&map, tell).expect("a reader");
            let ring = builder.build().expect("a reader");
            while !done.load(Ordering::Relaxed) {
                ring.poll(Duration::from_millis(20)).expect("steps");
            }
            ring.consume().expect("the last steps");
        }
        steps
    }
}

fn rename(value: &mut [u8], from: &str, to: &str) {
    let at = value.windows(from.len()).position(|part| part == from.as_bytes()).expect("its name");
    value[at..at + 16].fill(0);
    value[at..at + to.len()].copy_from_slice(to.as_bytes());
}

/// Two hosts with two links of different rates, that drop what their queues do not take.
fn hosts(of: &str) -> (Named, Named) {
    let name = |role: &str| format!("plait-{}-{of}-{role}", std::process::id());
    let (here, there) = (name("a"), name("b"));
    let hosts = (Named::create(&here).expect("a host"), Named::create(&there).expect("a host"));
    for (number, rate) in [(1, "20mbit"), (2, "8mbit")] {
        run(&format!("ip link add p{number} netns {here} type veth peer name p{number} netns {there}"));
        for (host, last) in [(&here, 1), (&there, 2)] {
            run(&format!("ip -n {host} address add 10.0.{number}.{last}/24 dev p{number}"));
            run(&format!("ip -n {host} link set p{number} up"));
            run(&format!(
                "ip netns exec {host} sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.p{number}.rp_filter=0"
            ));
        }
        run(&format!("tc -n {here} qdisc add dev p{number} root tbf rate {rate} burst 3000 limit 45000"));
    }
    for host in [&here, &there] {
        run(&format!("ip -n {host} mptcp limits set subflows 2 add_addr_accepted 2"));
    }
    run(&format!("ip -n {there} mptcp endpoint add 10.0.2.2 dev p2 signal"));
    hosts
}

/// Sends for some seconds to a port of its own, and gives the socket, still connected.
fn transfer((here, there): &(Named, Named), name: &str, protocol: Protocol, port: u16) -> Socket {
    let address = SocketAddr::from(([10, 0, 1, 2], port));
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).expect("a socket");
    let listener = there.run(socket).expect("inside");
    listener.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into()).expect("a port");
    listener.listen(1).expect("a listener");
    thread::spawn(move || {
        let mut accepted = listener.accept().expect("a connection").0;
        let mut buffer = vec![0; 1 << 16];
        while accepted.read(&mut buffer).is_ok_and(|length| length > 0) {}
    });
    let mut sender = here.run(socket).expect("inside");
    sender.set_tcp_congestion(name.as_bytes()).expect("the algorithm");
    sender.connect(&address.into()).expect("a connection");
    let (begun, block) = (Instant::now(), vec![0; 1 << 16]);
    while begun.elapsed() < SECONDS {
        sender.write_all(&block).expect("sent");
    }
    sender
}

/// What is known of a subflow from the steps before.
#[derive(Default)]
struct Replayed {
    /// The model's window, and how far the kernel's may be from it.
    model: f64,
    allowed: f64,
    /// The kernel's.
    window: u32,
    fraction: u64,
}

#[derive(Debug, Default)]
struct Compared {
    increases: usize,
    losses: usize,
    /// The kernel's own code has changed a window between two increases, other than by a loss: slow start, undo.
    begun_anew: usize,
    most: f64,
    most_of_allowed: f64,
}

fn compare(algorithm: Algorithm, steps: &[plait_step]) -> Compared {
    let mut subflows = BTreeMap::<u64, Replayed>::new();
    let mut compared = Compared::default();
    for step in steps {
        let paths: Vec<Path> = step.paths[..step.number as usize].iter().map(path).collect();
        let subflow = subflows.entry(step.socket).or_default();
        if step.kind == PLAIT_STEP_LOSS {
            let expected = algorithm.after_loss(&paths, 0);
            let found = f64::from(step.window_after);
            assert!((found - expected).abs() < 1.0, "{algorithm} left {found} of {paths:?}, not {expected}");
            *subflow = Replayed::default();
            compared.losses += 1;
            continue;
        }
        assert_eq!(step.kind, PLAIT_STEP_INCREASE);
        if subflow.window != step.paths[0].window {
            subflow.window = step.paths[0].window;
            subflow.model = f64::from(subflow.window) + subflow.fraction as f64 / 2f64.powi(32);
            subflow.allowed = 0.0;
            compared.begun_anew += 1;
        }
        let acked = f64::from(step.acked);
        subflow.model += acked * algorithm.increase(&paths, 0);
        subflow.allowed += acked * bound(&paths);
        (subflow.window, subflow.fraction) = (step.window_after, step.fraction);
        let found = f64::from(step.window_after) + step.fraction as f64 / 2f64.powi(32);
        let error = (found - subflow.model).abs();
        assert!(error <= subflow.allowed, "{algorithm}: {found}, expected {}", subflow.model);
        compared.increases += 1;
        compared.most = compared.most.max(error);
        compared.most_of_allowed = compared.most_of_allowed.max(error / subflow.allowed);
    }
    compared
}

fn decides_as_its_model(algorithm: Algorithm) {
    if !can_run(&format!("{algorithm}_decides_as_its_model")) {
        return;
    }
    let told = Told::register(algorithm, 't');
    let hosts = hosts(algorithm.name());
    let done = AtomicBool::new(false);
    let (steps, subflows) = thread::scope(|scope| {
        let sent = scope.spawn(|| {
            let _done = Done(&done);
            let sender = transfer(&hosts, &told.name, Protocol::MPTCP, 9000);
            1 + Info::of(&sender).expect("its state").extra_subflows
        });
        (told.steps(&done), sent.join())
    });
    assert_eq!(subflows.expect("a transfer"), 2);
    let compared = compare(algorithm, &steps);
    println!("{algorithm}: {compared:?}");
    let sockets: BTreeSet<_> = steps.iter().map(|step| step.socket).collect();
    assert!(sockets.len() >= 2, "both subflows decide");
    assert!(compared.increases > 200 && compared.losses > 4, "{compared:?}");
    assert!(compared.begun_anew <= compared.losses + 4, "{compared:?}");
}

/// Ends the reading of steps, also when what it is for has failed.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Connections of TCP, and of MPTCP without a second subflow: no increase is an algorithm's, and what a loss leaves is what
/// the kernel's reno leaves.
#[test]
fn one_path_is_left_to_reno() {
    if !can_run("one_path_is_left_to_reno") {
        return;
    }
    let hosts = hosts("one");
    run(&format!("ip -n {} mptcp limits set subflows 0 add_addr_accepted 0", hosts.0.name()));
    thread::scope(|scope| {
        for (port, algorithm) in (9001u16..).step_by(2).zip(Algorithm::ALL) {
            let hosts = &hosts;
            scope.spawn(move || {
                let told = Told::register(algorithm, 'u');
                let done = AtomicBool::new(false);
                let steps = thread::scope(|scope| {
                    scope.spawn(|| {
                        let _done = Done(&done);
                        thread::scope(|scope| {
                            for (port, protocol) in [(port, Protocol::TCP), (port + 1, Protocol::MPTCP)] {
                                scope.spawn({
                                    let name = &told.name;
                                    move || drop(transfer(hosts, name, protocol, port))
                                });
                            }
                        });
                    });
                    told.steps(&done)
                });
                let sockets: BTreeSet<_> = steps.iter().map(|step| step.socket).collect();
                assert_eq!(sockets.len(), 2, "{algorithm}: both connections lose");
                for step in steps {
                    let window = step.paths[0].window;
                    assert_eq!((step.kind, step.number), (PLAIT_STEP_LOSS, 1), "{algorithm}: {step:?}");
                    assert_eq!(step.window_after, (window / 2).max(2), "{algorithm}: {step:?}");
                }
            });
        }
    });
}

#[test]
fn ewtcp_decides_as_its_model() {
    decides_as_its_model(Algorithm::Ewtcp);
}

#[test]
fn coupled_decides_as_its_model() {
    decides_as_its_model(Algorithm::Coupled);
}

#[test]
fn lia_decides_as_its_model() {
    decides_as_its_model(Algorithm::Lia);
}

#[test]
fn olia_decides_as_its_model() {
    decides_as_its_model(Algorithm::Olia);
}

#[test]
fn balia_decides_as_its_model() {
    decides_as_its_model(Algorithm::Balia);
}

// SAFETY: integers only.
unsafe impl Zeroable for plait_path {}
// SAFETY: as above, and intf.h asserts that the size is the sum of the fields' sizes.
unsafe impl Pod for plait_path {}
// SAFETY: as above.
unsafe impl Zeroable for plait_step {}
// SAFETY: as above.
unsafe impl Pod for plait_step {}
