/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What a decision takes from the other subflows of a connection. */
#ifndef PLAIT_SCHEDULER_SIBLINGS_H
#define PLAIT_SCHEDULER_SIBLINGS_H

#include "gate.h"
#include "options.h"
#include "rate.h"
#include "subflows.h"

/* enum plait_scheduler: constant for the verifier, which so considers one of them only */
const volatile __u32 scheduler;

/* `weighted`: a subflow makes up for no more than this time without sending, us. */
#define MAX_SHARE_BEHIND (SECOND / 2)

static __always_inline void describe(struct tcp_sock *tcp, __u64 rate, struct plait_path *path)
{
	path->rate = rate;
	path->rtt_min = tcp->rtt_min.s[0].v;
	/* The smoothed time of an idle subflow is that of a queue which is gone. */
	path->rtt = tcp->packets_out ? tcp->srtt_us >> 3 : path->rtt_min;
}

/* What a subflow has yet to deliver, a further burst waits for; its smoothed round trip tells so only later. */
static __always_inline void consider_outstanding(struct tcp_sock *tcp, struct plait_path *path)
{
	__u64 time = path->rate ? (tcp->write_seq - tcp->snd_una) * SECOND / path->rate : 0;

	if (time > path->rtt)
		path->rtt = time < ~0u ? time : ~0u;
}

/* Whether a sibling carries data or would if there were more. */
static __always_inline int is_usable(struct tcp_sock *tcp)
{
	unsigned char state = AS(struct sock_common, tcp)->skc_state;

	return (state == BPF_TCP_ESTABLISHED || state == BPF_TCP_CLOSE_WAIT) && tcp->srtt_us &&
	       !tcp->inet_conn.icsk_retransmits && AS(struct sock, tcp)->sk_max_pacing_rate > TRIAL_RATE;
}

/* NULL if its algorithm is another one. */
static __always_inline const struct subflow_state *state_of_sibling(struct sock *sk, struct tcp_sock *tcp)
{
	if (tcp->inet_conn.icsk_ca_ops != ((struct inet_connection_sock *)sk)->icsk_ca_ops)
		return NULL;
	return (const struct subflow_state *)&tcp->inet_conn.icsk_ca_priv[PLAIT_CUBIC_WORDS];
}

static __always_inline int is_better(const struct plait_path *path, const struct plait_path *best)
{
	if (!best->rate)
		return 1;
	if (scheduler == PLAIT_SCHEDULER_LOWEST_RTT)
		return path->rtt_min < best->rtt_min;
	return burst_time(path) < burst_time(best);
}

/* What a subflow has carried of its share: bytes divided by its weight, in units of 2^-10. */
static __always_inline __u64 share_of(struct tcp_sock *tcp, __u32 start, __u32 weight)
{
	__u32 kib = tcp->bytes_acked >> 10;

	return ((__u64)(__u32)(kib - start) << 20) / weight;
}

/* The sibling that has carried the least of its share. */
struct most_behind {
	__u64 share;
	__u64 rate;
	__u32 weight; /* 0: there is none */
};

/*
 * What a decision is made from. Not on the stack: the verifier would follow each value through each iteration over the
 * siblings.
 */
struct comparison {
	struct plait_question question;
	struct most_behind behind;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct comparison);
} comparisons SEC(".maps");

/* NULL if there is no memory. */
static __always_inline struct comparison *start_comparison(struct sock *sk)
{
	struct comparison *comparison = bpf_sk_storage_get(&comparisons, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!comparison)
		return NULL;
	__builtin_memset(comparison, 0, sizeof(*comparison));
	comparison->question.preferred_rtt = ~0u;
	return comparison;
}

/* Bytes acknowledged since it last began to send. */
static __always_inline __u64 busy_bytes_of(struct tcp_sock *tcp, const struct subflow_state *state)
{
	__u32 kib = tcp->bytes_acked >> 10;

	return (__u64)(__u32)(kib - state->busy_start) << 10;
}

static __always_inline void consider_share(struct sock *sk, struct tcp_sock *tcp, __u64 rate,
					   struct most_behind *behind)
{
	const struct subflow_state *state = state_of_sibling(sk, tcp);
	struct plait_path_options options = options_of(AS(struct sock, tcp));
	__u64 share;

	if (!state)
		return;
	share = share_of(tcp, state->share_start, options.weight);
	if (behind->weight && share >= behind->share)
		return;
	behind->share = share;
	behind->rate = rate;
	behind->weight = options.weight;
}

