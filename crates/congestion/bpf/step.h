/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Reports each decision to user space, if loaded with `tracing` set; otherwise the kernel removes this code,
 * and the map is not created.
 */
#ifndef PLAIT_CONGESTION_STEP_H
#define PLAIT_CONGESTION_STEP_H

#include "connection.h"

/* In a section of its own, which user space finds by name. */
const volatile __u32 tracing SEC(".rodata.tracing");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} steps SEC(".maps");

static __always_inline void trace_step(__u32 kind, struct sock *sk, const struct connection *connection,
				       __u32 acked, __u32 window)
{
	struct plait_step *step;

	if (!tracing)
		return;
	step = bpf_ringbuf_reserve(&steps, sizeof(*step), 0);
	if (!step)
		return;
	step->socket = (__u64)sk;
	step->fraction = state_of(sk)->fraction;
	step->window_after = window;
	step->acked = acked;
	step->kind = kind;
	step->path_count = connection->path_count;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS; i++) {
		if (i < connection->path_count)
			step->paths[i] = connection->paths[i];
		else
			__builtin_memset(&step->paths[i], 0, sizeof(step->paths[i]));
	}
	bpf_ringbuf_submit(step, 0);
}

#endif
