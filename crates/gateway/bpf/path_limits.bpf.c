// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Counts what the gateway sends and receives by the interfaces of each rule of paths, and limits it to a rate, and to what is
 * left of a quota.
 *
 * Attached to the cgroup of the gateway, to whose packets it applies, and to no others.
 *
 * To send more than the rate allows fails without a loss: TCP keeps the packet and tries again, as it does with a full
 * queueing discipline. If more arrives, user space is told, and asks peers to use other paths for a while. Where that does
 * not help, packets are dropped, by which senders notice: a few at first, so that TCP need not wait for a timeout.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "constants.h"
#include "kernel.h"
#include "intf.h"

/* What a program for packets returns (`include/linux/bpf-cgroup.h`). */
#define DROP 0
#define PASS 1
/* And tell TCP that there is congestion. */
#define HOLD 2
#define PASS_CONGESTED 3

#define MS 1000000ull /* ns */
#define SECOND (1000 * MS)
/* Sent ahead of the rate: TCP is told from the first on, and held from the second on. */
#define CONGESTED_AFTER (25 * MS)
#define HELD_AFTER (100 * MS)
/* Received ahead of the rate: user space is told, some packets are dropped, and all are. */
#define REPORTED_AFTER (20 * MS)
#define DROPPED_AFTER (1000 * MS)
#define ALL_DROPPED_AFTER (2000 * MS)
#define DROP_INTERVAL (100 * MS)
/* An idle time that can be made up for. Senders that use other paths, or see a loss, pause for a while. */
#define SEND_BURST (50 * MS)
#define RECEIVE_BURST (400 * MS)
/* Left of a quota when the path ends: TCP's headers, and what is in flight, may still come. */
#define RESERVE 32768
/* At the end of a quota: so many times what is left, per second. */
#define TAPER_PER_SECOND 2
/* From one report to the next, bytes. */
#define REPORT_INTERVAL 16384
/* The share of the rate at which TCP sends payload; headers are the rest. */
#define PACED(rate) ((rate) - (rate) / 20)

enum direction { SENT = 0, RECEIVED = 1 };

/* Index of an interface to the number of its rule. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLAIT_MAX_PATH_RULES);
	__type(key, __u32);
	__type(value, struct plait_path_limit);
} limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLAIT_MAX_PATH_RULES);
	__type(key, __u32);
	__type(value, struct plait_path_use);
} uses SEC(".maps");

/* Numbers of rules with a quota, some of which was used; and of those with PLAIT_PATH_TOO_FAST. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12);
} reports SEC(".maps");

struct packet {
	__u64 bytes; /* of all IP packets that it is on the path */
	__u32 payload;
};

/* A packet of TCP may stand for several on the path, which have the same headers. */
static __always_inline struct packet measure(struct __sk_buff *skb)
{
	__u32 ip = 40, tcp = 0, segments = skb->gso_segs;
	struct packet packet = {.bytes = skb->len};
	__u8 first, protocol, offset;

	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, 6, &protocol, sizeof(protocol)))
			return packet;
	} else {
		if (bpf_skb_load_bytes(skb, 0, &first, sizeof(first)) ||
		    bpf_skb_load_bytes(skb, 9, &protocol, sizeof(protocol)))
			return packet;
		ip = (first & 15) * 4;
	}
	if (protocol == IPPROTO_TCP && !bpf_skb_load_bytes(skb, ip + 12, &offset, sizeof(offset)))
		tcp = (offset >> 4) * 4;
	packet.payload = skb->len > ip + tcp ? skb->len - ip - tcp : 0;
	if (tcp && segments > 1)
		packet.bytes += (__u64)(segments - 1) * (ip + tcp);
	return packet;
}

static __always_inline __u64 left_of(const struct plait_path_limit *limit, const struct plait_path_use *use)
{
	return limit->allowance > use->bytes ? limit->allowance - use->bytes : 0;
}

/* Bytes per second; 0: any number. */
static __always_inline __u64 rate_of(const struct plait_path_limit *limit, __u64 left)
{
	__u64 rate = left * TAPER_PER_SECOND;

	if (left >= limit->taper || (limit->rate && limit->rate < rate))
		return limit->rate;
	return rate;
}

static __always_inline void count(struct plait_path_use *use, __u64 bytes, __u32 rule, int has_quota)
{
	__u64 reported = use->reported, now = __sync_fetch_and_add(&use->bytes, bytes) + bytes;

	if (has_quota && now - reported >= REPORT_INTERVAL &&
	    __sync_val_compare_and_swap(&use->reported, reported, now) == reported)
		bpf_ringbuf_output(&reports, &rule, sizeof(rule), 0);
}

/*
 * How far ahead of the rate the packet is, in ns, at most `max`; then it counts. ~0: it is further ahead, and does not.
 */
