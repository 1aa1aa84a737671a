//! Limits what subflows hold that is not sent yet, so that data of a path that fails is soon sent on another.
//!
//! Without a limit the kernel hands a subflow some hundred kilobytes in advance, and what the other path had not delivered waits
//! behind them. `bpf/unsent_limit.bpf.c` has the rule.

use std::os::fd::AsFd;

use crate::bpf::{self, BpfError};
use crate::skeleton::unsent_limit::UnsentLimitSkelBuilder;

/// Limits the subflows of a cgroup's MPTCP connections until dropped.
pub(crate) struct UnsentLimit {
    _programs: bpf::Programs,
}

impl UnsentLimit {
    /// Attaches to a cgroup that holds only the gateway, for subflows established from then on.
    ///
    /// # Errors
    /// The kernel rejects the program, for example because it may not set `TCP_NOTSENT_LOWAT` (Linux 5.15).
    pub(crate) fn attach(cgroup: impl AsFd) -> Result<UnsentLimit, BpfError> {
        let programs = bpf::load_and_attach("unsent_limit", UnsentLimitSkelBuilder::default(), cgroup)?;
        Ok(UnsentLimit { _programs: programs })
    }
}
