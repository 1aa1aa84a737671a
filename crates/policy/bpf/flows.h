/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Tracks subflows and connections, as far as the loaded chains need it: window scales, tokens, bytes, round-trip
 * times, retransmissions and reinjections.
 */
#ifndef PLAIT_FLOWS_H
#define PLAIT_FLOWS_H

#include "plait.bpf.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PLAIT_CONNECTIONS);
	__type(key, __u32);
	__type(value, struct plait_connection);
} connections SEC(".maps");

/*
 * A Bloom filter of the port pairs of tracked subflows: a packet without MPTCP options may belong to one (RFC 8684
 * section 3.3.1: SACK may take their space), but most such packets are plain TCP and should be skipped early.
 */
struct known_ports {
	__u64 words[1024];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct known_ports);
} known SEC(".maps");

static const struct plait_flow no_flow = {
    .dir = {{.offered_scale = PLAIT_NO_SCALE}, {.offered_scale = PLAIT_NO_SCALE}},
    .scale = {PLAIT_NO_SCALE, PLAIT_NO_SCALE},
};
static const struct plait_connection no_connection;

static __always_inline __u32 hash_of_ports(__u16 one, __u16 other)
{
	/* The same in both directions. */
	return ((__u32)one * other + one + other) * 0x9e3779b1 >> 16;
}

static __always_inline int may_be_known(__u16 one, __u16 other)
{
	__u32 zero = 0, hash = hash_of_ports(one, other);
	struct known_ports *ports = bpf_map_lookup_elem(&known, &zero);

	return ports && ports->words[hash >> 6 & 1023] >> (hash & 63) & 1;
}

static __always_inline void add_known_ports(__u16 one, __u16 other)
{
	__u32 zero = 0, hash = hash_of_ports(one, other);
	struct known_ports *ports = bpf_map_lookup_elem(&known, &zero);

	if (ports)
		__sync_fetch_and_or(&ports->words[hash >> 6 & 1023], 1ull << (hash & 63));
}

