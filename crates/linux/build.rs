//! Compiles the BPF programs in bpf/.

fn main() {
    plait_bpf_build::compile()
}
