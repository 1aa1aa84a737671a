//! Policies tried on single packets that nobody sends or receives: what each would do, and how long it takes.
//!
//! The programs are those that policies are loaded with, run by the kernel (`BPF_PROG_TEST_RUN`) with maps of their
//! own. Nothing is attached or pinned, and all of it ends with the [`Trial`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::thread;

use libbpf_rs::{MapCore, MapFlags, ObjectBuilder, ProgramHandle, RingBufferBuilder};
use plait_wire::Role;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use serde::Serialize;

use super::events::{Matched, Verdict, kinds};
use super::objects::{IDLE, Objects};
use super::plan::Plan;
use super::state::{State, Stored};
use super::statistics::Statistics;
use super::{Error, swap, sys};
use crate::bindings::{PLAIT_REDIRECT, plait_chain, plait_packet, plait_settings};
use crate::compile::{Host, HostInterface};
use crate::{Actor, Hook, Interface, Kind, Policy, Selector};

/// Policies in an engine of their own.
#[derive(Debug)]
pub struct Trial {
    objects: Objects,
    state: State,
    policies: Vec<Policy>,
    host: Host,
}

/// A packet to try them on.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Whether it comes in, and is met by XDP, or goes out, and is met by TC.
    pub hook: Hook,
    /// What comes in is met by TC as well, as on interfaces where XDP cannot be.
    pub by_tc: bool,
    /// From the Ethernet header on, which it must have.
    pub bytes: &'a [u8],
    /// The mark of its socket; for TC only.
    pub mark: u32,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ran {
    /// Whether it goes on.
    pub verdict: Verdict,
    /// The interface that it is sent by, if it is redirected.
    pub redirected_to: Option<String>,
    /// As it is afterwards.
    #[serde(skip)]
    pub bytes: Vec<u8>,
    /// What the packet is and carries; empty if it was let go at once.
    #[serde(skip)]
    pub kinds: Vec<Kind>,
    /// The chains that matched.
    pub chains: Vec<Matched>,
    /// The time it took, on average of the repetitions.
    pub nanoseconds: u32,
}

impl Trial {
    /// Loads policies to be tried. Packets are taken to pass by `interface`; without one, by one that each chain is
    /// for.
    ///
    /// # Errors
    /// What keeps the policies from being loaded.
    pub fn new(policies: &[Policy], interface: Option<&str>) -> Result<Trial, Error> {
        policies.iter().try_for_each(Policy::check)?;
        let mut state = State::default();
        let store =
            |policy: &Policy| Stored { name: policy.name.clone(), text: policy.to_string(), lease: 0 };
        state.policies = policies.iter().map(store).collect();
        let host = host(policies, interface)?;
        let plan = Plan::make(policies, &host, &mut state)?;
        let objects = Objects::new()?;
        let matches = plan.load(&objects)?;
        plan.write(&objects)?;
        let settings = plait_settings {
            needs: matches.needs,
            own_selectors: matches.own_selectors,
            ..objects.settings()?
        };
        objects.set_settings(&settings)?;
        matches.install(&objects)?;
        let trial = Trial { objects, state, policies: policies.to_vec(), host };
        // Loading one later would be a pause between two packets, which round trips are measured by.
        for hook in [Hook::Ingress, Hook::Egress] {
            trial.program(hook, false)?;
        }
        Ok(trial)
    }

    /// Runs a packet through the policies, `repeat` times in a row (1 at least). What is remembered of subflows is kept
    /// from packet to packet; a packet that is changed is changed again by the next repetition.
    ///
    /// # Errors
    /// What the kernel says, such as of a packet shorter than an Ethernet header.
    pub fn run(&self, frame: &Frame, repeat: u32) -> Result<Ran, Error> {
        let program = self.program(frame.hook, frame.by_tc)?;
        on_one_processor(|processor| self.run_here(program, frame, repeat.max(1), processor))
    }

