/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The interface for programs in the packet path: plait's own, and custom selectors and actors.
 *
 * A packet is parsed once, when it arrives, into a struct plait_packet (intf.h), which all later programs read
 * instead of the packet itself. To change a packet, use the functions below: they keep TCP's checksum correct,
 * whether it is complete or left for the interface to complete, and whether the packet is one segment or many
 * (GSO).
 *
 * A custom selector returns whether a packet matches:
 *
 *	#include "plait.bpf.h"
 *
 *	PLAIT_SELECTOR(urgent)
 *	{
 *		return packet->window < 1000;
 *	}
 *
 * A custom actor returns its outcome (enum plait_outcome); it may change the packet, and set its verdict by
 * packet->verdict (enum plait_verdict):
 *
 *	PLAIT_ACTOR(no_more_than_a_segment)
 *	{
 *		if (packet->window <= 1 || packet->kinds & PLAIT_IS_SYN)
 *			return PLAIT_MISS;
 *		return plait_set_window(context, packet, 1) ? PLAIT_ERROR : PLAIT_HIT;
 *	}
 *
 * A file may define several of both. It ends with its licence, which some kernel functions require:
 *
 *	char _license[] SEC("license") = "GPL";
 *
 * A policy names the file, compiled or not, and then uses its selectors and actors by name:
 *
 *	[custom.urgent]
 *	file = "urgent.bpf.c"
 *
 * With parameters, and under several names:
 *
 *	[custom.very_urgent]
 *	file = "urgent.bpf.c"
 *	function = "urgent"
 *	parameters = [100]
 *
 * Available to programs: `packet` and `context` (for the functions below); plait_flow() for the state of the
 * subflow; plait_now() for the time; plait_option_byte() and plait_option_number() to read MPTCP options;
 * plait_set_window(), plait_set_option_byte() and plait_replace() to change the header; plait_add_option() and
 * plait_erase_option() (options.h) to add and remove options; plait_event() and plait_submit_event() to emit
 * events; plait_parameter() for the numbers that the policy gives; plait_storage() and plait_connection_storage() for 64
 * bytes of state per subflow and per connection, which the programs of a file share; plait_shared_storage() and
 * plait_shared_connection_storage() for such state that all files of all policies share.
 * From IP on, packets are as they arrived. At most 32 selectors and actors can be run on a packet.
 */
#ifndef PLAIT_BPF_H
#define PLAIT_BPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "constants.h"
#include "flows_map.h"

/* The packet in the hook's form: one of the two is NULL, as a compile-time constant. */
struct plait_context {
	struct xdp_md *xdp;
	struct __sk_buff *skb;
};

/* The outcome of an actor. */
enum plait_outcome {
	/* It took effect. */
	PLAIT_HIT = 0,
	/* There was nothing to do. */
	PLAIT_MISS = 1,
	/* It failed. */
	PLAIT_ERROR = 2,
};

/* The TCP header without its options, in bytes. */
#define PLAIT_TCP_HEADER 20
/* Offset of the window in it. */
#define PLAIT_WINDOW_AT 14
/* Maximum offset of the TCP header, in bytes: after Ethernet, two VLAN tags and the longest IP header. */
#define PLAIT_MAX_TCP_OFFSET (14 + 8 + 60)
/* Value in plait_packet.option_at: the packet has no such option. */
#define PLAIT_NO_OPTION 255

/* RFC 8684 section 3. */
enum plait_mptcp_subtype {
	MPTCP_CAPABLE = 0,
	MPTCP_JOIN = 1,
	MPTCP_DSS = 2,
	MPTCP_ADD_ADDR = 3,
	MPTCP_REMOVE_ADDR = 4,
	MPTCP_PRIO = 5,
	MPTCP_FAIL = 6,
	MPTCP_FASTCLOSE = 7,
	MPTCP_TCPRST = 8,
};

