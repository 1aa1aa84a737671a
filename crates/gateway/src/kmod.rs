//! The kernel module plait.ko, made usable: negotiation, trusted path first, and an orderly end.
//!
//! The module (`kmod/`) transforms the bytes of sockets that a rule concerns, and knows nothing of paths. An [`Enabler`]
//! gives it the rest for the programs of one control group, by what a gateway uses for itself:
//!
//! | what | by |
//! |---|---|
//! | the ends agree on a mode | `bpf/negotiate.bpf.c`; the module reads what came of it ([`crate::negotiation`]) |
//! | the first subflow leaves by the trusted interface | `bpf/trusted.bpf.c` |
//! | further ones are made after the first flight | [`crate::subflows`], which sees the connections by `held` |
//! | nothing is left behind | `record` |
//!
//! The order of things keeps a socket from negotiating what the module then does not do: the rule is there before anything
//! negotiates, only sockets that the module has taken negotiate, and an enabler that was killed leaves the rule behind, by
//! which new connections are refused until somebody tidies up.

mod enabler;
mod held;
mod module;
mod options;
mod record;

pub(crate) use record::enabler_of;

pub use enabler::{EnableError, Enabler};
pub use module::{Module, ModuleError};
pub use options::{Mark, ModuleMode, Options, Ports, UnknownOption};
pub use record::{DisableError, Enabled, Enablers, clean_leftovers, disable, enablers};