/* Whether sequence number `a` is after `b` (RFC 9293 section 3.4). */
static __always_inline int is_later(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* Saturating subtraction. */
static __always_inline __u64 subtract(__u64 of, __u64 by)
{
	return of > by ? of - by : 0;
}

/* The sequence number after a packet, not counting FIN. */
static __always_inline __u32 end_of(const struct plait_packet *packet)
{
	return packet->sequence + !!(packet->kinds & PLAIT_IS_SYN) + packet->payload;
}

static __always_inline struct plait_flow *new_flow(const struct plait_packet *packet)
{
	struct plait_flow *flow;

	if (bpf_map_update_elem(&flows, &packet->flow, &no_flow, BPF_ANY)) {
		plait_count(PLAIT_SKIPPED_NO_MEMORY);
		return NULL;
	}
	flow = plait_flow(packet);
	if (!flow)
		return NULL;
	add_known_ports(packet->source_port, packet->destination_port);
	plait_count(PLAIT_FLOWS_SEEN);
	return flow;
}

/* The window scale of this direction; -1 if a SYN was not seen. */
static __always_inline int scale_of(const struct plait_flow *flow, __u32 hook)
{
	__u8 scale = flow->scale[hook & 1];

	return scale == PLAIT_NO_SCALE ? -1 : scale;
}

/* RFC 6298 section 2, in integer arithmetic. */
static __always_inline void update_rtt(struct plait_flow *flow, __u64 nanoseconds)
{
	__u32 now = nanoseconds / 1000;
	__u32 off;

	if (!now)
		now = 1;
	if (!flow->rtt) {
		flow->rtt = now;
		flow->rtt_variance = now / 2;
		flow->rtt_min = now;
		return;
	}
	off = now > flow->rtt ? now - flow->rtt : flow->rtt - now;
	flow->rtt_variance += off / 4 - flow->rtt_variance / 4;
	flow->rtt += now / 8 - flow->rtt / 8;
	if (now < flow->rtt_min)
		flow->rtt_min = now;
}

/* Starts an RTT sample with an outgoing packet, unless one is in progress. */
static __always_inline void start_rtt_sample(struct plait_flow *flow, struct plait_packet *packet,
					     __u32 sequence)
{
	if (flow->sample_pending)
		return;
	flow->sample_sequence = sequence;
	flow->sample_nanoseconds = plait_now(packet);
	flow->sample_pending = 1;
}

/* Finishes the RTT sample when its acknowledgment arrives. */
static __always_inline void sample_rtt(struct plait_flow *flow, struct plait_packet *packet)
{
	if (packet->hook != PLAIT_INGRESS || !(packet->kinds & PLAIT_IS_ACK) || !flow->sample_pending ||
	    is_later(flow->sample_sequence, packet->acknowledgment))
		return;
	flow->sample_pending = 0;
	update_rtt(flow, plait_now(packet) - flow->sample_nanoseconds);
}

static __always_inline void remember_syn(struct plait_flow *flow, struct plait_flow_dir *sent,
					 struct plait_packet *packet)
{
	/* A retransmission makes the sample ambiguous (Karn). */
	if (packet->hook == PLAIT_EGRESS && sent->syn_seen)
		flow->sample_pending = 0;
	else if (packet->hook == PLAIT_EGRESS)
		start_rtt_sample(flow, packet, packet->sequence + 1);
	flow->mss[packet->hook & 1] = packet->mss;
	sent->syn_seen = 1;
	sent->offered_scale = packet->window_scale;
	sent->initial_sequence = packet->sequence;
	update_scales(flow);
	if (packet->kinds & PLAIT_HAS_MP_JOIN) {
		flow->flags |= PLAIT_FLOW_JOINED;
		sent->address_id = plait_option_byte(packet, MPTCP_JOIN, 3);
	} else {
		flow->flags |= PLAIT_FLOW_INITIAL;
	}
}

/* The bit of plait_flow.flags for the backup flag of a direction. */
static __always_inline __u32 backup_flag(__u32 hook)
{
	return hook == PLAIT_INGRESS ? PLAIT_FLOW_BACKUP_IN : PLAIT_FLOW_BACKUP_OUT;
}

/* RFC 8684 section 3.3.8: MP_PRIO with B, like MP_JOIN with B, requests that the peer not send on this subflow. */
static __always_inline void remember_backup(struct plait_flow *flow, struct plait_packet *packet)
{
	__u32 flag = backup_flag(packet->hook);
	__u32 subtype = packet->kinds & PLAIT_HAS_MP_PRIO ? MPTCP_PRIO : MPTCP_JOIN;

	/* The MP_JOIN in the third packet has no such flag. */
	if (subtype == MPTCP_JOIN && !(packet->kinds & PLAIT_IS_SYN))
		return;
	if (subtype == MPTCP_PRIO)
		flow->prioritized_nanoseconds[packet->hook & 1] = plait_now(packet);
	if (plait_option_byte(packet, subtype, 2) & 1)
		flow->flags |= flag;
	else
		flow->flags &= ~flag;
}

/* An echo confirms an announcement, which then need not be repeated. */
static __always_inline void cancel_echoed_announcement(struct plait_flow *flow,
						       const struct plait_packet *packet)
{
	__u32 other = ~packet->hook & 1;

	if (flow->pending_length[other] &&
	    flow->pending[other][3] == plait_option_byte(packet, MPTCP_ADD_ADDR, 3))
		flow->pending_length[other] = 0;
}

/* The connection of a packet with a token; NULL if there is no memory. The key is on the stack, as in
 * plait_is_partial(). */
static __always_inline struct plait_connection *connection_of(const struct plait_packet *packet)
{
	struct plait_connection *connection;
	__u32 token = packet->token;

	connection = bpf_map_lookup_elem(&connections, &token);
	if (connection)
		return connection;
	if (!bpf_map_update_elem(&connections, &token, &no_connection, BPF_NOEXIST))
		plait_count(PLAIT_CONNECTIONS_SEEN);
	/* Fails if another processor was faster. */
	return bpf_map_lookup_elem(&connections, &token);
}

/* Data of this direction from `next` on is new. */
static __always_inline void advance(struct plait_connection *connection, __u32 hook, __u32 next)
{
	if (connection->is_known[hook] && !is_later(next, connection->next_data[hook]))
		return;
	connection->next_data[hook] = next;
	connection->is_known[hook] = 1;
}

/* Incoming data that this host already acknowledged was sent on two subflows. */
static __always_inline void record_data_acknowledgment(struct plait_flow_dir *sent,
						       const struct plait_packet *packet)
{
	__u32 acknowledgment = packet->data_acknowledgment;
	struct plait_connection *connection;

	if (packet->hook != PLAIT_EGRESS || !packet->token || sent->data_acknowledgment == acknowledgment)
		return;
	sent->data_acknowledgment = acknowledgment;
	connection = connection_of(packet);
	if (connection)
		advance(connection, PLAIT_INGRESS, acknowledgment);
}

/* How many of the last `bytes` of this packet, which end at data sequence number `end`, are new to its
 * connection. */
static __always_inline __u32 new_to_connection(const struct plait_packet *packet, __u32 end, __u32 bytes)
{
	struct plait_connection *connection = connection_of(packet);
	__u32 hook = packet->hook & 1, fresh = bytes;

	if (!connection)
		return bytes;
	if (connection->is_known[hook]) {
		__s32 beyond = end - connection->next_data[hook];

		fresh = beyond <= 0 ? 0 : (__u32)beyond < bytes ? (__u32)beyond : bytes;
	}
	if (hook == PLAIT_EGRESS)
		advance(connection, hook, end);
	__sync_fetch_and_add(&connection->bytes[hook], fresh);
	return fresh;
}

/* Counts the last `fresh` bytes of this packet, which are new to its subflow, as new to the connection or as
 * reinjected. */
static __always_inline void record_data(struct plait_flow_dir *sent, const struct plait_packet *packet,
					__u32 fresh)
{
	/* GSO segments share one mapping. */
	__u32 into = packet->sequence - sent->initial_sequence - packet->mapping_sequence;
	struct plait_connection *connection;

	if (!packet->token)
		return;
	if (sent->syn_seen && packet->kinds & PLAIT_HAS_MAPPING && into < packet->data_length) {
		sent->reinjected_bytes +=
		    fresh - new_to_connection(packet, packet->data_sequence + into + packet->payload, fresh);
		return;
	}
	/* Without a mapping, its place in the connection is unknown. */
	connection = connection_of(packet);
	if (connection)
		__sync_fetch_and_add(&connection->bytes[packet->hook & 1], fresh);
}

static __always_inline void record_sent(struct plait_flow *flow, struct plait_flow_dir *sent,
					struct plait_packet *packet)
{
	__u32 end = end_of(packet), beyond = end - sent->next_sequence, fresh;

	if (!packet->payload)
		return;
	if (sent->last_interface && !is_later(end, sent->next_sequence)) {
		sent->retransmitted_packets++;
		sent->retransmitted_bytes += packet->payload;
		/* A retransmission makes the sample ambiguous (Karn). */
		if (packet->hook == PLAIT_EGRESS)
			flow->sample_pending = 0;
		return;
	}
	fresh = sent->last_interface && beyond < packet->payload ? beyond : packet->payload;
	if (fresh < packet->payload) {
		sent->retransmitted_packets++;
		sent->retransmitted_bytes += packet->payload - fresh;
	}
	if (packet->hook == PLAIT_EGRESS)
		start_rtt_sample(flow, packet, end);
	record_data(sent, packet, fresh);
}

/* Whether a packet that its sender sent later was seen before, according to the timestamps (RFC 7323 section 5). */
static __always_inline int was_overtaken(const struct plait_flow_dir *sent, const struct plait_packet *packet)
{
	return sent->timestamps[0] && plait_begins_with_timestamps(packet) &&
	       is_later(bpf_ntohl(sent->timestamps[0]), bpf_ntohl(*(const __u32 *)(packet->options + 4)));
}

/* Records the state that its sender repeats in each packet. That of an overtaken packet is outdated, and receivers would
 * discard an injected packet that had it. */
static __always_inline void record_state(const struct plait_flow *flow, struct plait_flow_dir *sent,
					 const struct plait_packet *packet)
{
	int scale = scale_of(flow, packet->hook);

	if (!(packet->kinds & PLAIT_IS_SYN)) {
		if (was_overtaken(sent, packet))
			return;
		sent->offered_window = packet->window;
		if (scale >= 0)
			sent->window = (__u32)packet->window << scale;
	}
	if (plait_begins_with_timestamps(packet))
		*(__u64 *)sent->timestamps = *(const __u64 *)(packet->options + 4);
}

static __always_inline void record(struct plait_flow *flow, struct plait_flow_dir *sent,
				   struct plait_packet *packet)
{
	sent->last_nanoseconds = bpf_ktime_get_coarse_ns();
	record_state(flow, sent, packet);
	if (packet->kinds & PLAIT_HAS_DATA_ACK)
		record_data_acknowledgment(sent, packet);
	record_sent(flow, sent, packet);
}

/* Whether it is a SYN with MP_JOIN, which has the receiver's token (RFC 8684 section 3.2). */
static __always_inline int has_token(const struct plait_packet *packet)
{
	return packet->hook == PLAIT_INGRESS && packet->kinds & PLAIT_HAS_MP_JOIN &&
	       plait_is_first_syn(packet) && packet->option_length[MPTCP_JOIN] == PLAIT_JOIN_OF_SYN;
}

/*
 * Whether this packet was already seen on another interface: one stacked below or above this one (VLANs, bridges,
 * bonds), or the one from which it was redirected. It then has nothing new; it may have been split or merged in
 * between.
 */
static __always_inline int was_seen(const struct plait_flow_dir *sent, const struct plait_packet *packet)
{
	return sent->last_interface && sent->last_interface != packet->interface &&
	       !is_later(end_of(packet), sent->next_sequence) &&
	       !is_later(packet->acknowledgment, sent->acknowledgment);
}

/* Counts a packet on the interface where it is first seen. */
static __always_inline void count_packet_seen(struct plait_flow_dir *sent, const struct plait_packet *packet)
{
	__u32 end = end_of(packet);

	if (!sent->last_interface || (packet->payload && is_later(end, sent->next_sequence)))
		sent->next_sequence = end;
	/* Of an overtaken packet, it is outdated. */
	if (packet->kinds & PLAIT_IS_ACK &&
	    (!sent->acknowledgment || is_later(packet->acknowledgment, sent->acknowledgment)))
		sent->acknowledgment = packet->acknowledgment;
	sent->last_interface = packet->interface;
	sent->packets++;
	sent->bytes += packet->payload;
}

/* Counts for the connection what the subflow carried before its connection was known. */
static __always_inline void credit_connection(const struct plait_flow *flow,
					      const struct plait_packet *packet)
{
	struct plait_connection *connection = connection_of(packet);

	if (!connection)
		return;
	for (int hook = 0; hook < 2; hook++)
		__sync_fetch_and_add(&connection->bytes[hook],
				     flow->dir[hook].bytes - flow->dir[hook].retransmitted_bytes);
}

/* Copies the token between the packet and its subflow. */
static __always_inline void share_token(struct plait_flow *flow, struct plait_packet *packet, __u32 needs)
{
	if (!packet->token) {
		packet->token = flow->token;
	} else if (flow->token != packet->token) {
		flow->token = packet->token;
		if (needs & PLAIT_NEEDS_CONNECTION)
			credit_connection(flow, packet);
	}
}

/* The bytes of the packet's connection, or of its subflow if the connection is unknown. */
static __always_inline __u64 bytes_of_connection(const struct plait_flow *flow,
						 const struct plait_packet *packet)
{
	struct plait_connection *connection = NULL;
	__u32 token = packet->token;

	if (token)
		connection = bpf_map_lookup_elem(&connections, &token);
	if (connection)
		return connection->bytes[PLAIT_INGRESS] + connection->bytes[PLAIT_EGRESS];
	return flow->dir[PLAIT_INGRESS].bytes + flow->dir[PLAIT_EGRESS].bytes;
}

/*
 * Looks up the subflow of a packet as soon as its addresses and ports are known, and reads a word of each cache line
 * that track() is about to use: the processor then waits for memory while it parses the options.
 */
static __always_inline struct plait_flow *fetch_subflow(const struct plait_packet *packet)
{
	struct plait_flow *flow = plait_flow(packet);

	if (flow) {
		(void)*(volatile __u32 *)&flow->flags;
		(void)*(volatile __u64 *)&flow->dir[packet->hook & 1].packets;
	}
	return flow;
}

/* The subflow of a packet, created by the first SYN; NULL if it is not tracked or there is no memory. `flow` is the one
 * that was fetched. */
static __always_inline struct plait_flow *subflow_of(const struct plait_packet *packet,
						     struct plait_flow *flow)
{
	if (!(packet->kinds & PLAIT_IS_MPTCP)) {
		if (!flow || !(packet->kinds & PLAIT_IS_SYN))
			return flow;
		/* A plain TCP connection (RFC 8684 section 3.7) with the addresses of an earlier or requested
		 * MPTCP subflow. */
		bpf_map_delete_elem(&flows, &packet->flow);
		return NULL;
	}
	if (flow && !plait_is_first_syn(packet))
		return flow;
	/* A retransmitted SYN. */
	if (flow && flow->dir[packet->hook & 1].syn_seen &&
	    flow->dir[packet->hook & 1].initial_sequence == packet->sequence)
		return flow;
	return new_flow(packet);
}

/* Updates the packet's subflow, and the packet with the state of the subflow. */
__weak int track(struct plait_packet *packet, struct plait_flow *flow, const struct plait_settings *asked)
{
	struct plait_flow_dir *sent;

	if (!packet || !flow || !asked)
		return 0;
	packet->flow_known = 1;
	/* What plait_checksum() would look up. */
	if (packet->payload)
		packet->checksum = flow->flags & plait_partial_flag(packet->hook) ? PLAIT_CHECKSUM_PARTIAL
										  : PLAIT_CHECKSUM_FULL;
	if (has_token(packet))
		packet->token =
		    plait_option_number(packet, packet->option_at[MPTCP_JOIN] + PLAIT_JOIN_TOKEN_AT, 4);
	share_token(flow, packet, asked->needs);
	if (asked->needs & PLAIT_NEEDS_CONNECTION)
		packet->connection_bytes = bytes_of_connection(flow, packet);
	/* Only on changes: another processor may be using it for the other direction. */
	if (flow->interface != packet->interface)
		flow->interface = packet->interface;
	if (packet->kinds & (PLAIT_IS_FIN | PLAIT_IS_RST))
		flow->flags |= packet->hook == PLAIT_INGRESS ? PLAIT_FLOW_FIN_IN : PLAIT_FLOW_FIN_OUT;
	sent = &flow->dir[packet->hook & 1];
	if (was_seen(sent, packet)) {
		packet->seen_before = 1;
		packet->flow_bytes = subtract(sent->bytes, sent->next_sequence - packet->sequence);
		packet->connection_bytes = subtract(packet->connection_bytes, packet->payload);
		return 0;
	}
	if (packet->kinds & PLAIT_IS_SYN)
		remember_syn(flow, sent, packet);
	if (packet->kinds & (PLAIT_HAS_MP_PRIO | PLAIT_HAS_MP_JOIN))
		remember_backup(flow, packet);
	if (packet->kinds & PLAIT_HAS_ADD_ADDR_ECHO)
		cancel_echoed_announcement(flow, packet);
	packet->flow_bytes = sent->bytes;
	sample_rtt(flow, packet);
	if (asked->needs & PLAIT_NEEDS_RECORD)
		record(flow, sent, packet);
	count_packet_seen(sent, packet);
	if (packet->hook == PLAIT_EGRESS && flow->redirected)
		flow->redirected = 0;
	return 0;
}

#endif
