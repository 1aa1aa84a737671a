//! Policies as chains of selectors and actors in the packet path.

#[allow(missing_docs, non_camel_case_types, unreachable_pub, dead_code)]
mod bindings;
mod compile;
pub mod controller;
pub mod engine;
mod inject;
mod own;
mod pace;
mod selector;
mod specification;

pub use engine::Engine;
pub use inject::{InjectError, Injector};
pub use plait_config::{Mistake, Rate};
pub use selector::{Kind, Mark, Ports, Prefix, PrefixError, Selector, SelectorError, Subflow};
pub use specification::{
    Actor, Announcement, Chain, Hook, Interface, Limit, PRIORITY, Policy, Refusal, SpecificationError,
};
