// SPDX-License-Identifier: MIT OR GPL-2.0
/* Hands a packet that was made up to the kernel as though it had come in: see src/inject/receive.rs. What
 * stands before it says to plait's programs that it was. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "injected.h"

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	__u64 *mark;

	if (!bpf_xdp_adjust_meta(ctx, -(int)sizeof(*mark))) {
		mark = (void *)(long)ctx->data_meta;
		if ((void *)(mark + 1) <= (void *)(long)ctx->data)
			*mark = PLAIT_INJECTED;
	}
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
