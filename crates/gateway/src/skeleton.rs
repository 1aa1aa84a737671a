//! Typed access to the compiled programs, generated from them by `plait-bpf-build`.

pub(crate) mod capable_flag {
    include!(concat!(env!("OUT_DIR"), "/capable_flag.skel.rs"));
}

pub(crate) mod kill_switch {
    include!(concat!(env!("OUT_DIR"), "/kill_switch.skel.rs"));
}

pub(crate) mod kill_switch_forward {
    include!(concat!(env!("OUT_DIR"), "/kill_switch_forward.skel.rs"));
}

pub(crate) mod negotiate {
    include!(concat!(env!("OUT_DIR"), "/negotiate.skel.rs"));
}

pub(crate) mod path_limits {
    include!(concat!(env!("OUT_DIR"), "/path_limits.skel.rs"));
}

pub(crate) mod redirect {
    include!(concat!(env!("OUT_DIR"), "/redirect.skel.rs"));
}

pub(crate) mod router {
    include!(concat!(env!("OUT_DIR"), "/router.skel.rs"));
}

pub(crate) mod subflow_receive_buffer {
    include!(concat!(env!("OUT_DIR"), "/subflow_receive_buffer.skel.rs"));
}

pub(crate) mod trusted {
    include!(concat!(env!("OUT_DIR"), "/trusted.skel.rs"));
}

pub(crate) mod unsent_limit {
    include!(concat!(env!("OUT_DIR"), "/unsent_limit.skel.rs"));
}
