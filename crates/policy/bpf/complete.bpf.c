// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Completes the record of a subflow whose handshake the packet path missed with what its socket knows. A program,
 * because a map update from user space would replace the whole record, and so undo what packets record meanwhile.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "flows_map.h"

/* Returns whether the subflow is tracked. */
SEC("syscall")
int complete(struct plait_socket *socket)
{
	const __u32 flags[2] = {
	    [PLAIT_INGRESS] = PLAIT_FLOW_BACKUP_IN,
	    [PLAIT_EGRESS] = PLAIT_FLOW_BACKUP_OUT,
	};
	struct plait_flow_key key = socket->key;
	struct plait_flow *flow = bpf_map_lookup_elem(&flows, &key);

	if (!flow)
		return 0;
	for (int hook = 0; hook < 2; hook++) {
		struct plait_flow_dir *sent = &flow->dir[hook];

		if (!flow->mss[hook])
			flow->mss[hook] = socket->mss;
		if (sent->syn_seen)
			continue;
		sent->offered_scale = socket->scale[hook];
		if (socket->backup[hook])
			flow->flags |= flags[hook];
		sent->syn_seen = 1;
	}
	update_scales(flow);
	if (!flow->rtt) {
		flow->rtt_variance = socket->rtt_variance;
		flow->rtt = socket->rtt;
	}
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
