//! A host and a peer in network namespaces, and the kernel objects of the host's engine.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use libbpf_rs::query::{LinkInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore, MapHandle};
use plait_linux::netns::Named;
use plait_policy::{Engine, Policy};
use socket2::Domain;

use crate::topology::{self, add_link, can_run, dial, ip, listen};

/// The host, whose interface `a0` (10.1.0.1, fd00:1::1) is connected to `b0` (10.1.0.2, fd00:1::2) of its peer. Removed
/// on drop.
pub(crate) struct Host {
    pub(crate) namespace: Named,
    peer: Named,
}

impl Host {
    /// `None`, with a message, where the test cannot run.
    pub(crate) fn new(test: &str) -> Option<Host> {
        if !can_run(test) {
            return None;
        }
        let host = Host { namespace: topology::host("policy"), peer: topology::host("peer") };
        host.connect();
        Some(host)
    }

    /// Creates the link.
    pub(crate) fn connect(&self) {
        add_link(&self.namespace, &self.peer, 0);
    }

    /// Calls `work` inside the host, with its engine.
    pub(crate) fn with_engine<T: Send>(&self, work: impl FnOnce(&Engine) -> T + Send) -> T {
        self.namespace.run(|| work(&Engine::current().expect("an engine"))).expect("inside")
    }

    /// Runs `ip` inside the host.
    pub(crate) fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.namespace.name()));
    }

    /// Runs `tc` inside the host and returns its output.
    pub(crate) fn tc(&self, arguments: &str) -> String {
        let words = ["-n", self.namespace.name()].into_iter().chain(arguments.split(' '));
        let output = Command::new("tc").args(words).output().expect("the command tc");
        assert!(output.status.success(), "tc {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends this many bytes from the peer to the host over MPTCP, and one byte back.
    pub(crate) fn receive(&self, bytes: usize) {
        let (listener, port) = listen(&self.namespace, Domain::IPV4);
        thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut client = dial(&self.peer, "10.1.0.1", port);
                let mut send = || {
                    client.write_all(&vec![1; bytes])?;
                    client.shutdown(std::net::Shutdown::Write)?;
                    client.read_exact(&mut [0])
                };
                send().expect("a connection");
            });
            let (mut server, _) = listener.accept().expect("a connection");
            let mut received = Vec::new();
            server.read_to_end(&mut received).expect("all of it");
            assert_eq!(received.len(), bytes);
            server.write_all(&[1]).expect("a write");
            sending.join().expect("it was sent");
        });
    }

    /// The directories of the state and of pins.
    pub(crate) fn directories(&self) -> [PathBuf; 2] {
        let inode = self.namespace.identity().expect("an identity").inode.to_string();
        let run = plait_linux::run_directory().expect("a directory");
        [run.join("policy").join(&inode), run.join("bpf").join(&inode)]
    }

    /// Replaces a number or text in the recorded state.
    pub(crate) fn change_state(&self, key: &str, value: &str) {
        let file = self.directories()[0].join("loaded.json");
        let text = std::fs::read_to_string(&file).expect("a file");
        let (start, rest) = text.split_once(&format!("\"{key}\": ")).expect("the key");
        let (_, rest) = rest.split_once(',').expect("more");
        std::fs::write(&file, format!("{start}\"{key}\": {value},{rest}")).expect("written");
    }

    /// Sets the MTU of both ends of the link.
    pub(crate) fn set_mtu(&self, mtu: u32) {
        self.ip(&format!("link set a0 mtu {mtu}"));
        ip(&format!("-n {} link set b0 mtu {mtu}", self.peer.name()));
    }

    /// The objects of the engine, once there are no more than this many programs; the kernel frees them with a delay.
    pub(crate) fn settled(&self, programs: usize) -> Objects {
        for _ in 0..MAX_CHECKS {
            let objects = self.objects();
            if objects.programs.len() <= programs {
                return objects;
            }
            thread::sleep(CHECK_INTERVAL);
        }
        self.objects()
    }

    /// Asserts that these objects were freed and the directories of the engine removed.
    pub(crate) fn assert_nothing_left(&self, objects: &Objects) {
        for directory in self.directories() {
            assert!(!directory.exists(), "{} is still there", directory.display());
        }
        assert_gone(objects);
    }

    /// The objects of the engine, which must be loaded.
    pub(crate) fn objects(&self) -> Objects {
        let [_, pins] = self.directories();
        let maps = std::fs::read_dir(pins.join("maps")).expect("pinned maps").map(|entry| {
            let map = MapHandle::from_pinned_path(entry.expect("an entry").path()).expect("a map");
            map.info().expect("a map").info.id
        });
        Objects::using(maps.collect())
    }
}

