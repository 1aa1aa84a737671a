//! Compares each decision of the programs on real connections, over two slow paths whose queues overflow, with that of
//! the model for the same acknowledgments and losses.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{Link, MapCore as _, MapType, Object, RingBufferBuilder};
use plait_linux::mptcp::Info;
use plait_linux::netns::Named;
use socket2::{Domain, Protocol, Socket, Type};

use super::{can_run, error_bound, model_path, run};
use crate::bindings::{PLAIT_STEP_INCREASE, PLAIT_STEP_LOSS, plait_step};
use crate::{Algorithm, Path, object};

const TRANSFER_TIME: Duration = Duration::from_secs(3);
/// For transfers that have not met enough losses by then.
const MAX_TRANSFER_TIME: Duration = Duration::from_secs(30);

/// An algorithm that reports its steps, registered under a name unique to the test.
struct Traced {
    name: String,
    object: Object,
    _link: Link,
    /// Losses reported so far, by socket.
    losses: Mutex<BTreeMap<u64, usize>>,
}

impl Traced {
    fn register(algorithm: Algorithm, prefix: char) -> Traced {
        let name = format!("{prefix}{}{}", std::process::id(), &algorithm.name()[..1]);
        let mut object = object::open(object::program_of(algorithm)).expect("object opens");
        for mut program in object.progs_mut() {
            let wanted = program.name() != "calculate";
            program.set_autoload(wanted);
        }
        for mut map in object.maps_mut() {
            if map.name() == ".rodata.tracing" {
                map.set_initial_value(&1u32.to_ne_bytes()).expect("value is set");
            }
            if map.map_type() == MapType::StructOps {
                rename(map.initial_value_mut().expect("value is set"), algorithm.kernel_name(), &name);
            }
        }
        let mut object = object.load().expect("kernel accepts the programs");
        let link = object::register(&mut object, algorithm.kernel_name()).expect("algorithm registers");
        Traced { name, object, _link: link, losses: Mutex::default() }
    }

    fn losses(&self) -> usize {
        self.losses.lock().expect("no panic").values().sum()
    }

    fn sockets_with_losses(&self) -> usize {
        self.losses.lock().expect("no panic").len()
    }

    /// Collects the reported steps until `done`.
    fn steps(&self, done: &AtomicBool) -> Vec<plait_step> {
        let mut steps = Vec::new();
        {
            let map = self.object.maps().find(|map| map.name() == "steps").expect("map steps exists");
            let mut builder = RingBufferBuilder::new();
            let record = |bytes: &[u8]| {
                let step: plait_step = bytemuck::pod_read_unaligned(bytes);
                if step.kind == PLAIT_STEP_LOSS {
                    *self.losses.lock().expect("no panic").entry(step.socket).or_default() += 1;
                }
                steps.push(step);
                0
            };
            builder.add(&map, record).expect("ring buffer opens");
            let ring = builder.build().expect("ring buffer opens");
            while !done.load(Ordering::Relaxed) {
                ring.poll(Duration::from_millis(20)).expect("poll succeeds");
            }
            ring.consume().expect("last steps are read");
        }
        steps
    }
}

fn rename(value: &mut [u8], from: &str, to: &str) {
    let at =
        value.windows(from.len()).position(|part| part == from.as_bytes()).expect("value contains the name");
    value[at..at + 16].fill(0);
    value[at..at + to.len()].copy_from_slice(to.as_bytes());
}

/// Creates two hosts with two links of different rates, which drop packets when their queues are full.
fn hosts(id: &str) -> (Named, Named) {
    let name = |role: &str| format!("plait-{}-{id}-{role}", std::process::id());
    let (here, there) = (name("a"), name("b"));
    let hosts = (
        Named::create(&here).expect("namespace is created"),
        Named::create(&there).expect("namespace is created"),
    );
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

/// Sends to a port for [`TRANSFER_TIME`], and until there were enough losses. Returns the connected socket.
fn transfer(
    (here, there): &(Named, Named),
    name: &str,
    protocol: Protocol,
    port: u16,
    enough_losses: impl Fn() -> bool,
) -> Socket {
    let address = SocketAddr::from(([10, 0, 1, 2], port));
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).expect("socket opens");
    let listener = there.run(socket).expect("runs in the namespace");
    listener.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into()).expect("port is free");
    listener.listen(1).expect("listens");
    thread::spawn(move || {
        let mut accepted = listener.accept().expect("connects").0;
        let mut buffer = vec![0; 1 << 16];
        while accepted.read(&mut buffer).is_ok_and(|length| length > 0) {}
    });
    let mut sender = here.run(socket).expect("runs in the namespace");
    sender.set_tcp_congestion(name.as_bytes()).expect("algorithm is available");
    sender.connect(&address.into()).expect("connects");
    let (start, block) = (Instant::now(), vec![0; 1 << 16]);
    while start.elapsed() < TRANSFER_TIME || (!enough_losses() && start.elapsed() < MAX_TRANSFER_TIME) {
        sender.write_all(&block).expect("sends");
    }
    sender
}

/// A subflow's state after the preceding steps.
#[derive(Default)]
struct Replayed {
    /// The window of the model, and the maximum difference of the kernel's window from it.
    model: f64,
    bound: f64,
    /// The window of the kernel.
    window: u32,
    fraction: u64,
}

