//! From chains to what the kernel runs: the selectors of all chains of a hook become one program of BPF instructions that
//! finds the chains of a packet, and their actors become the parameters that the programs in bpf/ read.
//!
//! A selector is a formula of [tests](test::Test) of the packet's record (`struct plait_packet`), with what the host
//! knows filled in: indexes of interfaces, control groups. The formulas of the chains, in the order of their
//! priorities, become [steps](steps::Step): each asks one test and goes on by its answer, only ever forward. A question
//! whose answer is known by the way that leads to it is left out. Steps become [instructions](emit). The program asks
//! nothing of the packet itself; what it finds it writes into the record.

mod actors;
mod assembler;
mod emit;
mod formula;
mod load;
mod resolve;
mod selectors;
mod steps;
mod test;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use libbpf_rs::libbpf_sys::bpf_insn;
use plait_wire::Role;

use crate::bindings::{self, PLAIT_MAX_CHAINS};
use crate::specification::Hook;
use formula::Formula;
pub(crate) use resolve::resolve;

/// What chains are resolved against.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    pub(crate) interfaces: Vec<HostInterface>,
    /// By the interface's name.
    pub(crate) roles: BTreeMap<String, Role>,
    /// The ids of control groups (version 2) by their paths from the root on; those that chains name are enough.
    pub(crate) cgroups: BTreeMap<String, u64>,
    /// The user's own selectors and actors of this policy by name: n of `PLAIT_OWN_SELECTORS + n` or
    /// `PLAIT_OWN_ACTORS + n`.
    pub(crate) own: BTreeMap<String, u32>,
}

/// An interface of the host.
#[derive(Debug, Clone)]
pub(crate) struct HostInterface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) loopback: bool,
}

/// A chain with everything in it that the host knows.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) hook: Hook,
    pub(crate) priority: i32,
    /// The indexes of the interfaces that are there.
    pub(crate) interfaces: Vec<u32>,
    /// Interfaces and control groups that the chain names and that are not there. What asks for one does not hold.
    pub(crate) absent: Vec<String>,
    /// Their counters are 0.
    pub(crate) actors: Vec<bindings::plait_actor>,
    /// The chain's entry in the map of chains: 0 until somebody says.
    pub(crate) slot: u16,
    formula: Formula,
    needs: u32,
    own_selectors: u32,
}

impl Resolved {
    /// It asks for what is remembered of subflows, which takes both directions: a window is scaled only if both SYNs
    /// say so (RFC 7323, section 2.2), and a round trip goes out and comes in.
    pub(crate) fn needs_both_directions(&self) -> bool {
        self.needs & bindings::PLAIT_NEEDS_FLOW != 0
    }
}

/// The hooks of the kernel, of which each has its kind of program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    Xdp,
    Tc,
}

/// A program that finds the chains whose selectors match a packet.
#[derive(Debug, Clone)]
pub(crate) struct MatchProgram {
    pub(crate) kind: ProgramKind,
    pub(crate) instructions: Vec<bpf_insn>,
    /// Bits of `enum plait_need`: what the chains need to be known of the packets' past.
    pub(crate) needs: u32,
    /// The user's own selectors that chains ask for: bit n is `PLAIT_OWN_SELECTORS + n`.
    pub(crate) own_selectors: u32,
}

/// Chains that cannot become a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CompileError {
    #[error("expected at most {PLAIT_MAX_CHAINS} chains of all policies at {hook}, found {found}")]
    TooManyChains { hook: Hook, found: usize },
    #[error("expected at most {most} tests in the selectors of all chains of a hook, found more")]
    TooManyTests { most: usize },
    #[error("expected selectors that make a program of at most {most} instructions, found more")]
    TooLong { most: usize },
    #[error("expected the name of one of the user's own selectors or actors, found {0:?}")]
    UnknownOwn(String),
    #[error("expected hook = \"egress\" for {0}, found \"ingress\"")]
    OnlyEgress(&'static str),
    #[error("expected control groups on at most {most} levels, found more")]
    TooManyLevels { most: usize },
    #[error("expected a selector with at most {most} parentheses and `not`s inside each other, found more")]
    TooDeep { most: usize },
}

/// The program that matches the chains of a hook. It reads the packet's record from the map `packets`, and writes them
/// down there.
///
/// # Errors
/// The chains are too many, or their selectors too large.
pub(crate) fn match_program(
    kind: ProgramKind,
    hook: Hook,
    chains: &[Resolved],
    packets: BorrowedFd<'_>,
) -> Result<MatchProgram, CompileError> {
    let mut chains: Vec<_> = chains.iter().filter(|chain| chain.hook == hook).collect();
    if chains.len() > PLAIT_MAX_CHAINS as usize {
        return Err(CompileError::TooManyChains { hook, found: chains.len() });
    }
    chains.sort_by_key(|chain| chain.priority);
    let found = steps::of(chains.iter().map(|chain| (&chain.formula, chain.slot)))?;
    Ok(MatchProgram {
        kind,
        instructions: emit::program(kind, &found, packets)?,
        needs: chains.iter().fold(0, |needs, chain| needs | chain.needs),
        own_selectors: chains.iter().fold(0, |own, chain| own | chain.own_selectors),
    })
}
