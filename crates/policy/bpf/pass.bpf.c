// SPDX-License-Identifier: MIT OR GPL-2.0
/* Passes an injected packet to the kernel as if it had been received: see src/inject/receive.rs. Its metadata
 * tells plait's programs that it was injected. */
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
