//! Runs policies on single packets that are neither received nor sent: what each does, and how long it takes.
//!
//! The kernel runs the programs that would be attached (`BPF_PROG_TEST_RUN`), with private maps. Nothing is attached
//! or pinned, and everything is freed with the [`DryRun`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::thread;

use libbpf_rs::{MapCore, MapFlags, ObjectBuilder, ProgramHandle, RingBufferBuilder};
use plait_config::Role;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use serde::Serialize;

use super::error::EngineError;
use super::events::{ChainMatch, Verdict, kinds};
use super::objects::{IDLE, Objects};
use super::plan::Plan;
use super::state::{State, StoredPolicy};
use super::statistics::Statistics;
use super::{swap, sys};
use crate::bindings::{PLAIT_REDIRECT, plait_chain, plait_packet, plait_settings};
use crate::compile::{Host, HostInterface};
use crate::model::{Actor, Hook, Interface, PacketKind, Policy, Selector};

/// Policies loaded for test runs.
#[derive(Debug)]
pub struct DryRun {
    objects: Objects,
    state: State,
    policies: Vec<Policy>,
    host: Host,
}

/// A packet to run.
#[derive(Clone, Copy, Debug)]
pub struct TestPacket<'a> {
    /// Ingress packets are processed by XDP, egress packets by TC.
    pub hook: Hook,
    /// Process ingress packets by TC, as on interfaces without XDP.
    pub via_tc: bool,
    /// The packet, from the Ethernet header on.
    pub bytes: &'a [u8],
    /// The mark of its socket; TC only.
    pub mark: u32,
}

/// The result of running a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestRun {
    /// The verdict.
    pub verdict: Verdict,
    /// The interface it is redirected to.
    pub redirected_to: Option<String>,
    /// The packet afterwards.
    #[serde(skip)]
    pub bytes: Vec<u8>,
    /// The kinds of the packet; empty if it was skipped.
    #[serde(skip)]
    pub kinds: Vec<PacketKind>,
    /// The chains that matched.
    pub chains: Vec<ChainMatch>,
    /// The processing time, averaged over the repetitions.
    pub nanoseconds: u32,
}

impl DryRun {
    /// Loads policies. Packets are taken to pass `interface`; `None`: an interface to which each chain applies.
    ///
    /// # Errors
    /// Any reason why the policies cannot be loaded.
    pub fn new(policies: &[Policy], interface: Option<&str>) -> Result<DryRun, EngineError> {
        policies.iter().try_for_each(Policy::check)?;
        let mut state = State::default();
        let store =
            |policy: &Policy| StoredPolicy { name: policy.name.clone(), text: policy.to_string(), lease: 0 };
        state.policies = policies.iter().map(store).collect();
        let host = host(policies, interface)?;
        let plan = Plan::make(policies, &host, &mut state)?;
        let objects = Objects::new()?;
        let matches = plan.load(&objects)?;
        plan.write(&objects)?;
        let settings = plait_settings {
            needs: matches.needs,
            custom_selectors: matches.custom_selectors,
            ..objects.settings()?
        };
        objects.set_settings(&settings)?;
        matches.install(&objects)?;
        let trial = DryRun { objects, state, policies: policies.to_vec(), host };
        // Loading a program later would pause between two packets, which affects measured round-trip times.
        for hook in [Hook::Ingress, Hook::Egress] {
            trial.program(hook, false)?;
        }
        Ok(trial)
    }

    /// Runs a packet `repeat` times (at least once). Subflow records persist between packets; a packet that is
    /// modified is modified again by the next repetition.
    ///
    /// # Errors
    /// The kernel rejected the run, for example because the packet is shorter than an Ethernet header.
    pub fn run(&self, packet: &TestPacket, repeat: u32) -> Result<TestRun, EngineError> {
        let program = self.program(packet.hook, packet.via_tc)?;
        on_one_cpu(|cpu| self.run_on(program, packet, repeat.max(1), cpu))
    }

