/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * PLAIT_SELECTOR and PLAIT_ACTOR: each turns a function into a program for XDP and one for TC, which plait's
 * programs call and which store their result in struct plait_packet. Included by plait.bpf.h, which documents
 * their use.
 *
 * The programs are named select_NAME_xdp, select_NAME_tc, act_NAME_xdp and act_NAME_tc.
 */
#ifndef PLAIT_CUSTOM_H
#define PLAIT_CUSTOM_H

#include <linux/pkt_cls.h>
#include "options.h"

/* State that the programs of a file store for a subflow or a connection, separate from other files. */
struct plait_storage {
	__u64 words[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct plait_flow_key);
	__type(value, struct plait_storage);
} custom_storage SEC(".maps");

static __always_inline struct plait_storage *plait_storage_by(const struct plait_flow_key *key)
{
	struct plait_storage *found = bpf_map_lookup_elem(&custom_storage, key), empty = {};

	if (found)
		return found;
	/* Fails if another processor was faster. */
	bpf_map_update_elem(&custom_storage, key, &empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&custom_storage, key);
}

/* Initially zero. If there are more subflows and connections than entries, the least recently used one is
 * reset. NULL if there is no memory. */
static __always_inline struct plait_storage *plait_storage(const struct plait_packet *packet)
{
	return plait_storage_by(&packet->flow);
}

/* The same for the packet's connection, shared by its subflows. NULL also while this host does not know the
 * connection: if it forwards it, or has accepted but not yet answered it. */
static __always_inline struct plait_storage *plait_connection_storage(const struct plait_packet *packet)
{
	/* No subflow has these addresses. */
	struct plait_flow_key key = {.local = {0, packet->token}};

	return packet->token ? plait_storage_by(&key) : NULL;
}

/* Any other return value of an actor is an error. */
static __always_inline __u8 plait_outcome_of(int answer)
{
	return answer == PLAIT_HIT || answer == PLAIT_MISS ? answer : PLAIT_ERROR;
}

/* A program that stores the result of a function. Its own return value is ignored. */
#define PLAIT_PROGRAM(section, program, type, member, verdict, result)                                       \
	SEC(section) int program(type *ctx)                                                                  \
	{                                                                                                    \
		struct plait_context context = {.member = ctx};                                              \
		struct plait_packet *packet = plait_packet();                                                \
                                                                                                             \
		if (packet)                                                                                  \
			packet->custom_result = result;                                                      \
		return verdict;                                                                              \
	}

#define PLAIT_PROGRAMS(kind, name, result)                                                                   \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet);          \
	PLAIT_PROGRAM("xdp", kind##_##name##_xdp, struct xdp_md, xdp, XDP_PASS, result)                      \
	PLAIT_PROGRAM("tc", kind##_##name##_tc, struct __sk_buff, skb, TC_ACT_UNSPEC, result)                \
	static __always_inline int name(struct plait_context context, struct plait_packet *packet)

#define PLAIT_SELECTOR(name) PLAIT_PROGRAMS(select, name, !!name(context, packet))
#define PLAIT_ACTOR(name) PLAIT_PROGRAMS(act, name, plait_outcome_of(name(context, packet)))

#endif