/* Length of MP_JOIN in a SYN, and the offset of the token in it (RFC 8684 section 3.2). */
#define PLAIT_JOIN_OF_SYN 12
#define PLAIT_JOIN_TOKEN_AT 4

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_packet);
} packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PLAIT_SKIP_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} skipped SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLAIT_MAX_CUSTOM);
	__type(key, __u32);
	__type(value, struct plait_parameters);
} parameters SEC(".maps");

/* What custom programs of all policies share. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct plait_flow_key);
	__type(value, struct plait_storage);
} shared_storage SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, PLAIT_EVENT_BYTES);
} events SEC(".maps");

/* The current packet. Never NULL, but the verifier does not know that. */
static __always_inline struct plait_packet *plait_packet(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&packets, &zero);
}

static __always_inline const struct plait_settings *plait_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

/* The state of a packet's subflow, or NULL. */
static __always_inline struct plait_flow *plait_flow(const struct plait_packet *packet)
{
	return bpf_map_lookup_elem(&flows, &packet->flow);
}

/* CLOCK_MONOTONIC, read once per packet, as reading the clock is expensive. */
static __always_inline __u64 plait_now(struct plait_packet *packet)
{
	if (!packet->nanoseconds)
		packet->nanoseconds = bpf_ktime_get_ns();
	return packet->nanoseconds;
}

static __always_inline void plait_count(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&skipped, &reason);

	if (count)
		(*count)++;
}

/* The byte at offset `place` of an MPTCP option; 0 if there is no such option or byte. */
static __always_inline __u8 plait_option_byte(const struct plait_packet *packet, __u32 subtype, __u32 place)
{
	__u32 at = packet->option_at[subtype & 15];

	if (at == PLAIT_NO_OPTION || place >= packet->option_length[subtype & 15])
		return 0;
	return packet->options[(at + place) & 63];
}

/* A number of 8 or 4 bytes in the options. It need not be aligned. */
static __always_inline __u64 plait_option_number(const struct plait_packet *packet, __u32 at, __u32 length)
{
	const __u8 *number = &packet->options[at & 63];

	return length == 8 ? bpf_be64_to_cpu(*(const __u64 *)number) : bpf_ntohl(*(const __u32 *)number);
}

/* A SYN without ACK. */
static __always_inline int plait_is_first_syn(const struct plait_packet *packet)
{
	return (packet->kinds & (PLAIT_IS_SYN | PLAIT_IS_ACK)) == PLAIT_IS_SYN;
}

/* `length` bytes of the packet from `at` on, for XDP; NULL if it is shorter. `length` is a constant. */
static __always_inline void *plait_bytes(const struct xdp_md *xdp, __u32 at, __u32 length)
{
	void *data = (void *)(long)xdp->data;
	void *end = (void *)(long)xdp->data_end;
	void *bytes;

	if (at > PLAIT_MAX_TCP_OFFSET + 60)
		return NULL;
	/* Repeats the bound so that the compiler cannot omit it: the verifier may have seen it for another copy
	 * of `at`. */
	_Static_assert(PLAIT_MAX_TCP_OFFSET + 60 <= 0xff, "the mask keeps all of them");
	asm volatile("" : "+r"(at));
	bytes = data + (at & 0xff);
	return bytes + length > end ? NULL : bytes;
}

/* Copies out `length` bytes, a constant, from `at` on. */
static __always_inline long plait_load(struct plait_context context, __u32 at, void *to, __u32 length)
{
	void *from;

	if (context.skb)
		return bpf_skb_load_bytes(context.skb, at, to, length);
	from = plait_bytes(context.xdp, at, length);
	if (!from)
		return -1;
	__builtin_memcpy(to, from, length);
	return 0;
}