static __always_inline void compare_share(struct sock *sk, const struct most_behind *behind, __u32 weight,
					  struct plait_question *question)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	__u64 share = share_of(tcp, state->share_start, weight), least, max;

	if (!behind->weight)
		return;
	max = (carried(behind->rate, MAX_SHARE_BEHIND) << 10) / behind->weight;
	least = behind->share > max ? behind->share - max : 0;
	if (share < least) {
		state->share_start = (__u32)(tcp->bytes_acked >> 10) - (__u32)(least * weight >> 20);
		share = least;
	}
	question->ahead = (__s64)(share - behind->share) * weight >> 10;
	question->share_rate = behind->rate * weight / behind->weight;
}

static __always_inline void consider_level(struct tcp_sock *tcp, __u32 level, const struct plait_path *path,
					   struct plait_question *question)
{
	if (options_of(AS(struct sock, tcp)).level >= level)
		return;
	question->preferred_rate += scheduler == PLAIT_SCHEDULER_TIERS ? path->rate : delivery_rate(tcp);
	if (path->rtt < question->preferred_rtt)
		question->preferred_rtt = path->rtt;
}

/* An iteration that the verifier checks once, however often it is repeated. */
struct bpf_iter_num {
	__u64 opaque;
} __attribute__((aligned(8)));

extern int bpf_iter_num_new(struct bpf_iter_num *iterator, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *iterator) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *iterator) __ksym;

/* As it may be used; its rate is 0 if it is not known. */
static __always_inline void describe_sibling(struct tcp_sock *tcp, const struct subflow_state *state,
					     struct plait_path *path)
{
	__u64 rate = rate_of_sibling(tcp);

	/* One that started a moment ago has carried less than it can. */
	describe(tcp, state && state->rate > rate ? state->rate : rate, path);
}

static __always_inline void consider(struct sock *sk, struct tcp_sock *tcp, __u32 level,
				     struct comparison *comparison)
{
	struct plait_question *question = &comparison->question;
	const struct subflow_state *state = state_of_sibling(sk, tcp);
	struct plait_path path;

	describe_sibling(tcp, state, &path);
	if (!path.rate)
		return;
	if (is_better(&path, &question->best)) {
		question->best = path;
		question->busy_bytes =
		    state && scheduler != PLAIT_SCHEDULER_WEIGHTED ? busy_bytes_of(tcp, state) : 0;
	}
	if (scheduler == PLAIT_SCHEDULER_WEIGHTED)
		consider_share(sk, tcp, path.rate, &comparison->behind);
	if (scheduler == PLAIT_SCHEDULER_TIERS || scheduler == PLAIT_SCHEDULER_CHEAPEST)
		consider_level(tcp, level, &path, question);
}

/* Returns 0 if no other subflow is usable. */
static __always_inline int compare(struct sock *sk, struct sock *connection,
				   const struct plait_path_options *options, struct comparison *comparison)
{
	void *head = subflows_of(connection), *entry = next_subflow(head, head);
	struct plait_question *question = &comparison->question;
	struct bpf_iter_num iterator;

	bpf_iter_num_new(&iterator, 0, PLAIT_MAX_SUBFLOWS);
	while (entry && bpf_iter_num_next(&iterator)) {
		struct sock *sibling = subflow_at(entry)->tcp_sock;

		entry = next_subflow(head, entry);
		if (sibling && (void *)sibling != (void *)sk && is_usable(AS(struct tcp_sock, sibling)))
			consider(sk, AS(struct tcp_sock, sibling), options->level, comparison);
	}
	bpf_iter_num_destroy(&iterator);
	if (scheduler == PLAIT_SCHEDULER_WEIGHTED)
		compare_share(sk, &comparison->behind, options->weight, question);
	return question->best.rate != 0;
}

/* A flag of a socket: its program waits for room in the send buffer. */
#define SOCK_NOSPACE 2

/* Whether the program hands over more as soon as there is room: it waits, or was told a moment ago that there is. */
static __always_inline int has_more(struct sock *connection)
{
	struct socket *socket = connection->sk_socket;

	return connection->sk_wmem_queued > (connection->sk_sndbuf >> 1) ||
	       (socket && AS(struct socket, socket)->flags & (1ul << SOCK_NOSPACE));
}

/*
 * What the connection has to send, and `more` if the program has more, of which nobody knows how much: half as much again, but for `ecf`,
 * which decides by `busy_bytes`.
 */
static __always_inline __u64 queued(struct mptcp_sock *msk, int more)
{
	__u64 bytes = msk->write_seq - msk->snd_una;

	return more && scheduler != PLAIT_SCHEDULER_ECF ? bytes + bytes / 2 : bytes;
}

#endif
