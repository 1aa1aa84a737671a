//! Compiles the BPF program in bpf/.

fn main() {
    plait_bpf_build::compile()
}
