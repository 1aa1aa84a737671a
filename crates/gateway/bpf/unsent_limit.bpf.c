// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Limits what the subflows of a connection hold that is not sent yet (TCP_NOTSENT_LOWAT), so that data which was on
 * a path that fails does not wait on another one behind much newer data.
 *
 * The kernel's scheduler hands data to the subflow whose queue is gone soonest, and to none while that one takes no
 * more. So a subflow must be able to hold what it sends during the time that the slowest one's round trip takes
 * longer than its own: otherwise slower subflows could not fill their paths.
 *
 * The kernel itself resets the limit of subflows (TCP_NOTSENT_LOWAT of programs applies to the connection), so it is
 * set when a subflow is established and with each round-trip time measurement.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "kernel.h"
#include "unsent.h"

/*
 * There must be something to send while the next is fetched: bytes, and in units of 1/8 us, 20 ms, which is more on links of 13 Mb/s and
 * faster. The kernel's scheduler adds up to 64 KB.
 */
#define MIN_UNSENT (32 << 10)
#define MIN_UNSENT_TIME (8 * 20000)
/*
 * The shortest round trip from which a rate is computed, in units of 1/8 us, 5 ms: on a shorter one with an empty queue, the congestion
 * window tells nothing of the rate, and the kernel would hand all that is to be sent to one subflow.
 */
#define MIN_ROUND_TRIP (8 * 5000)

/* Subflows of a connection beyond which further ones are not considered. */
#define MAX_SUBFLOWS 8

/*
 * In units of 1/8 us. The first acknowledgment after an outage makes the smoothed round trip an eighth of the outage, as timestamps measure
 * from the transmission before it: while the mean deviation is more than half of it, the least round trip counts.
 */
static __always_inline __u32 round_trip(struct tcp_sock *tcp)
{
	__u32 srtt = BPF_CORE_READ(tcp, srtt_us), deviation = BPF_CORE_READ(tcp, mdev_us);

	return srtt && deviation > srtt / 4 ? BPF_CORE_READ(tcp, rtt_min.s[0].v) << 3 : srtt;
}

/* Of a connection's established subflows, in units of 1/8 us. */
static __always_inline __u32 slowest_round_trip(struct mptcp_sock *msk)
{
	void *head = &msk->conn_list, *entry = msk->conn_list.next;
	__u32 slowest = 0;

	for (int i = 0; i < MAX_SUBFLOWS && entry && entry != head; i++) {
		struct mptcp_subflow_context *subflow =
		    entry - bpf_core_field_offset(struct mptcp_subflow_context, node);
		struct sock *sk = BPF_CORE_READ(subflow, tcp_sock);
		__u32 time = round_trip((struct tcp_sock *)sk);

		entry = BPF_CORE_READ((struct list_head *)entry, next);
		if (BPF_CORE_READ(sk, __sk_common.skc_state) == BPF_TCP_ESTABLISHED &&
		    BPF_CORE_READ(sk, sk_max_pacing_rate) && time > slowest)
			slowest = time;
	}
	return slowest;
}

/* In bytes. */
static __always_inline __u32 unsent_limit(struct bpf_sock_ops *ctx, struct mptcp_sock *msk)
{
	__u64 window = (__u64)ctx->snd_cwnd * ctx->mss_cache, limit = MIN_UNSENT;
	__u32 slowest = slowest_round_trip(msk), own = ctx->srtt_us;

	if (!own)
		return limit;
	if (own < MIN_ROUND_TRIP)
		own = MIN_ROUND_TRIP;
	if (window * MIN_UNSENT_TIME / own > limit)
		limit = window * MIN_UNSENT_TIME / own;
	if (slowest > own)
		limit += window * (slowest - own) / own;
	return limit < ~0u ? limit : ~0u;
}

static __always_inline void set_limit(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct mptcp_sock *msk = sk ? (struct mptcp_sock *)bpf_skc_to_mptcp_sock(sk) : NULL;
	struct tcp_sock *tcp = sk ? (struct tcp_sock *)bpf_skc_to_tcp_sock(sk) : NULL;
	__u32 limit;

	if (!msk || !tcp || is_limited_by_scheduler(tcp))
		return;
	limit = unsent_limit(ctx, msk);
	bpf_setsockopt(ctx, SOL_TCP, TCP_NOTSENT_LOWAT, &limit, sizeof(limit));
}

SEC("sockops")
int limit_unsent(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTT_CB_FLAG);
		set_limit(ctx);
		break;
	case BPF_SOCK_OPS_RTT_CB:
		set_limit(ctx);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
