/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * PLAIT_SELECTOR and PLAIT_ACTOR: of one function each, they make a program for XDP and one for TC, which
 * plait's programs call and which answer in the packet's record. Included by plait.bpf.h, which says how they
 * are used.
 *
 * The programs are called select_NAME_xdp, select_NAME_tc, act_NAME_xdp and act_NAME_tc.
 */
#ifndef PLAIT_OWN_H
#define PLAIT_OWN_H

#include <linux/pkt_cls.h>
#include "options.h"

/* What the programs of a file keep for a subflow or a connection: theirs alone. */
struct plait_storage {
	__u64 words[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct plait_flow_key);
	__type(value, struct plait_storage);
} own_storage SEC(".maps");

static __always_inline struct plait_storage *plait_storage_by(const struct plait_flow_key *key)
{
	struct plait_storage *found = bpf_map_lookup_elem(&own_storage, key), empty = {};

	if (found)
		return found;
	/* Another processor may have been faster. */
	bpf_map_update_elem(&own_storage, key, &empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&own_storage, key);
}

/* Zero at first; of more subflows and connections than there is room for, the one unused for longest begins
 * anew. NULL if there is no memory. */
static __always_inline struct plait_storage *plait_storage(const struct plait_packet *packet)
{
	return plait_storage_by(&packet->flow);
}

/* The same for the packet's connection, which its subflows share. NULL also while this host does not know the
 * connection: one that it forwards, or has accepted and not yet answered. */
static __always_inline struct plait_storage *plait_connection_storage(const struct plait_packet *packet)
{
	/* No subflow has such ends. */
	struct plait_flow_key key = {.local = {0, packet->token}};

	return packet->token ? plait_storage_by(&key) : NULL;
}

/* An actor may answer with any number: what is none of enum plait_outcome is an error. */
static __always_inline __u8 plait_outcome_of(int answer)
{
	return answer == PLAIT_HIT || answer == PLAIT_MISS ? answer : PLAIT_ERROR;
}

/* What the programs themselves return, nobody looks at. */
#define PLAIT_SELECTOR(name)                                                                                 \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet);          \
	SEC("xdp") int select_##name##_xdp(struct xdp_md *ctx)                                               \
	{                                                                                                    \
		struct plait_packet *packet = plait_packet();                                                \
                                                                                                             \
		if (packet)                                                                                  \
			packet->own_answer = !!name((struct plait_context){.xdp = ctx}, packet);             \
		return XDP_PASS;                                                                             \
	}                                                                                                    \
	SEC("tc") int select_##name##_tc(struct __sk_buff *ctx)                                              \
	{                                                                                                    \
		struct plait_packet *packet = plait_packet();                                                \
                                                                                                             \
		if (packet)                                                                                  \
			packet->own_answer = !!name((struct plait_context){.skb = ctx}, packet);             \
		return TC_ACT_UNSPEC;                                                                        \
	}                                                                                                    \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet)

#define PLAIT_ACTOR(name)                                                                                    \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet);          \
	SEC("xdp") int act_##name##_xdp(struct xdp_md *ctx)                                                  \
	{                                                                                                    \
		struct plait_packet *packet = plait_packet();                                                \
                                                                                                             \
		if (packet)                                                                                  \
			packet->own_answer =                                                                 \
			    plait_outcome_of(name((struct plait_context){.xdp = ctx}, packet));              \
		return XDP_PASS;                                                                             \
	}                                                                                                    \
	SEC("tc") int act_##name##_tc(struct __sk_buff *ctx)                                                 \
	{                                                                                                    \
		struct plait_packet *packet = plait_packet();                                                \
                                                                                                             \
		if (packet)                                                                                  \
			packet->own_answer =                                                                 \
			    plait_outcome_of(name((struct plait_context){.skb = ctx}, packet));              \
		return TC_ACT_UNSPEC;                                                                        \
	}                                                                                                    \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet)

#endif
