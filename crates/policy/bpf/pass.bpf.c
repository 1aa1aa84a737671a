// SPDX-License-Identifier: MIT OR GPL-2.0
/* Hands a packet that was made up to the kernel as though it had come in: see src/inject/receive.rs. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
