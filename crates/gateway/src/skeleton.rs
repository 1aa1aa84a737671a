//! Typed access to the compiled programs, generated from them by `plait-bpf-build`.

pub(crate) mod negotiate {
    include!(concat!(env!("OUT_DIR"), "/negotiate.skel.rs"));
}

pub(crate) mod redirect {
    include!(concat!(env!("OUT_DIR"), "/redirect.skel.rs"));
}

pub(crate) mod trusted {
    include!(concat!(env!("OUT_DIR"), "/trusted.skel.rs"));
}