    /// Runs packets one after the other, each once and as it is given, and all of them `rounds` times over: the
    /// nanoseconds that each took, in this order. A part of them, always the same, is what it takes the kernel to look at
    /// its clock. What programs tell is thrown away.
    ///
    /// # Errors
    /// As [`run`](Trial::run).
    pub fn durations(&self, frames: &[Frame], rounds: u32) -> Result<Vec<u32>, Error> {
        let programs = frames
            .iter()
            .map(|frame| self.program(frame.hook, frame.by_tc))
            .collect::<Result<Vec<_>, _>>()?;
        on_one_processor(|_| {
            let failed = |reason: libbpf_rs::Error| Error::kernel("read what programs told")(reason);
            let mut events = RingBufferBuilder::new();
            events.add(self.objects.map("events")?, |_| 0).map_err(failed)?;
            let events = events.build().map_err(failed)?;
            let mut durations = Vec::with_capacity(frames.len() * rounds as usize);
            for _ in 0..rounds {
                for (program, frame) in programs.iter().zip(frames) {
                    durations.push(try_packet(program, frame, 1)?.nanoseconds);
                    if durations.len().is_multiple_of(RUNS_BETWEEN_READS) {
                        events.consume().map_err(failed)?;
                    }
                }
            }
            events.consume().map_err(failed)?;
            Ok(durations)
        })
    }

    /// The nanoseconds that a program takes at XDP that does nothing but let packets pass: what to compare with.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn idle(&self, bytes: &[u8], repeat: u32) -> Result<u32, Error> {
        let failed = Error::kernel("load a program that does nothing");
        let idle = ObjectBuilder::default().open_memory(IDLE).and_then(|open| open.load()).map_err(failed)?;
        let program = idle.progs().next().ok_or_else(|| Error::missing("program", "pass"))?;
        let ran = sys::run(program.as_fd(), bytes, &[], repeat.max(1));
        Ok(ran.map_err(|reason| Error::kernel("try a packet")(reason.into()))?.nanoseconds)
    }

    /// What was counted so far.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        Statistics::read(&self.objects, &self.state, &self.policies)
    }

    /// The subflows that are remembered.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn flows(&self) -> Result<Vec<super::Flow>, Error> {
        super::flows::read(self.objects.map("flows")?)
    }

    fn program(&self, hook: Hook, by_tc: bool) -> Result<&ProgramHandle, Error> {
        self.objects.program(match (hook, by_tc || self.redirects()) {
            (Hook::Ingress, false) => "xdp_ingress",
            (Hook::Ingress, true) => "tc_ingress",
            (Hook::Egress, _) => "tc_egress",
        })
    }

    /// What comes in is met by TC, as on interfaces that it is redirected from.
    fn redirects(&self) -> bool {
        let comes_in = self.policies.iter().flat_map(|policy| &policy.chains);
        let actors = comes_in.filter(|chain| chain.hook == Hook::Ingress).flat_map(|chain| &chain.actors);
        actors.into_iter().any(|actor| matches!(actor, Actor::Redirect(_)))
    }

    fn run_here(
        &self,
        program: &ProgramHandle,
        frame: &Frame,
        repeat: u32,
        processor: usize,
    ) -> Result<Ran, Error> {
        self.clear()?;
        let ran = try_packet(program, frame, repeat)?;
        let packet = self.packet(processor)?;
        let is_let_go = packet.chain_count == 0;
        let verdict = if is_let_go { Verdict::Pass } else { Verdict::new(packet.verdict.into()) };
        let redirected = !is_let_go && u32::from(packet.verdict) == PLAIT_REDIRECT;
        Ok(Ran {
            verdict,
            redirected_to: self.interface(packet.redirect_to).filter(|_| redirected),
            bytes: ran.packet,
            kinds: kinds(packet.kinds),
            chains: self.matched(&packet)?,
            nanoseconds: ran.nanoseconds,
        })
    }

    fn interface(&self, index: u32) -> Option<String> {
        let interface = self.host.interfaces.iter().find(|interface| interface.index == index);
        interface.map(|interface| interface.name.clone())
    }

    fn matched(&self, packet: &plait_packet) -> Result<Vec<Matched>, Error> {
        let mut matched = Vec::new();
        for (place, slot) in packet.chains.iter().take(packet.chain_count.into()).enumerate() {
            let record: Option<plait_chain> = self.objects.read("chains", (*slot).into())?;
            if let Some(counted) = record.and_then(|record| self.state.counters.get(&record.counter)) {
                let hit = packet.chains_hit >> place & 1 != 0;
                matched.push(Matched { policy: counted.policy.clone(), chain: counted.chain.clone(), hit });
            }
        }
        Ok(matched)
    }

    /// Empties the record of the packet, so that what is there afterwards is of the one that ran.
    fn clear(&self) -> Result<(), Error> {
        let packets = self.objects.map("packets")?;
        let processors = libbpf_rs::num_possible_cpus().map_err(Error::kernel("count the processors"))?;
        let empty = vec![vec![0; size_of::<plait_packet>()]; processors];
        packets
            .update_percpu(&0u32.to_ne_bytes(), &empty, MapFlags::ANY)
            .map_err(Error::kernel("clear a record"))
    }

    fn packet(&self, processor: usize) -> Result<plait_packet, Error> {
        let records = self.objects.map("packets")?.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY);
        let records = records.map_err(Error::kernel("read the record of a packet"))?.unwrap_or_default();
        let record = records.get(processor).and_then(|bytes| bytemuck::try_pod_read_unaligned(bytes).ok());
        record.ok_or_else(|| Error::missing("record of a packet on processor", &processor.to_string()))
    }
}

