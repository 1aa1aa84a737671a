//! Loads a match program into the kernel.
//!
//! `unsafe` here calls `bpf_prog_load`, which libbpf-rs does not wrap.

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{
    BPF_F_XDP_HAS_FRAGS, BPF_PROG_TYPE_SCHED_CLS, BPF_PROG_TYPE_XDP, BPF_XDP, bpf_prog_load,
    bpf_prog_load_opts, size_t,
};

use super::{MatchProgram, ProgramKind};

/// The kernel rejected a program.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot load a program of {instructions} instructions for the policy's selectors: {reason}{verifier}"
)]
pub(crate) struct LoadError {
    pub(crate) instructions: usize,
    pub(crate) reason: io::Error,
    /// The end of the verifier log, if the verifier rejected it.
    pub(crate) verifier: String,
}

const LICENSE: &CStr = c"Dual MIT/GPL";
/// Large enough to reach the end of the verifier log.
const LOG_BYTES: usize = 1 << 20;
const LOG_LINES: usize = 4;

impl MatchProgram {
    /// Loads it; it stays loaded as long as the descriptor or a program array references it. `frags`: the XDP
    /// programs in the same array accept multi-buffer packets, so this one must as well.
    ///
    /// # Errors
    /// Missing privileges or memory, or the verifier rejected it, which is a bug.
    pub(crate) fn load(&self, name: &CStr, frags: bool) -> Result<OwnedFd, LoadError> {
        self.try_load(name, frags, &mut []).or_else(|reason| {
            // Logging slows the verifier down, so request the log only after a failure.
            let mut log = vec![0; LOG_BYTES];
            match self.try_load(name, frags, &mut log) {
                Ok(program) => Ok(program),
                Err(_) => {
                    Err(LoadError { instructions: self.instructions.len(), reason, verifier: log_tail(&log) })
                }
            }
        })
    }

    fn try_load(&self, name: &CStr, frags: bool, log: &mut [u8]) -> io::Result<OwnedFd> {
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
        // SAFETY: the strings are NUL-terminated; instructions, options and log have the given lengths and outlive
        // the call.
        let result = unsafe {
            bpf_prog_load(kind, name.as_ptr(), LICENSE.as_ptr(), instructions, length, &mut options)
        };
        match result {
            // SAFETY: the call returned this new descriptor.
            0.. => Ok(unsafe { OwnedFd::from_raw_fd(result) }),
            _ => Err(io::Error::from_raw_os_error(-result)),
        }
    }
}

fn log_tail(log: &[u8]) -> String {
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| format!("\n  {line}")).collect()
}
