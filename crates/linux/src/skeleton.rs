//! Typed access to the compiled programs, generated from them by `plait-bpf-build`.

pub(crate) mod closed_subflows {
    include!(concat!(env!("OUT_DIR"), "/closed_subflows.skel.rs"));
}
