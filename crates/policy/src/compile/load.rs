//! Hands a match program to the kernel.
//!
//! `unsafe` here calls the one function of libbpf that loads instructions, for which its Rust binding has no other form.

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{
    BPF_F_XDP_HAS_FRAGS, BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP, BPF_XDP, bpf_prog_load,
    bpf_prog_load_opts, size_t,
};

use super::{MatchProgram, ProgramKind};

/// The kernel refused a program.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot load a program of {instructions} instructions for the policy's selectors: {reason}{verifier}"
)]
pub(crate) struct LoadError {
    pub(crate) instructions: usize,
    pub(crate) reason: io::Error,
    /// The last lines of what the verifier says, if it refused it.
    pub(crate) verifier: String,
}

const LICENSE: &CStr = c"Dual MIT/GPL";
/// Enough for the last words of the verifier, which end its log.
const LOG: usize = 1 << 20;
const LAST_WORDS: usize = 4;

impl MatchProgram {
    /// Has the kernel verify and load it; it lives as long as the descriptor, or a map of programs holds it. `frags`:
    /// the programs of XDP beside it in that map take packets of several fragments, so it must as well.
    ///
    /// # Errors
    /// Missing privileges or memory, or a fault of ours that the verifier found.
    pub(crate) fn load(&self, name: &CStr, frags: bool) -> Result<OwnedFd, LoadError> {
        self.ask(name, frags, &mut []).or_else(|reason| {
            // The verifier's words take time, which only a refused program is worth.
            let mut log = vec![0; LOG];
            match self.ask(name, frags, &mut log) {
                Ok(program) => Ok(program),
                Err(_) => Err(LoadError {
                    instructions: self.instructions.len(),
                    reason,
                    verifier: last_words(&log),
                }),
            }
        })
    }

    fn ask(&self, name: &CStr, frags: bool, log: &mut [u8]) -> io::Result<OwnedFd> {
        let mut options = bpf_prog_load_opts {
            sz: size_of::<bpf_prog_load_opts>() as size_t,
            attempts: 1,
            ..bpf_prog_load_opts::default()
        };
        let kind = match self.kind {
            ProgramKind::Xdp => {
                options.expected_attach_type = BPF_XDP;
                options.prog_flags = if frags { BPF_F_XDP_HAS_FRAGS } else { 0 };
                BPF_PROG_TYPE_XDP
            }
            ProgramKind::Tc => BPF_PROG_TYPE_SCHED_CLS,
        };
        if !log.is_empty() {
            options.log_level = 1;
            options.log_size = log.len() as u32;
            options.log_buf = log.as_mut_ptr().cast();
        }
        let (instructions, length) = (self.instructions.as_ptr(), self.instructions.len() as size_t);
        // SAFETY: the names end with zero; the instructions, the options and the log are as long as is said and live as
        // long as the call.
        let result = unsafe {
            bpf_prog_load(kind, name.as_ptr(), LICENSE.as_ptr(), instructions, length, &mut options)
        };
        match result {
            // SAFETY: a descriptor that was opened for us just now.
            0.. => Ok(unsafe { OwnedFd::from_raw_fd(result) }),
            _ => Err(io::Error::from_raw_os_error(-result)),
        }
    }
}

fn last_words(log: &[u8]) -> String {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_WORDS)..].iter().map(|line| format!("\n  {line}")).collect()
}