    /// Runs a sequence of packets `rounds` times, each packet once and unmodified: the nanoseconds of each run, in
    /// order. They include a constant part for reading the clock. Events are discarded.
    ///
    /// # Errors
    /// As [`run`](DryRun::run).
    pub fn durations(&self, packets: &[TestPacket], rounds: u32) -> Result<Vec<u32>, EngineError> {
        let programs = packets
            .iter()
            .map(|packet| self.program(packet.hook, packet.via_tc))
            .collect::<Result<Vec<_>, _>>()?;
        on_one_cpu(|_| {
            let failed = |reason: libbpf_rs::Error| EngineError::kernel("read the events")(reason);
            let mut events = RingBufferBuilder::new();
            events.add(self.objects.map("events")?, |_| 0).map_err(failed)?;
            let events = events.build().map_err(failed)?;
            let mut durations = Vec::with_capacity(packets.len() * rounds as usize);
            for _ in 0..rounds {
                for (program, packet) in programs.iter().zip(packets) {
                    durations.push(run_packet(program, packet, 1)?.nanoseconds);
                    if durations.len().is_multiple_of(RUNS_BETWEEN_READS) {
                        events.consume().map_err(failed)?;
                    }
                }
            }
            events.consume().map_err(failed)?;
            Ok(durations)
        })
    }

    /// The nanoseconds of an XDP program that only passes packets, as a baseline.
    ///
    /// # Errors
    /// The kernel rejected a request.
    pub fn baseline(&self, bytes: &[u8], repeat: u32) -> Result<u32, EngineError> {
        let failed = EngineError::kernel("load a program that does nothing");
        let idle = ObjectBuilder::default().open_memory(IDLE).and_then(|open| open.load()).map_err(failed)?;
        let program = idle.progs().next().ok_or_else(|| EngineError::missing("program", "pass"))?;
        let run = sys::run(program.as_fd(), bytes, &[], repeat.max(1));
        Ok(run.map_err(|reason| EngineError::kernel("run a packet")(reason.into()))?.nanoseconds)
    }

    /// The counters so far.
    ///
    /// # Errors
    /// The kernel rejected a request.
    pub fn statistics(&self) -> Result<Statistics, EngineError> {
        Statistics::read(&self.objects, &self.state, &self.policies)
    }

    /// The tracked subflows.
    ///
    /// # Errors
    /// The kernel rejected a request.
    pub fn flows(&self) -> Result<Vec<super::Flow>, EngineError> {
        super::flows::read(self.objects.map("flows")?)
    }

    fn program(&self, hook: Hook, via_tc: bool) -> Result<&ProgramHandle, EngineError> {
        self.objects.program(match (hook, via_tc || self.redirects()) {
            (Hook::Ingress, false) => "xdp_ingress",
            (Hook::Ingress, true) => "tc_ingress",
            (Hook::Egress, _) => "tc_egress",
        })
    }

    /// Whether ingress uses TC, as on interfaces from which packets are redirected.
    fn redirects(&self) -> bool {
        let chains = self.policies.iter().flat_map(|policy| &policy.chains);
        let actors = chains.filter(|chain| chain.hook == Hook::Ingress).flat_map(|chain| &chain.actors);
        actors.into_iter().any(|actor| matches!(actor, Actor::Redirect(_)))
    }

    fn run_on(
        &self,
        program: &ProgramHandle,
        packet: &TestPacket,
        repeat: u32,
        cpu: usize,
    ) -> Result<TestRun, EngineError> {
        self.clear()?;
        let run = run_packet(program, packet, repeat)?;
        let record = self.packet_record(cpu)?;
        let is_skipped = record.chain_count == 0;
        let verdict = if is_skipped { Verdict::Pass } else { Verdict::new(record.verdict.into()) };
        let redirected = !is_skipped && u32::from(record.verdict) == PLAIT_REDIRECT;
        Ok(TestRun {
            verdict,
            redirected_to: self.interface(record.redirect_to).filter(|_| redirected),
            bytes: run.packet,
            kinds: kinds(record.kinds),
            chains: self.matched(&record)?,
            nanoseconds: run.nanoseconds,
        })
    }

    fn interface(&self, index: u32) -> Option<String> {
        let interface = self.host.interfaces.iter().find(|interface| interface.index == index);
        interface.map(|interface| interface.name.clone())
    }

    fn matched(&self, packet: &plait_packet) -> Result<Vec<ChainMatch>, EngineError> {
        let mut matched = Vec::new();
        for (place, slot) in packet.chains.iter().take(packet.chain_count.into()).enumerate() {
            let record: Option<plait_chain> = self.objects.read("chains", (*slot).into())?;
            if let Some(counted) = record.and_then(|record| self.state.counters.get(&record.counter)) {
                let hit = packet.chains_hit >> place & 1 != 0;
                matched.push(ChainMatch {
                    policy: counted.policy.clone(),
                    chain: counted.chain.clone(),
                    hit,
                });
            }
        }
        Ok(matched)
    }

