/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The rates of paths as earlier connections measured them, so that not every connection has to find out by data that
 * the others then wait for.
 */
#ifndef PLAIT_SCHEDULER_KNOWN_PATHS_H
#define PLAIT_SCHEDULER_KNOWN_PATHS_H

#include "addresses.h"
#include "rate.h"

#define MAX_KNOWN_PATHS 4096
/* Bytes whose acknowledgments make a rate worth knowing: a delayed acknowledgment distorts that of fewer. */
#define MIN_KNOWN 16384
/* In 2^20 us, about ten minutes. */
#define MAX_AGE 600

struct path_key {
	__u8 local[16], remote[16];
	__u64 netns; /* the cookie, as the kernel reuses the numbers of removed ones */
};

struct path_value {
	__u32 rate; /* bytes per second; 0: not known */
	__u32
	    measured; /* when it was, in 2^20 us; if it is not known, when a connection was sending beside the path */
	__u32 waited; /* for how long connections have done so, in 2^20 us */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_KNOWN_PATHS);
	__type(key, struct path_key);
	__type(value, struct path_value);
} known_paths SEC(".maps");

static __always_inline void describe_path(struct sock *sk, struct path_key *key)
{
	read_addresses(&sk->__sk_common, key->local, key->remote);
	key->netns = sk->__sk_common.skc_net.net->net_cookie;
}

static __always_inline void remember_path(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);
	struct path_value value = {.rate = state->rate, .measured = seconds((struct tcp_sock *)sk)}, *known;
	struct path_key key = {};

	describe_path(sk, &key);
	state->is_remembered = 1;
	known = bpf_map_lookup_elem(&known_paths, &key);
	/* Several times faster than an update. */
	if (known)
		*known = value;
	else
		bpf_map_update_elem(&known_paths, &key, &value, BPF_ANY);
}

/* Leaves the rate at 0 if it is not known. */
static __always_inline void recall_path(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);
	struct path_value *value;
	struct path_key key = {};

	describe_path(sk, &key);
	value = bpf_map_lookup_elem(&known_paths, &key);
	if (!value || seconds((struct tcp_sock *)sk) - value->measured > MAX_AGE)
		return;
	state->rate = value->rate;
	state->measured = value->measured ?: 1;
}

/* Counts the seconds of sending beside a path whose rate is not known. Returns how many there were. */
static __always_inline __u32 wait_for_trial(struct sock *sk)
{
	struct path_value first = {.measured = seconds((struct tcp_sock *)sk), .waited = 1};
	struct path_value *value;
	struct path_key key = {};

	describe_path(sk, &key);
	value = bpf_map_lookup_elem(&known_paths, &key);
	if (!value) {
		bpf_map_update_elem(&known_paths, &key, &first, BPF_ANY);
		return first.waited;
	}
	if (value->measured != first.measured)
		value->waited++;
	value->measured = first.measured;
	return value->waited;
}

#endif
