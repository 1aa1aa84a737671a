//! Policies as chains of selectors and actors in the packet path.

#[allow(missing_docs, non_camel_case_types, unreachable_pub, dead_code)]
mod bindings;
