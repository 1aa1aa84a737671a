//! What the schedulers need of the kernel, by name.

use libbpf_rs::btf::{Btf, HasSize as _, types};
use plait_congestion::Error;

use crate::bindings::PLAIT_CUBIC_WORDS;

/// Functions of the kernel that the program calls.
const FUNCTIONS: [&str; 9] = [
    "bpf_iter_num_new",
    "bpf_rdonly_cast",
    "cubictcp_acked",
    "cubictcp_cong_avoid",
    "cubictcp_cwnd_event",
    "cubictcp_init",
    "cubictcp_recalc_ssthresh",
    "cubictcp_state",
    "tcp_reno_undo_cwnd",
];

/// # Errors
/// [`Error::Missing`] with the name of the first that is, or [`Error::Kernel`] if the kernel describes no types.
pub(crate) fn check() -> Result<(), Error> {
    let kernel = Btf::from_vmlinux().map_err(Error::kernel("read the kernel's type information"))?;
    for name in FUNCTIONS {
        if kernel.type_by_name::<types::Func<'_>>(name).is_none() {
            let needed_for = "schedulers wrap the kernel's cubic; use a kernel of version 6.4 or later with \
                              CONFIG_TCP_CONG_CUBIC=y";
            return Err(Error::Missing { what: format!("the function {name}"), needed_for });
        }
    }
    if kernel.type_by_name::<types::Struct<'_>>("mptcp_subflow_context").is_none() {
        let needed_for =
            "schedulers read the other subflows of a connection; use a kernel with CONFIG_MPTCP=y";
        return Err(Error::Missing { what: "the structure mptcp_subflow_context".into(), needed_for });
    }
    let cubic = kernel.type_by_name::<types::Struct<'_>>("bictcp");
    if cubic.is_none_or(|cubic| cubic.size() > PLAIT_CUBIC_WORDS as usize * 8) {
        let needed_for = "schedulers store their state behind cubic's in the socket; this version of plait cannot on \
                          this kernel";
        return Err(Error::Missing { what: "a structure bictcp of at most 64 bytes".into(), needed_for });
    }
    Ok(())
}
