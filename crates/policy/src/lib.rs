//! Policies as chains of selectors and actors in the packet path.
//!
//! The modules build on each other from the top of this list down:
//! - [`model`]: what a policy is. No I/O, no kernel.
//! - [`parse`]: from TOML and selector text to the model, with diagnostics.
//! - `compile`: from the model to BPF instructions and map entries.
//! - [`engine`]: loads, attaches, replaces and unloads policies; reads statistics and events; dry runs.
//! - [`inject`]: adds MPTCP options to idle subflows.
//! - [`controller`]: a loop that recomputes its policy at every tick.

#[allow(missing_docs, non_camel_case_types, unreachable_pub, dead_code)]
mod bindings;
mod compile;
pub mod controller;
pub mod engine;
pub mod inject;
pub mod model;
pub mod parse;

pub use engine::Engine;
pub use inject::{InjectError, Injector};
pub use model::{
    Actor, Announcement, Chain, DEFAULT_PRIORITY, Hook, Interface, InvalidPolicy, JoinRefusal, Limit, Mark,
    PacketKind, Policy, Ports, Prefix, PrefixError, Selector, SubflowPattern,
};
pub use parse::{PolicyError, SelectorError};
pub use plait_config::{Diagnostic, Rate};
