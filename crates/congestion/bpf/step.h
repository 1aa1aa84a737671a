/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Tells user space each decision, when it was loaded to do so; otherwise the kernel removes this code, and
 * the map is not made.
 */
#ifndef PLAIT_CONGESTION_STEP_H
#define PLAIT_CONGESTION_STEP_H

#include "connection.h"

/* In a section of its own, where user space finds it. */
const volatile __u32 telling SEC(".rodata.telling");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24);
} steps SEC(".maps");

static __always_inline void tell(__u32 kind, struct sock *sk, const struct connection *seen, __u32 acked,
				 __u32 window)
{
	struct plait_step *step;

	if (!telling)
		return;
	step = bpf_ringbuf_reserve(&steps, sizeof(*step), 0);
	if (!step)
		return;
	step->socket = (__u64)sk;
	step->fraction = memory_of(sk)->fraction;
	step->window_after = window;
	step->acked = acked;
	step->kind = kind;
	step->number = seen->number;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS; i++) {
		if (i < seen->number)
			step->paths[i] = seen->paths[i];
		else
			__builtin_memset(&step->paths[i], 0, sizeof(step->paths[i]));
	}
	bpf_ringbuf_submit(step, 0);
}

#endif
