/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * PLAIT_SELECTOR and PLAIT_ACTOR: of one function each, they make a program for XDP and one for TC, which go
 * on with the packet where plait's programs wait for it. Included by plait.bpf.h, which says how they are
 * used.
 *
 * The programs are called select_NAME_xdp, select_NAME_tc, act_NAME_xdp and act_NAME_tc.
 */
#ifndef PLAIT_OWN_H
#define PLAIT_OWN_H

#include <linux/pkt_cls.h>
#include "options.h"

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PLAIT_STEPS);
	__type(key, __u32);
	__type(value, __u32);
} xdp_steps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PLAIT_STEPS);
	__type(key, __u32);
	__type(value, __u32);
} tc_steps SEC(".maps");

/* What the programs of a file keep for a subflow: theirs alone. */
struct plait_storage {
	__u64 words[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct plait_flow_key);
	__type(value, struct plait_storage);
} own_storage SEC(".maps");

/* Zero at first; of more subflows than there is room for, the one unused for longest begins anew. NULL if
 * there is no memory. */
static __always_inline struct plait_storage *plait_storage(const struct plait_packet *packet)
{
	struct plait_storage *found = bpf_map_lookup_elem(&own_storage, &packet->flow), empty = {};

	if (found)
		return found;
	/* Another processor may have been faster. */
	bpf_map_update_elem(&own_storage, &packet->flow, &empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&own_storage, &packet->flow);
}

/* Notes the answer of a selector, and goes on. Comes back only if nothing is left to go on with. */
static __always_inline void plait_selected(void *ctx, void *steps, struct plait_packet *packet, int matches)
{
	if (matches)
		packet->own_matched |= 1ull << (packet->own_number & 63);
	plait_go_on(ctx, steps, packet);
}

/* Counts what an actor did, as those of plait's own are counted, and goes back. Comes back only if it cannot.
 */
static __always_inline void plait_acted(void *ctx, void *steps, struct plait_packet *packet, int outcome,
					__u64 since)
{
	struct plait_counter *counter = bpf_map_lookup_elem(&counters, &packet->actor_counter);

	plait_count_outcome(counter, outcome);
	if (counter && since)
		counter->nanoseconds += bpf_ktime_get_ns() - since;
	if (outcome == PLAIT_HIT)
		packet->chains_hit |= 1ull << (packet->chain_next & 63);
	bpf_tail_call(ctx, steps, PLAIT_ACT);
}

/* When an actor began, if that is to be known. */
static __always_inline __u64 plait_since(void)
{
	const struct plait_settings *asked = plait_settings();

	return asked && asked->timing ? bpf_ktime_get_ns() : 0;
}

#define PLAIT_SELECTOR(name)                                                                                 \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet);          \
	SEC("xdp") int select_##name##_xdp(struct xdp_md *ctx)                                               \
	{                                                                                                    \
		struct plait_packet *packet = plait_packet();                                                \
                                                                                                             \
		if (packet)                                                                                  \
			plait_selected(ctx, &xdp_steps, packet,                                              \
				       name((struct plait_context){.xdp = ctx}, packet));                    \
		return XDP_PASS;                                                                             \
	}                                                                                                    \
	SEC("tc") int select_##name##_tc(struct __sk_buff *ctx)                                              \
	{                                                                                                    \
		struct plait_packet *packet = plait_packet();                                                \
                                                                                                             \
		if (packet)                                                                                  \
			plait_selected(ctx, &tc_steps, packet,                                               \
				       name((struct plait_context){.skb = ctx}, packet));                    \
		return TC_ACT_UNSPEC;                                                                        \
	}                                                                                                    \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet)

#define PLAIT_ACTOR(name)                                                                                    \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet);          \
	SEC("xdp") int act_##name##_xdp(struct xdp_md *ctx)                                                  \
	{                                                                                                    \
		struct plait_packet *packet = plait_packet();                                                \
		__u64 since = plait_since();                                                                 \
                                                                                                             \
		if (!packet)                                                                                 \
			return XDP_PASS;                                                                     \
		plait_acted(ctx, &xdp_steps, packet, name((struct plait_context){.xdp = ctx}, packet),       \
			    since);                                                                          \
		return packet->verdict == PLAIT_DROP ? XDP_DROP : XDP_PASS;                                  \
	}                                                                                                    \
	SEC("tc") int act_##name##_tc(struct __sk_buff *ctx)                                                 \
	{                                                                                                    \
		struct plait_packet *packet = plait_packet();                                                \
		__u64 since = plait_since();                                                                 \
                                                                                                             \
		if (!packet)                                                                                 \
			return TC_ACT_UNSPEC;                                                                \
		plait_acted(ctx, &tc_steps, packet, name((struct plait_context){.skb = ctx}, packet),        \
			    since);                                                                          \
		return packet->verdict == PLAIT_DROP ? TC_ACT_SHOT : TC_ACT_UNSPEC;                          \
	}                                                                                                    \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet)

#endif
