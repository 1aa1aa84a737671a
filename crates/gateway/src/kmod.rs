//! Userspace for the kernel module plait.ko: negotiation, trusted path first, and an orderly end.
//!
//! The module (`kmod/`) transforms the bytes of the sockets that a rule selects, and knows nothing of paths. An [`Enabler`]
//! provides the rest for the programs of one cgroup, with what a gateway uses for itself:
//!
//! | task | done by |
//! |---|---|
//! | the ends negotiate a mode | `bpf/negotiate.bpf.c`; the module reads the verdicts ([`crate::handshake`]) |
//! | the initial subflow leaves through the trusted interface | `bpf/trusted.bpf.c` |
//! | further ones are created after the first flight | [`crate::paths`], for connections seen by `observed_connection` |
//! | nothing is left behind | `record` |
//!
//! The order of steps prevents that a socket negotiates what the module then does not do: the rule is added before anything
//! negotiates, only sockets that the module has taken negotiate, and an enabler that was killed leaves the rule behind,
//! which refuses new connections until it is cleaned up.

mod enabler;
mod module;
mod observed_connection;
mod options;
mod record;

pub(crate) use record::enabler_of;

pub use enabler::{EnableError, Enabler};
pub use module::{Module, ModuleError};
pub use options::{Mark, ModuleMode, Options, Ports};
pub use record::{DisableError, Enabled, Enablers, clean_leftovers, disable, enablers};
