/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What programs in the packet path are written with: plait's own, and selectors and actors of your own.
 *
 * A packet is parsed once, when it arrives. What was found is a struct plait_packet (intf.h), which every
 * program after that reads instead of the packet itself. A program that changes the packet does so by the
 * functions below, which keep TCP's checksum right, whether it is complete or left to be completed by the
 * interface, and whether the packet is one segment or many that are sent as one.
 *
 * A selector of your own answers whether a packet is of the kind that its name says:
 *
 *	#include "plait.bpf.h"
 *
 *	PLAIT_SELECTOR(urgent)
 *	{
 *		return packet->window < 1000;
 *	}
 *
 * An actor of your own says what it did (enum plait_outcome); it may change the packet, and give it a verdict
 * by packet->verdict (enum plait_verdict):
 *
 *	PLAIT_ACTOR(no_more_than_a_segment)
 *	{
 *		if (packet->window <= 1 || packet->kinds & PLAIT_IS_SYN)
 *			return PLAIT_MISS;
 *		return plait_set_window(context, packet, 1) ? PLAIT_ERROR : PLAIT_HIT;
 *	}
 *
 * A file may have several of both. It ends with its licence, which some of the kernel's functions ask for:
 *
 *	char _license[] SEC("license") = "GPL";
 *
 * A policy names the file, compiled or not, and then uses what is in it by name:
 *
 *	[own.urgent]
 *	file = "urgent.bpf.c"
 *
 * What there is to work with: `packet` and `context` (for the functions below); plait_flow() for what is
 * known of the subflow; plait_now() for the time; plait_option_byte() and plait_option_number() to read
 * options of MPTCP, plait_set_window(), plait_set_option_byte() and plait_replace() to change the header,
 * plait_add_option() and plait_erase_option() (options.h) to change what it has; plait_event() and
 * plait_tell() to tell user space; plait_storage() and plait_connection_storage() for 64 bytes of the file's
 * own for each subflow and each connection. Packets are seen from IP on as they came. A packet can be given
 *to at most 32 selectors and actors of your own.
 */
#ifndef PLAIT_BPF_H
#define PLAIT_BPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "constants.h"
#include "intf.h"

/* The packet as the hook has it: one of the two is NULL, and known to be when the program is compiled. */
struct plait_context {
	struct xdp_md *xdp;
	struct __sk_buff *skb;
};

/* What an actor did. */
enum plait_outcome {
	/* What it is for. */
	PLAIT_HIT = 0,
	/* Nothing, as there was nothing to do. */
	PLAIT_MISS = 1,
	/* Nothing, though there was something to do. */
	PLAIT_ERROR = 2,
};

/* The TCP header without its options, in bytes. */
#define PLAIT_TCP_HEADER 20
/* Where the window stands in it. */
#define PLAIT_WINDOW_AT 14
/* Where a TCP header can begin, in bytes: behind Ethernet, two VLAN tags and the longest header of IP. */
#define PLAIT_MAX_TCP_OFFSET (14 + 8 + 60)
/* In a place of plait_packet.option_at: the packet has no such option. */
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

/* How long the MP_JOIN of a SYN is, and where the token stands in it (RFC 8684 section 3.2). */
#define PLAIT_JOIN_OF_SYN 12
#define PLAIT_JOIN_TOKEN_AT 4

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_packet);
} packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PLAIT_FLOWS);
	__type(key, struct plait_flow_key);
	__type(value, struct plait_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PLAIT_LEFT_ALONE_KINDS);
	__type(key, __u32);
	__type(value, __u64);
} left_alone SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, PLAIT_EVENT_BYTES);
} events SEC(".maps");

/* The packet that is worked on; NULL cannot happen, but the verifier does not know that. */
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

/* The subflow of a packet as it is remembered, or NULL. */
static __always_inline struct plait_flow *plait_flow(const struct plait_packet *packet)
{
	return bpf_map_lookup_elem(&flows, &packet->flow);
}