/// IDs of maps, programs and links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) maps: BTreeSet<u32>,
    pub(crate) programs: BTreeSet<u32>,
    pub(crate) links: BTreeSet<u32>,
}

impl Objects {
    /// These maps, the programs that use one of them, and the links of these programs.
    fn using(maps: BTreeSet<u32>) -> Objects {
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        let programs = ProgInfoIter::with_query_opts(options)
            .filter(|program| program.map_ids.iter().any(|map| maps.contains(map)))
            .map(|program| program.id)
            .collect();
        Objects::with(maps, programs)
    }

    /// The objects that still exist.
    pub(crate) fn still_there(&self) -> Objects {
        let programs = ProgInfoIter::default().map(|program| program.id);
        let programs = programs.filter(|program| self.programs.contains(program)).collect();
        Objects::with(self.maps.clone(), programs)
    }

    fn with(maps: BTreeSet<u32>, programs: BTreeSet<u32>) -> Objects {
        let links = LinkInfoIter::default();
        let links = links.filter(|link| programs.contains(&link.prog_id)).map(|link| link.id).collect();
        Objects { maps: maps.intersection(&all_maps()).copied().collect(), programs, links }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.maps.is_empty() && self.programs.is_empty() && self.links.is_empty()
    }
}

/// The IDs of all maps, without opening them: a program array that is opened while the kernel frees it is never
/// freed.
fn all_maps() -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut number = 0;
    // SAFETY: takes a number, and writes one to a place that lives as long as the call.
    while unsafe { libbpf_rs::libbpf_sys::bpf_map_get_next_id(number, &mut number) } == 0 {
        found.insert(number);
    }
    found
}

/// Asserts that these objects were freed.
pub(crate) fn assert_gone(objects: &Objects) {
    let is_gone = (0..MAX_CHECKS).any(|_| {
        let gone = objects.still_there().is_empty();
        if !gone {
            thread::sleep(CHECK_INTERVAL);
        }
        gone
    });
    assert!(is_gone, "still there: {:?}", objects.still_there());
}

/// Asserts that an engine's programs are attached wherever they should be.
#[track_caller]
pub(crate) fn assert_attached(engine: &Engine) {
    let attachments = engine.attachments().expect("attachments");
    assert!(attachments.iter().all(|there| there.mode.is_some()), "{attachments:?}");
}

/// The packets that the first chain of the first policy matched.
pub(crate) fn packets(engine: &Engine) -> u64 {
    engine.statistics().expect("statistics").policies[0].chains[0].count.packets
}

/// A policy that records incoming data, and counts outgoing packets.
pub(crate) fn in_and_out(name: &str, interface: &str) -> Policy {
    policy(&format!(
        "name = \"{name}\"\ninterfaces = [\"{interface}\"]\n[[chains]]\nname = \"in\"\nhook = \"ingress\"\n\
         select = \"packet(data)\"\nactors = [\"record\"]\n[[chains]]\nname = \"out\"\nhook = \"egress\"\nactors = []\n"
    ))
}

/// Parses a policy.
pub(crate) fn policy(text: &str) -> Policy {
    Policy::parse(text, "test").expect("a policy")
}

/// How often, and at which interval, to check whether the kernel has freed objects.
const MAX_CHECKS: u32 = 500;
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