    /// Clears the packet record, so that afterwards it is that of the packet that ran.
    fn clear(&self) -> Result<(), EngineError> {
        let packets = self.objects.map("packets")?;
        let cpus = libbpf_rs::num_possible_cpus().map_err(EngineError::kernel("count the cpus"))?;
        let empty = vec![vec![0; size_of::<plait_packet>()]; cpus];
        packets
            .update_percpu(&0u32.to_ne_bytes(), &empty, MapFlags::ANY)
            .map_err(EngineError::kernel("clear a record"))
    }

    fn packet_record(&self, cpu: usize) -> Result<plait_packet, EngineError> {
        let records = self.objects.map("packets")?.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let records =
            records.map_err(EngineError::kernel("read the record of a packet"))?.unwrap_or_default();
        let record = records.get(cpu).and_then(|bytes| bytemuck::try_pod_read_unaligned(bytes).ok());
        record.ok_or_else(|| EngineError::missing("record of a packet on cpu", &cpu.to_string()))
    }
}

fn run_packet(
    program: &ProgramHandle,
    packet: &TestPacket,
    repeat: u32,
) -> Result<sys::ProgramRun, EngineError> {
    // struct __sk_buff: len, pkt_type, mark.
    let context: &[u32] =
        if program.prog_type() == libbpf_rs::ProgramType::Xdp { &[] } else { &[0, 0, packet.mark] };
    let run = sys::run(program.as_fd(), packet.bytes, context, repeat);
    run.map_err(|reason| EngineError::kernel("run a packet")(reason.into()))
}

/// Calls `work` pinned to one CPU, whose records then belong to the packets that ran.
fn on_one_cpu<T: Send>(work: impl FnOnce(usize) -> Result<T, EngineError> + Send) -> Result<T, EngineError> {
    let stay = || {
        let cpu = sched_getcpu();
        let mut only = CpuSet::new();
        only.set(cpu);
        let failed = |reason: rustix::io::Errno| {
            EngineError::kernel("stay on a cpu")(std::io::Error::from(reason).into())
        };
        sched_setaffinity(None, &only).map_err(failed)?;
        work(cpu)
    };
    thread::scope(|scope| scope.spawn(stay).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// A host on which all interfaces that policies refer to are the loopback interface, as the kernel reports for test
/// runs; with `interface`, all others have unused indexes.
fn host(policies: &[Policy], interface: Option<&str>) -> Result<Host, EngineError> {
    let (mut passed, mut targets) = (BTreeSet::new(), BTreeSet::new());
    passed.extend(interface);
    for chain in policies.iter().flat_map(|policy| &policy.chains) {
        passed.extend(chain.interfaces.iter().filter_map(name));
        chain.select.visit(&mut |part| {
            if let Selector::Path(interface) = part {
                passed.extend(name(interface));
            }
        });
        targets.extend(chain.actors.iter().filter_map(|actor| match actor {
            Actor::Redirect(to) => Some(to.as_str()),
            _ => None,
        }));
    }
    let mut roles = BTreeMap::new();
    let mut interfaces = Vec::new();
    for (place, name) in passed.union(&targets).enumerate() {
        let is_it = passed.contains(name) && interface.is_none_or(|asked| asked == *name);
        let index = if is_it { LOOPBACK } else { ELSEWHERE + place as u32 };
        interfaces.push(HostInterface { index, name: (*name).into(), loopback: false });
    }
    if interface.is_none() {
        for role in [Role::Trusted, Role::Untrusted] {
            // An interface name cannot contain a slash.
            let name = format!("/{role}");
            interfaces.push(HostInterface { index: LOOPBACK, name: name.clone(), loopback: false });
            roles.insert(name, role);
        }
    }
    Ok(Host { interfaces, roles, cgroups: swap::cgroups(policies)?, custom: BTreeMap::new() })
}

fn name(interface: &Interface) -> Option<&str> {
    if let Interface::Named(name) = interface { Some(name) } else { None }
}

/// Well below the capacity for events.
const RUNS_BETWEEN_READS: usize = 1000;
/// The index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;
/// Indexes above those of any interface.
const ELSEWHERE: u32 = 1 << 30;
