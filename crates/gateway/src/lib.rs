//! Protected streams over kernel MPTCP, for unmodified programs.
//!
//! Two gateways carry an application's bytes: one beside the application ([`Outbound`]: redirected by a control group, or
//! by a proxy protocol), one beside the service ([`Gateway::serve`]). Between them runs an ordinary MPTCP connection whose
//! two ends agreed on a [`Mode`](plait_proto::option::Mode) inside its TCP handshake.
//!
//! The way of a byte, from top to bottom:
//!
//! | step | module |
//! |---|---|
//! | the application's connection arrives | `run` and `redirect`, or `proxy` |
//! | an MPTCP connection is opened by the trusted path | `outbound`, `dial` |
//! | its handshake is judged by the policy | `negotiation` |
//! | the ends tell each other what the mode needs | `establish`; of `sealed`: `handshake`, `witness` |
//! | an end's key is judged | `trust`, `identity` |
//! | bytes are read, transformed, written | `relay`, `transform`; as records: `records` |
//! | after the first flight, further subflows are made | `subflows` |
//! | the other end accepts, judges, transforms back, and connects to the service | `serve` |
//!
//! What holds everywhere: a connection whose ends agreed on a mode is never carried plain; one that cannot go on is
//! reset, never closed as if it had ended; keys come from the kernel and reach only `transform`.

#[allow(missing_docs, non_camel_case_types, unreachable_pub, dead_code)]
mod bindings;
mod blackholes;
mod bpf;
mod config;
mod connections;
mod control;
mod credentials;
mod dial;
mod establish;
mod gateway;
mod handshake;
pub mod identity;
pub mod kmod;
mod mode;
mod negotiation;
mod outbound;
mod proxy;
mod records;
mod redirect;
mod relay;
mod roles;
mod run;
mod said;
mod serve;
mod stream;
mod subflows;
mod transform;
mod trust;
mod witness;

pub use bpf::BpfError;
pub use config::{Config, ConfigError};
pub use connections::{ConnectionReport, Counts, SubflowReport};
pub use control::{Answers, Handshakes, Report};
pub use credentials::{Credentials, CredentialsError};
pub use gateway::{Gateway, ProtectionError, Settings, StartError};
pub use identity::IdentityError;
pub use mode::{NothingToRequire, Policy, Requirement};
pub use outbound::Outbound;
pub use roles::Roles;
pub use run::{RunError, exit_code};
pub use stream::{ConnectError, Listener, Stream};
pub use trust::{Identities, NoPeerName, PeerName, Trust, UnknownTrust};