/* Copies in `length` bytes, a constant, from `at` on; no checksum is touched. */
static __always_inline long plait_store(struct plait_context context, __u32 at, const void *from,
					__u32 length)
{
	void *to;

	if (context.skb)
		return bpf_skb_store_bytes(context.skb, at, from, length, 0);
	to = plait_bytes(context.xdp, at, length);
	if (!to)
		return -1;
	__builtin_memcpy(to, from, length);
	return 0;
}

static __always_inline __u16 plait_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* The sum of the pseudo header (RFC 9293 section 3.1) in memory order, for `tcp_bytes` bytes of TCP. */
static __always_inline __u64 plait_pseudo_header(const struct plait_packet *packet, __u32 tcp_bytes)
{
	__u64 sum = bpf_htons(6) + bpf_htons(tcp_bytes & 0xffff);

	sum += bpf_htonl((__u32)packet->source[1]);
	sum += bpf_htonl((__u32)packet->destination[1]);
	if (packet->kinds & PLAIT_IS_IPV6) {
		sum += bpf_htonl(packet->source[0] >> 32);
		sum += bpf_htonl((__u32)packet->source[0]);
		sum += bpf_htonl(packet->source[1] >> 32);
		sum += bpf_htonl(packet->destination[0] >> 32);
		sum += bpf_htonl((__u32)packet->destination[0]);
		sum += bpf_htonl(packet->destination[1] >> 32);
	}
	return sum;
}

/* The bit of plait_flow.flags for directions whose packets contain only the pseudo header's sum. */
static __always_inline __u32 plait_partial_flag(__u32 hook)
{
	return hook == PLAIT_INGRESS ? PLAIT_FLOW_PARTIAL_IN : PLAIT_FLOW_PARTIAL_OUT;
}

/* Copies the key to the stack: Linux 6.1 accepts no map key in memory behind a pointer argument. A separate
 * function, as its callers have no stack space left. */
__weak int plait_is_partial(const struct plait_packet *packet)
{
	struct plait_flow_key key;
	struct plait_flow *flow;

	if (!packet)
		return 0;
	key = packet->flow;
	flow = bpf_map_lookup_elem(&flows, &key);
	return flow && flow->flags & plait_partial_flag(packet->hook);
}

/* Computes it for a packet without payload. */
static __always_inline __u8 plait_compute_checksum(struct plait_context context,
						   const struct plait_packet *packet)
{
	__u64 pseudo = plait_pseudo_header(packet, PLAIT_TCP_HEADER + packet->options_length), sum = pseudo;
	__u32 header[PLAIT_TCP_HEADER / 4];
	int is_full, is_partial;

	if (plait_load(context, packet->tcp_at, header, sizeof(header)))
		return PLAIT_CHECKSUM_UNKNOWN;
	for (int i = 0; i < PLAIT_TCP_HEADER / 4; i++)
		sum += header[i];
	for (int i = 0; i < PLAIT_MAX_OPTIONS / 4; i++)
		sum += ((__u32 *)packet->options)[i];
	is_full = plait_fold(sum) == 0xffff;
	is_partial = ((__u16 *)header)[8] == plait_fold(pseudo);
	/* One in 65,536 packets looks like both. */
	if (is_full && is_partial)
		is_full = !plait_is_partial(packet);
	if (is_full)
		return PLAIT_CHECKSUM_FULL;
	return is_partial ? PLAIT_CHECKSUM_PARTIAL : PLAIT_CHECKSUM_WRONG;
}

/*
 * The state of a packet's checksum (enum plait_checksum). Without payload it is computed; with payload it is
 * taken from earlier packets of this direction, as reading the whole packet would be too expensive.
 *
 * Packets sent by local programs, and packets from local virtual interfaces, contain only the pseudo header's
 * sum until an interface transmits them.
 */