static __always_inline __u64 advance(__u64 *busy_until, __u64 bytes, __u64 rate, __u64 burst, __u64 max)
{
	__u64 now = bpf_ktime_get_ns(), before = *busy_until, start = before;

	if (start + burst < now)
		start = now - burst;
	if (start > now + max)
		return ~0ull;
	/* Another processor may be faster: then this packet is free. */
	__sync_val_compare_and_swap(busy_until, before, start + bytes * SECOND / rate);
	return start > now ? start - now : 0;
}

static __always_inline int send(struct plait_path_use *use, const struct packet *packet, __u64 rate)
{
	__u64 ahead;

	if (!rate)
		return PASS;
	ahead = advance(&use->busy_until[SENT], packet->bytes, rate, SEND_BURST, HELD_AFTER);
	/* An acknowledgment that is held is lost, and is not much. */
	if (!packet->payload)
		return PASS;
	if (ahead == ~0ull)
		return HOLD;
	return ahead > CONGESTED_AFTER ? PASS_CONGESTED : PASS;
}

/* Whether it is due, which then begins anew. */
static __always_inline int is_due(__u64 *last, __u64 interval)
{
	__u64 now = bpf_ktime_get_ns(), before = *last;

	return now - before >= interval && __sync_val_compare_and_swap(last, before, now) == before;
}

static __always_inline int receive(struct plait_path_use *use, const struct packet *packet,
				   const struct plait_path_limit *limit, __u64 rate, __u32 rule)
{
	__u64 ahead;

	if (!rate)
		return PASS;
	/* At the end of a quota, every packet is one too many. */
	if (rate != limit->rate) {
		ahead = advance(&use->busy_until[RECEIVED], packet->bytes, rate, RECEIVE_BURST, 0);
		return ahead == ~0ull && packet->payload ? DROP : PASS;
	}
	ahead = advance(&use->busy_until[RECEIVED], packet->bytes, rate, RECEIVE_BURST, ALL_DROPPED_AFTER);
	if (ahead >= REPORTED_AFTER && is_due(&use->warned, REPORTED_AFTER)) {
		rule |= PLAIT_PATH_TOO_FAST;
		bpf_ringbuf_output(&reports, &rule, sizeof(rule), 0);
	}
	if (!packet->payload || ahead < DROPPED_AFTER)
		return PASS;
	return ahead == ~0ull || is_due(&use->dropped, DROP_INTERVAL) ? DROP : PASS;
}

static __always_inline int limit_packet(struct __sk_buff *skb, enum direction direction)
{
	__u32 interface = skb->ifindex, *rule = bpf_map_lookup_elem(&rules, &interface);
	struct plait_path_limit *limit = rule ? bpf_map_lookup_elem(&limits, rule) : NULL;
	struct plait_path_use *use = rule ? bpf_map_lookup_elem(&uses, rule) : NULL;
	struct packet packet;
	int has_quota, result;
	__u64 left;

	if (!limit || !use)
		return PASS;
	packet = measure(skb);
	has_quota = limit->allowance != ~0ull;
	if (direction == RECEIVED)
		count(use, packet.bytes, *rule, has_quota);
	left = left_of(limit, use);
	if (has_quota && left <= RESERVE && packet.payload)
		return direction == SENT ? HOLD : DROP;
	if (direction == RECEIVED)
		return receive(use, &packet, limit, rate_of(limit, left), *rule);
	result = send(use, &packet, rate_of(limit, left));
	if (result != HOLD)
		count(use, packet.bytes, *rule, has_quota);
	return result;
}

SEC("cgroup_skb/egress")
int limit_sent(struct __sk_buff *skb)
{
	return limit_packet(skb, SENT);
}

SEC("cgroup_skb/ingress")
int limit_received(struct __sk_buff *skb)
{
	return limit_packet(skb, RECEIVED);
}

/* Of several subflows on a path each is paced at the rate of all, which are held together. */
static __always_inline void pace(struct bpf_sock_ops *ctx)
{
	struct tcp_sock *tcp = ctx->sk ? (struct tcp_sock *)bpf_skc_to_tcp_sock(ctx->sk) : NULL;
	struct plait_path_limit *limit;
	struct dst_entry *route;
	__u32 interface, rate, *rule;

	if (!tcp)
		return;
	route = ((struct sock *)tcp)->sk_dst_cache;
	if (!route || !route->dev)
		return;
	interface = route->dev->ifindex;
	rule = bpf_map_lookup_elem(&rules, &interface);
	limit = rule ? bpf_map_lookup_elem(&limits, rule) : NULL;
	if (!limit || !limit->rate || limit->rate > ~0u)
		return;
	rate = PACED(limit->rate);
	bpf_setsockopt(ctx, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
}

SEC("sockops")
int pace_subflow(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		pace(ctx);
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