/* The time by CLOCK_MONOTONIC: one for all that is done with a packet, as to ask for it takes time itself. */
static __always_inline __u64 plait_now(struct plait_packet *packet)
{
	if (!packet->nanoseconds)
		packet->nanoseconds = bpf_ktime_get_ns();
	return packet->nanoseconds;
}

static __always_inline void plait_count(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&left_alone, &reason);

	if (count)
		(*count)++;
}

/* The byte of an MPTCP option at `place`, of 0..option_length; 0 if there is no such option. */
static __always_inline __u8 plait_option_byte(const struct plait_packet *packet, __u32 subtype, __u32 place)
{
	__u32 at = packet->option_at[subtype & 15];

	if (at == PLAIT_NO_OPTION || place >= packet->option_length[subtype & 15])
		return 0;
	return packet->options[(at + place) & 63];
}

/* A number of 8 or 4 bytes in the options. They need not be aligned; the processors that BPF is compiled for
 * allow it. */
static __always_inline __u64 plait_option_number(const struct plait_packet *packet, __u32 at, __u32 length)
{
	const __u8 *number = &packet->options[at & 63];

	return length == 8 ? bpf_be64_to_cpu(*(const __u64 *)number) : bpf_ntohl(*(const __u32 *)number);
}

/* The SYN that begins a subflow, and not the answer to it. */
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
	/* The bound again, behind the compiler's back: the verifier may have seen that of another copy of
	 * `at`. */
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

/* The sum of the pseudo header (RFC 9293 section 3.1) as it stands in memory, for this many bytes of TCP. */
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

/* The bit of plait_flow.flags which says that a direction's packets come with the sum of the pseudo header
 * alone.
 */
static __always_inline __u32 plait_partial_flag(__u32 hook)
{
	return hook == PLAIT_INGRESS ? PLAIT_FLOW_PARTIAL_IN : PLAIT_FLOW_PARTIAL_OUT;
}

/* By a key on the stack: from memory that a pointer leads to, which a function was given, Linux 6.1 takes
 * none. A function of its own, as there is no room for that on the stack of those that call it. */
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

/* Of a packet without payload, by computing it. */
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
 * What the checksum of a packet holds (enum plait_checksum). Of one without payload it is computed; of one
 * with payload it is what packets of this direction of the subflow held before, as to read all of a packet
 * would take too long.
 *
 * Packets that this machine's own programs send, and those that come from its virtual interfaces, have the
 * sum of the pseudo header alone, until an interface sends them on a wire.
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
		plait_count(PLAIT_LEFT_WRONG_CHECKSUM);
	return packet->checksum;
}

/* Where TCP's checksum stands in the packet. */
static __always_inline __u32 plait_checksum_at(const struct plait_packet *packet)
{
	return packet->tcp_at + 16;
}

/*
 * Replaces a 16-bit word of TCP's header or options, `at` bytes (an even number) behind the header's
 * beginning. Both are in network order. 0 if it is done; else the packet is as it was.
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

/* Makes this the window that the packet offers, not scaled. 0 if it is done. */
static __always_inline long plait_set_window(struct plait_context context, struct plait_packet *packet,
					     __u16 window)
{
	if (plait_replace(context, packet, PLAIT_WINDOW_AT, bpf_htons(packet->window), bpf_htons(window)))
		return -1;
	packet->window = window;
	return 0;
}

/* Makes this the byte at `at` of the options, which keep their lengths. 0 if it is done. */
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

/* An event to be filled and then given to plait_tell(); NULL if nobody read the earlier ones in time. */
static __always_inline struct plait_event *plait_event(const struct plait_packet *packet, __u32 kind)
{
	struct plait_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		plait_count(PLAIT_LEFT_EVENT);
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

static __always_inline void plait_tell(struct plait_event *event)
{
	bpf_ringbuf_submit(event, 0);
}

#include "options.h"

/* plait's own programs call those of the others. */
#ifndef STEPS
#include "own.h"
#endif

#endif