#[derive(Debug, Default)]
struct Compared {
    increases: usize,
    losses: usize,
    /// Changes of a window by the kernel between two increases, other than by a loss: slow start, undo.
    restarts: usize,
    max_error: f64,
    max_error_over_bound: f64,
}

fn compare(algorithm: Algorithm, steps: &[plait_step]) -> Compared {
    let mut subflows = BTreeMap::<u64, Replayed>::new();
    let mut compared = Compared::default();
    for step in steps {
        let paths: Vec<Path> = step.paths[..step.path_count as usize].iter().map(model_path).collect();
        let subflow = subflows.entry(step.socket).or_default();
        if step.kind == PLAIT_STEP_LOSS {
            let expected = algorithm.after_loss(&paths, 0);
            let actual = f64::from(step.window_after);
            assert!(
                (actual - expected).abs() < 1.0,
                "{algorithm}: expected {expected}, got {actual} of {paths:?}"
            );
            *subflow = Replayed::default();
            compared.losses += 1;
            continue;
        }
        assert_eq!(step.kind, PLAIT_STEP_INCREASE);
        if subflow.window != step.paths[0].window {
            subflow.window = step.paths[0].window;
            subflow.model = f64::from(subflow.window) + subflow.fraction as f64 / 2f64.powi(32);
            subflow.bound = 0.0;
            compared.restarts += 1;
        }
        let acked = f64::from(step.acked);
        subflow.model += acked * algorithm.increase(&paths, 0);
        subflow.bound += acked * error_bound(&paths);
        (subflow.window, subflow.fraction) = (step.window_after, step.fraction);
        let actual = f64::from(step.window_after) + step.fraction as f64 / 2f64.powi(32);
        let error = (actual - subflow.model).abs();
        assert!(error <= subflow.bound, "{algorithm}: expected {}, got {actual}", subflow.model);
        compared.increases += 1;
        compared.max_error = compared.max_error.max(error);
        compared.max_error_over_bound = compared.max_error_over_bound.max(error / subflow.bound);
    }
    compared
}

fn assert_decisions_match_model(algorithm: Algorithm) {
    if !can_run(&format!("{algorithm}_decisions_match_model")) {
        return;
    }
    let traced = Traced::register(algorithm, 't');
    let hosts = hosts(algorithm.name());
    let done = AtomicBool::new(false);
    let (steps, subflows) = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let _done = SetOnDrop(&done);
            let socket = transfer(&hosts, &traced.name, Protocol::MPTCP, 9000, || traced.losses() > 4);
            1 + Info::of(&socket).expect("MPTCP_INFO").extra_subflows
        });
        (traced.steps(&done), sender.join())
    });
    assert_eq!(subflows.expect("transfer succeeds"), 2);
    let compared = compare(algorithm, &steps);
    println!("{algorithm}: {compared:?}");
    let sockets: BTreeSet<_> = steps.iter().map(|step| step.socket).collect();
    assert!(sockets.len() >= 2, "expected steps of both subflows");
    assert!(compared.increases > 200 && compared.losses > 4, "{compared:?}");
    // Most increases continue from the one before, so that errors would add up.
    assert!(compared.restarts * 50 <= compared.increases, "{compared:?}");
}

/// Ends the collection of steps when the transfer ends, even by a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// In TCP connections, and in MPTCP connections with a single subflow, the kernel's reno increases the window, and the
/// window after a loss is that of reno.
#[test]
fn single_path_uses_reno() {
    if !can_run("single_path_uses_reno") {
        return;
    }
    let hosts = hosts("one");
    run(&format!("ip -n {} mptcp limits set subflows 0 add_addr_accepted 0", hosts.0.name()));
    thread::scope(|scope| {
        for (port, algorithm) in (9001u16..).step_by(2).zip(Algorithm::ALL) {
            let hosts = &hosts;
            scope.spawn(move || {
                let traced = Traced::register(algorithm, 'u');
                let done = AtomicBool::new(false);
                let steps = thread::scope(|scope| {
                    scope.spawn(|| {
                        let _done = SetOnDrop(&done);
                        thread::scope(|scope| {
                            for (port, protocol) in [(port, Protocol::TCP), (port + 1, Protocol::MPTCP)] {
                                scope.spawn({
                                    let traced = &traced;
                                    move || {
                                        let enough = || traced.sockets_with_losses() == 2;
                                        drop(transfer(hosts, &traced.name, protocol, port, enough));
                                    }
                                });
                            }
                        });
                    });
                    traced.steps(&done)
                });
                let sockets: BTreeSet<_> = steps.iter().map(|step| step.socket).collect();
                assert_eq!(sockets.len(), 2, "{algorithm}: expected losses on both connections");
                for step in steps {
                    let window = step.paths[0].window;
                    assert_eq!((step.kind, step.path_count), (PLAIT_STEP_LOSS, 1), "{algorithm}: {step:?}");
                    assert_eq!(step.window_after, (window / 2).max(2), "{algorithm}: {step:?}");
                }
            });
        }
    });
}

macro_rules! decisions_match_model {
    ($($test:ident: $algorithm:ident),*) => {$(
        #[test]
        fn $test() {
            assert_decisions_match_model(Algorithm::$algorithm);
        }
    )*};
}

decisions_match_model!(
    ewtcp_decisions_match_model: Ewtcp,
    coupled_decisions_match_model: Coupled,
    lia_decisions_match_model: Lia,
    olia_decisions_match_model: Olia,
    balia_decisions_match_model: Balia
);
