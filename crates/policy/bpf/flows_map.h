/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The records of tracked subflows, one map that all programs share.
 *
 * With thousands of subflows, reading a record means waiting for memory, line by line of the processor's cache. So
 * records begin at lines, and what a packet needs of them is in few: the kernel stores a record behind 48 bytes of
 * its own and the key, one record after the other.
 */
#ifndef PLAIT_FLOWS_MAP_H
#define PLAIT_FLOWS_MAP_H

#include "intf.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PLAIT_FLOWS);
	__type(key, struct plait_flow_key);
	__type(value, struct plait_flow);
} flows SEC(".maps");

/* Before the key: struct htab_elem of the kernel. */
#define ELEMENT_HEADER 48
#define BEFORE_FLOW (ELEMENT_HEADER + sizeof(struct plait_flow_key))
_Static_assert((BEFORE_FLOW + sizeof(struct plait_flow)) % PLAIT_CACHE_LINE == 0,
	       "records begin at cache lines");
_Static_assert((BEFORE_FLOW + __builtin_offsetof(struct plait_flow, dir)) % PLAIT_CACHE_LINE == 0,
	       "directions begin at cache lines");

/* Value of offered_scale and scale in struct plait_flow: there is none, or it is unknown. */
#define PLAIT_NO_SCALE 255

/* The scale of windows in direction `sent`; 0 unless both SYNs offer one (RFC 7323 section 2.2). */
static __always_inline __u8 negotiated_scale(const struct plait_flow_dir *sent,
					     const struct plait_flow_dir *other)
{
	if (!sent->syn_seen || !other->syn_seen)
		return PLAIT_NO_SCALE;
	if (sent->offered_scale == PLAIT_NO_SCALE || other->offered_scale == PLAIT_NO_SCALE)
		return 0;
	/* RFC 7323 section 2.3: more than 14 counts as 14. */
	return sent->offered_scale > 14 ? 14 : sent->offered_scale;
}

/* To be called after a SYN was recorded. */
static __always_inline void update_scales(struct plait_flow *flow)
{
	for (int hook = 0; hook < 2; hook++)
		flow->scale[hook] = negotiated_scale(&flow->dir[hook], &flow->dir[!hook]);
}

#endif
