//! Typed access to the compiled programs, generated from them by `plait-bpf-build`.
//!
//! The algorithms themselves have no skeletons: their five objects define the same programs and maps (`bpf/reno.h`), so
//! [`object`](crate::object) handles all of them alike instead of by five types.

pub(crate) mod cgroup {
    include!(concat!(env!("OUT_DIR"), "/cgroup.skel.rs"));
}

pub(crate) mod sockets {
    include!(concat!(env!("OUT_DIR"), "/sockets.skel.rs"));
}
