//! Compiles the gateway's BPF programs.

fn main() {
    plait_bpf_build::compile();
}