fn try_packet(program: &ProgramHandle, frame: &Frame, repeat: u32) -> Result<sys::Ran, Error> {
    // struct __sk_buff: its length and type, and then the mark.
    let context: &[u32] =
        if program.prog_type() == libbpf_rs::ProgramType::Xdp { &[] } else { &[0, 0, frame.mark] };
    let ran = sys::run(program.as_fd(), frame.bytes, context, repeat);
    ran.map_err(|reason| Error::kernel("try a packet")(reason.into()))
}

/// Calls `work` with the number of the processor that it stays on, whose records are of the packets that it tried.
fn on_one_processor<T: Send>(work: impl FnOnce(usize) -> Result<T, Error> + Send) -> Result<T, Error> {
    let stay = || {
        let processor = sched_getcpu();
        let mut only = CpuSet::new();
        only.set(processor);
        let failed = |reason: rustix::io::Errno| {
            Error::kernel("stay on a processor")(std::io::Error::from(reason).into())
        };
        sched_setaffinity(None, &only).map_err(failed)?;
        work(processor)
    };
    thread::scope(|scope| scope.spawn(stay).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// A host whose interfaces, as far as policies name them, are the loopback interface of this namespace, by which the
/// kernel says that tried packets come; others than the one asked for are elsewhere.
fn host(policies: &[Policy], interface: Option<&str>) -> Result<Host, Error> {
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
            // No interface can have a name with a slash.
            let name = format!("/{role}");
            interfaces.push(HostInterface { index: LOOPBACK, name: name.clone(), loopback: false });
            roles.insert(name, role);
        }
    }
    Ok(Host { interfaces, roles, cgroups: swap::cgroups(policies)?, own: BTreeMap::new() })
}

fn name(interface: &Interface) -> Option<&str> {
    if let Interface::Named(name) = interface { Some(name) } else { None }
}

/// Far fewer than there is room for events of.
const RUNS_BETWEEN_READS: usize = 1000;
/// The loopback interface is the first of every namespace.
const LOOPBACK: u32 = 1;
/// Indexes that no interface of a trial has.
const ELSEWHERE: u32 = 1 << 30;
