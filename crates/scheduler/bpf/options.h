/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the user wants of paths: by the interface by which a subflow's packets leave, or the address of either end. */
#ifndef PLAIT_SCHEDULER_OPTIONS_H
#define PLAIT_SCHEDULER_OPTIONS_H

#include "constants.h"
#include "intf.h"
#include "subflows.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PLAIT_MAX_PATHS);
	__type(key, struct plait_path_name);
	__type(value, struct plait_path_options);
} path_options SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_targets);
} targets SEC(".maps");

static __always_inline const struct plait_targets *find_targets(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&targets, &only);
}

static __always_inline const struct plait_path_options *by_interface(struct sock *sk)
{
	struct plait_path_name key = {.kind = PLAIT_PATH_INTERFACE};
	struct net_device *device = AS(struct dst_entry, sk->sk_dst_cache)->dev;

	/* As a string: what follows the end of the name is not always zero. */
	bpf_core_read_str(key.name, sizeof(key.name), &device->name);
	return bpf_map_lookup_elem(&path_options, &key);
}

static __always_inline void map_address(struct plait_path_name *key, __be32 address)
{
	key->name[10] = key->name[11] = 0xff;
	__builtin_memcpy(&key->name[12], &address, sizeof(address));
}

static __always_inline const struct plait_path_options *by_address(struct sock_common *socket, int is_local)
{
	struct plait_path_name key = {.kind = PLAIT_PATH_ADDRESS};

	if (socket->skc_family != AF_INET6)
		map_address(&key, is_local ? socket->skc_rcv_saddr : socket->skc_daddr);
	else if (is_local)
		bpf_core_read(key.name, sizeof(key.name), &socket->skc_v6_rcv_saddr);
	else
		bpf_core_read(key.name, sizeof(key.name), &socket->skc_v6_daddr);
	return bpf_map_lookup_elem(&path_options, &key);
}

static __always_inline struct plait_path_options options_of(struct sock *sk)
{
	const struct plait_path_options *found = by_address(&sk->__sk_common, 0);
	const struct plait_targets *defaults = find_targets();
	struct plait_path_options options = {};

	if (!found)
		found = by_address(&sk->__sk_common, 1);
	if (!found)
		found = by_interface(sk);
	if (found)
		options = *found;
	else if (defaults) {
		options.weight = defaults->default_weight;
		options.level = defaults->default_level;
	}
	if (!options.weight)
		options.weight = 1;
	return options;
}

#endif
