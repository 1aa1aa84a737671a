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

/* State of the programs of a file, separate from other files. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct plait_flow_key);
	__type(value, struct plait_storage);
} custom_storage SEC(".maps");

static __always_inline struct plait_storage *plait_storage_by(void *map, const struct plait_flow_key *key)
{
	struct plait_storage *found = bpf_map_lookup_elem(map, key), empty = {};

	if (found)
		return found;
	/* Fails if another processor was faster. */
	bpf_map_update_elem(map, key, &empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, key);
}

/* The entry of a packet's connection. NULL while this host does not know the connection: if it forwards it, or has accepted
 * but not yet answered it. */
static __always_inline struct plait_storage *plait_storage_by_token(void *map,
								    const struct plait_packet *packet)
{
	/* No subflow has these addresses. */
	struct plait_flow_key key = {.local = {0, packet->token}};

	return packet->token ? plait_storage_by(map, &key) : NULL;
}

/* Initially zero. If there are more subflows and connections than entries, the least recently used one is
 * reset. NULL if there is no memory. */
static __always_inline struct plait_storage *plait_storage(const struct plait_packet *packet)
{
	return plait_storage_by(&custom_storage, &packet->flow);
}

/* The same for the packet's connection, shared by its subflows. NULL also while this host does not know it. */
static __always_inline struct plait_storage *plait_connection_storage(const struct plait_packet *packet)
{
	return plait_storage_by_token(&custom_storage, packet);
}

/* The same, shared by the programs of all files and policies of the network namespace: they have to agree who uses which
 * word. It is kept as long as a policy is loaded. */
static __always_inline struct plait_storage *plait_shared_storage(const struct plait_packet *packet)
{
	return plait_storage_by(&shared_storage, &packet->flow);
}

static __always_inline struct plait_storage *
plait_shared_connection_storage(const struct plait_packet *packet)
{
	return plait_storage_by_token(&shared_storage, packet);
}

/* Number `n`, from 0, of the `parameters` in the policy's table [custom.NAME]; 0 if it has fewer. */
static __always_inline __u64 plait_parameter(const struct plait_packet *packet, __u32 n)
{
	__u32 slot = packet->custom_slot;
	const struct plait_parameters *given = bpf_map_lookup_elem(&parameters, &slot);

	return given && n < PLAIT_CUSTOM_PARAMETERS ? given->numbers[n & (PLAIT_CUSTOM_PARAMETERS - 1)] : 0;
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