static __always_inline __u8 plait_checksum(struct plait_context context, struct plait_packet *packet)
{
	if (packet->checksum != PLAIT_CHECKSUM_UNKNOWN)
		return packet->checksum;
	if (packet->payload)
		packet->checksum = plait_is_partial(packet) ? PLAIT_CHECKSUM_PARTIAL : PLAIT_CHECKSUM_FULL;
	else
		packet->checksum = plait_compute_checksum(context, packet);
	if (packet->checksum == PLAIT_CHECKSUM_WRONG)
		plait_count(PLAIT_SKIPPED_WRONG_CHECKSUM);
	return packet->checksum;
}

/* Offset of TCP's checksum in the packet. */
static __always_inline __u32 plait_checksum_at(const struct plait_packet *packet)
{
	return packet->tcp_at + 16;
}

/*
 * Replaces a 16-bit word of TCP's header or options, `at` bytes (an even number) behind the header's
 * beginning. Both are in network order. 0 on success; otherwise the packet is unchanged.
 */
static __always_inline long plait_replace(struct plait_context context, struct plait_packet *packet, __u32 at,
					  __u16 from, __u16 to)
{
	__u32 checksum_at = plait_checksum_at(packet);
	__u8 holds = plait_checksum(context, packet);
	__u16 checksum;

	if (holds != PLAIT_CHECKSUM_FULL && holds != PLAIT_CHECKSUM_PARTIAL)
		return -1;
	if (context.skb) {
		if (bpf_l4_csum_replace(context.skb, checksum_at, from, to, sizeof(to)))
			return -1;
	} else if (holds == PLAIT_CHECKSUM_FULL) {
		if (plait_load(context, checksum_at, &checksum, sizeof(checksum)))
			return -1;
		/* RFC 1624, equation 3. */
		checksum = ~plait_fold((__u64)(__u16)~checksum + (__u16)~from + to);
		if (plait_store(context, checksum_at, &checksum, sizeof(checksum)))
			return -1;
	}
	if (plait_store(context, packet->tcp_at + at, &to, sizeof(to)))
		return -1;
	packet->changed = 1;
	return 0;
}

/* Sets the packet's window, unscaled. 0 on success. */
static __always_inline long plait_set_window(struct plait_context context, struct plait_packet *packet,
					     __u16 window)
{
	if (plait_replace(context, packet, PLAIT_WINDOW_AT, bpf_htons(packet->window), bpf_htons(window)))
		return -1;
	packet->window = window;
	return 0;
}

/* Sets the byte at offset `at` of the options; their lengths stay the same. 0 on success. */
static __always_inline long plait_set_option_byte(struct plait_context context, struct plait_packet *packet,
						  __u32 at, __u8 byte)
{
	__u32 even = at & 62;
	__u16 from = *(const __u16 *)&packet->options[even], word = bpf_ntohs(from);

	if (at >= packet->options_length)
		return -1;
	word = at & 1 ? (word & 0xff00) | byte : (word & 0x00ff) | byte << 8;
	if (plait_replace(context, packet, PLAIT_TCP_HEADER + even, from, bpf_htons(word)))
		return -1;
	packet->options[at & 63] = byte;
	return 0;
}

/* A new event, to be filled in and passed to plait_submit_event(); NULL if the buffer is full. */
static __always_inline struct plait_event *plait_event(const struct plait_packet *packet, __u32 kind)
{
	struct plait_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		plait_count(PLAIT_LOST_EVENT);
		return NULL;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->nanoseconds = bpf_ktime_get_ns();
	event->kind = kind;
	event->token = packet->token;
	event->flow = packet->flow;
	event->kinds = packet->kinds;
	event->data_sequence = packet->data_sequence;
	event->sequence = packet->sequence;
	event->acknowledgment = packet->acknowledgment;
	event->payload = packet->payload;
	event->interface = packet->interface;
	event->hook = packet->hook;
	return event;
}

static __always_inline void plait_submit_event(struct plait_event *event)
{
	bpf_ringbuf_submit(event, 0);
}

#include "options.h"

/* Custom programs are called by plait's own, which define STEPS. */
#ifndef STEPS
#include "custom.h"
#endif

#endif
