//! From chains to BPF: the selectors of all chains of a hook become one program that finds the chains of a packet,
//! and their actors become the parameters that the programs in bpf/ read.
//!
//! A selector becomes a formula of [tests](test::Test) on the packet record (`struct plait_packet`), with host
//! properties such as interface indexes and control group IDs filled in. The formulas of the chains, in order of
//! priority, become [steps](steps::Step): each evaluates one test and continues at one of two later steps. Tests
//! whose result is already known on a path are skipped. Steps become [instructions](emit). The program reads only the
//! record, not the packet, and writes its result there.

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
use plait_config::Role;

use crate::bindings::{self, PLAIT_MAX_CHAINS};
use crate::model::Hook;
use formula::Formula;
pub(crate) use resolve::resolve;

/// The host properties that chains are resolved against.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    pub(crate) interfaces: Vec<HostInterface>,
    /// By interface name.
    pub(crate) roles: BTreeMap<String, Role>,
    /// Control group (version 2) IDs by absolute path; those that chains refer to are enough.
    pub(crate) cgroups: BTreeMap<String, u64>,
    /// The custom selectors and actors of this policy: name to slot, relative to `PLAIT_CUSTOM_SELECTORS` and
    /// `PLAIT_CUSTOM_ACTORS`.
    pub(crate) custom: BTreeMap<String, u32>,
}

/// An interface of the host.
#[derive(Debug, Clone)]
pub(crate) struct HostInterface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) loopback: bool,
}

/// A chain with all host properties filled in.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) hook: Hook,
    pub(crate) priority: i32,
    /// The indexes of existing interfaces.
    pub(crate) interfaces: Vec<u32>,
    /// Interfaces and control groups that the chain refers to and that do not exist; tests of them are false.
    pub(crate) absent: Vec<String>,
    /// Their counters are 0.
    pub(crate) actors: Vec<bindings::plait_actor>,
    /// The entry in the map of chains, assigned later.
    pub(crate) slot: u16,
    formula: Formula,
    needs: u32,
    custom_selectors: u32,
}

impl Resolved {
    /// Whether it needs subflow records, which require both directions: window scaling needs both SYNs (RFC 7323,
    /// section 2.2), and a round trip has two.
    pub(crate) fn needs_both_directions(&self) -> bool {
        self.needs & bindings::PLAIT_NEEDS_FLOW != 0
    }
}

/// The kind of a BPF program, by kernel hook.
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
    /// Bits of `enum plait_need`: what the chains need to know about earlier packets.
    pub(crate) needs: u32,
    /// The custom selectors in use: bit n is slot n.
    pub(crate) custom_selectors: u32,
}

/// Why chains cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CompileError {
    #[error("expected at most {PLAIT_MAX_CHAINS} chains in all policies at {hook}, got {found}")]
    TooManyChains { hook: Hook, found: usize },
    #[error("expected at most {max} tests in the selectors of all chains of a hook, got more")]
    TooManyTests { max: usize },
    #[error("expected selectors that compile to at most {max} instructions, got more")]
    TooLong { max: usize },
    #[error("expected the name of one of the user's custom selectors or actors, got {0:?}")]
    UnknownCustom(String),
    #[error("expected hook = \"egress\" for {0}, got \"ingress\"")]
    OnlyEgress(&'static str),
    #[error("expected control groups at at most {max} levels, got more")]
    TooManyLevels { max: usize },
    #[error("expected a selector with at most {max} nested parentheses and `not`s, got more")]
    TooDeep { max: usize },
}

/// Compiles the match program of a hook. It reads and writes the packet record in the map `packets`.
///
/// # Errors
/// There are too many chains, or their selectors are too large.
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
        custom_selectors: chains.iter().fold(0, |custom, chain| custom | chain.custom_selectors),
    })
}
