/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The contract between the policy engine's BPF programs and its Rust, whose side plait-bpf-build generates
 * from this file. Numbers are in host order unless stated otherwise.
 */
#ifndef PLAIT_POLICY_INTF_H
#define PLAIT_POLICY_INTF_H

#include <linux/types.h>

enum plait_limit {
	/* TCP's header has room for 40 bytes of options (RFC 9293 section 3.1). */
	PLAIT_MAX_OPTIONS = 40,
	/* Chains of one hook, over all policies, that can match a packet. */
	PLAIT_MAX_CHAINS = 64,
	/* Actors per chain. */
	PLAIT_MAX_ACTORS = 8,
	/* Custom selectors and actors loaded at a time. */
	PLAIT_MAX_CUSTOM = 24,
	/* Parameters of each. */
	PLAIT_CUSTOM_PARAMETERS = 4,
	/* Entries of the map of chains: many more than chains, so that an entry is not reused while a packet is
	 * still processed with it. */
	PLAIT_CHAIN_SLOTS = 4096,
	/* Entries of the map of counters. */
	PLAIT_COUNTER_SLOTS = 8192,
	/* Entries of the map of leases; the first is unused. */
	PLAIT_LEASES = 64,
	/* Tracked subflows; beyond that, the least recently used one is evicted. */
	PLAIT_FLOWS = 65536,
	/* Tracked connections. */
	PLAIT_CONNECTIONS = 16384,
	/* Size of the event buffer, in bytes. */
	PLAIT_EVENT_BYTES = 1 << 20,
};

enum plait_hook {
	PLAIT_INGRESS = 0,
	PLAIT_EGRESS = 1,
};

/* Entries of the maps of programs called for a packet; they store their results in struct plait_packet. */
enum plait_step {
	/* Finds the chains whose selectors match: generated for each set of policies. */
	PLAIT_MATCH_INGRESS = 0,
	PLAIT_MATCH_EGRESS = 1,
	/* PLAIT_MAX_CUSTOM custom selectors, followed by as many actors. */
	PLAIT_CUSTOM_SELECTORS = 8,
	PLAIT_CUSTOM_ACTORS = PLAIT_CUSTOM_SELECTORS + PLAIT_MAX_CUSTOM,
	PLAIT_STEPS = PLAIT_CUSTOM_ACTORS + PLAIT_MAX_CUSTOM,
};

/* Bits of plait_packet.kinds: the properties of a packet. The lowest are TCP's flags at their positions (RFC
 * 9293 section 3.1), the highest are MPTCP options by subtype. */
enum plait_kind {
	PLAIT_IS_FIN = 1 << 0,
	PLAIT_IS_SYN = 1 << 1,
	PLAIT_IS_RST = 1 << 2,
	PLAIT_IS_ACK = 1 << 4,
	/* Has payload. */
	PLAIT_IS_DATA = 1 << 6,
	/* Only an acknowledgment: no payload, SYN, FIN or RST. May carry options. */
	PLAIT_IS_PURE_ACK = 1 << 7,
	PLAIT_IS_IPV6 = 1 << 8,
	/* Has an MPTCP option. */
	PLAIT_IS_MPTCP = 1 << 9,
	/* DSS with a data sequence mapping. */
	PLAIT_HAS_MAPPING = 1 << 10,
	PLAIT_HAS_DATA_ACK = 1 << 11,
	PLAIT_HAS_DATA_FIN = 1 << 12,
	PLAIT_HAS_ADD_ADDR_ECHO = 1 << 13,
	PLAIT_HAS_MP_CAPABLE = 1 << 16,
	PLAIT_HAS_MP_JOIN = 1 << 17,
	PLAIT_HAS_DSS = 1 << 18,
	/* Not its echo. */
	PLAIT_HAS_ADD_ADDR = 1 << 19,
	PLAIT_HAS_REMOVE_ADDR = 1 << 20,
	PLAIT_HAS_MP_PRIO = 1 << 21,
	PLAIT_HAS_MP_FAIL = 1 << 22,
	PLAIT_HAS_MP_FASTCLOSE = 1 << 23,
	PLAIT_HAS_MP_TCPRST = 1 << 24,
};

/* Identifies a subflow relative to the hook: packets at egress are sent from `local`. IPv4 addresses are mapped
 * (::ffff:0:0/96). */
struct plait_flow_key {
	/* Most significant half first. */
	__u64 local[2];
	__u64 remote[2];
	__u16 local_port;
	__u16 remote_port;
	/* Always zero. */
	__u32 padding;
};
_Static_assert(sizeof(struct plait_flow_key) == 40, "no hidden padding");

/* A parsed packet. In per-CPU memory while the packet is processed. */
struct plait_packet {
	/* Most significant half first; IPv4 addresses are mapped (::ffff:0:0/96). */
	__u64 source[2];
	__u64 destination[2];
	/* Bits of enum plait_kind. */
	__u64 kinds;
	/* Of the DSS mapping; the lower 32 bits if the packet has only those. */
	__u64 data_sequence;
	__u64 data_acknowledgment;
	/* Payload of the subflow in this direction before this packet, if a selector needs it. */
	__u64 flow_bytes;
	/* Payload of the connection in both directions before this packet, if a selector needs it. */
	__u64 connection_bytes;
	/* Custom selectors that matched: bit n is entry PLAIT_CUSTOM_SELECTORS + n. */
	__u64 custom_matched;
	/* CLOCK_MONOTONIC when plait_now() was first called; 0: not yet. */
	__u64 nanoseconds;
	/* Bits of the chains with a hit, in the order of `chains`. */
	__u64 chains_hit;
	struct plait_flow_key flow;
	__u32 sequence;
	__u32 acknowledgment;
	/* This host's token of the connection; 0: unknown. */
	__u32 token;
	__u32 interface;
	/* Of the skb; 0 at XDP. */
	__u32 mark;
	/* Bytes of payload, of all GSO segments. */
	__u32 payload;
	/* Size of the packet from the IP header on. */
	__u32 ip_bytes;
	/* Output interface, if the verdict is PLAIT_REDIRECT. */
	__u32 redirect_to;
	/* Relative subflow sequence number of the DSS mapping (RFC 8684 section 3.3.1). */
	__u32 mapping_sequence;
	__u16 source_port;
	__u16 destination_port;
	/* As in the header, unscaled. */
	__u16 window;
	/* Of the DSS mapping. */
	__u16 data_length;
	/* Offsets of the headers in the packet, in bytes. */
	__u16 ip_at;
	__u16 tcp_at;
	/* The MSS option of a SYN (RFC 9293 section 3.7.1); 0: none. */
	__u16 mss;
	/* Length of the TCP options in bytes. */
	__u8 options_length;
	/* The window scale of a SYN (RFC 7323); 255: none. */
	__u8 window_scale;
	/* enum plait_hook. */
	__u8 hook;
	/* Current position when iterating over the options. */
	__u8 at;
	/* The subflow is tracked. */
	__u8 flow_known;
	/* Chains that matched. */
	__u8 chain_count;
	/* enum plait_verdict. */
	__u8 verdict;
	/* enum plait_checksum. */
	__u8 checksum;
	/* The packet was modified. */
	__u8 changed;
	/* The result of a custom selector (not 0: it matches) or actor (enum plait_outcome). */
	__u8 custom_result;
	/* It was already seen on another interface. */
	__u8 seen_before;
	/* The running custom selector or actor: n of entry PLAIT_CUSTOM_SELECTORS + n or PLAIT_CUSTOM_ACTORS + n. */
	__u8 custom_slot;
	__u8 padding[2];
	/* Offset in `options`, by MPTCP subtype; 255: not present. */
	__u8 option_at[16];
	/* Length in bytes, by MPTCP subtype. */
	__u8 option_length[16];
	/* Zero after options_length; longer than the maximum, so that eight bytes can be read at any offset
	 * below 64. */
	__u8 options[72];
	/* Slots of the chains that matched, by priority. Last, as most packets have none. */
	__u16 chains[PLAIT_MAX_CHAINS];
};
_Static_assert(sizeof(struct plait_packet) == 432, "no hidden padding");

enum plait_verdict {
	PLAIT_PASS = 0,
	PLAIT_DROP = 1,
	/* To the interface `redirect_to`. */
	PLAIT_REDIRECT = 2,
	/* Send it back to where it came from, as modified. */
	PLAIT_REFLECT = 3,
};

/* State of the TCP checksum. */
enum plait_checksum {
	PLAIT_CHECKSUM_UNKNOWN = 0,
	PLAIT_CHECKSUM_FULL = 1,
	/* Contains only the pseudo header's sum, to be completed on transmission (CHECKSUM_PARTIAL). */
	PLAIT_CHECKSUM_PARTIAL = 2,
	PLAIT_CHECKSUM_WRONG = 3,
};

enum plait_actor_kind {
	PLAIT_ACTOR_NONE = 0,
	PLAIT_ACTOR_DROP,
	PLAIT_ACTOR_MARK,
	PLAIT_ACTOR_REDIRECT,
	PLAIT_ACTOR_RATE_LIMIT,
	PLAIT_ACTOR_PACE,
	PLAIT_ACTOR_SET_BACKUP,
	PLAIT_ACTOR_CLEAR_BACKUP,
	PLAIT_ACTOR_BLOCK_SUBFLOW,
	PLAIT_ACTOR_ADD_SUBFLOW,
	PLAIT_ACTOR_DENY_JOIN,
	PLAIT_ACTOR_FALL_BACK,
	PLAIT_ACTOR_CAPABLE_FLAG,
	PLAIT_ACTOR_GET_CONNECTION,
	PLAIT_ACTOR_GET_SUBFLOW,
	PLAIT_ACTOR_RECORD,
	PLAIT_ACTOR_CUSTOM,
	PLAIT_ACTOR_KINDS,
};

struct plait_actor {
	/* enum plait_actor_kind. */
	__u32 kind;
	/* Entry of the map of counters. */
	__u32 counter;
	/* Their meaning depends on the kind. */
	__u64 parameters[4];
};
_Static_assert(sizeof(struct plait_actor) == 40, "no hidden padding");

struct plait_chain {
	__u32 actor_count;
	/* Entry of the map of counters. */
	__u32 counter;
	/* Entry of the map of leases, which has the time (CLOCK_MONOTONIC) when the chain expires; 0: never. */
	__u32 lease;
	__u32 padding;
	struct plait_actor actors[PLAIT_MAX_ACTORS];
};
_Static_assert(sizeof(struct plait_chain) == 336, "no hidden padding");

/* Of a custom selector or actor, by its n as in plait_packet.custom_slot; 0 where there is none. */
struct plait_parameters {
	__u64 numbers[PLAIT_CUSTOM_PARAMETERS];
};

/* State that custom programs store for a subflow or a connection. */
struct plait_storage {
	__u64 words[8];
};

/* Counters of a chain or an actor, per CPU. */
struct plait_counter {
	/* Packets that matched the chain, or that the actor was called for. */
	__u64 packets;
	/* Their bytes from the IP header on. */
	__u64 bytes;
	/* Packets for which an actor took effect. */
	__u64 hits;
	/* Packets for which an actor failed. */
	__u64 errors;
	/* Time spent, if `plait_settings.timing` is set. */
	__u64 nanoseconds;
};

/* Reasons for skipping a packet: entries of the map `skipped`, per CPU. */
enum plait_skip_reason {
	PLAIT_SKIPPED_FRAGMENT = 0,
	/* An IPv6 packet with extension headers. */
	PLAIT_SKIPPED_EXTENSION,
	/* Headers that are truncated or inconsistent. */
	PLAIT_SKIPPED_MALFORMED,
	/* Options that are truncated, too short, or extend beyond the header. */
	PLAIT_SKIPPED_BAD_OPTIONS,
	PLAIT_SKIPPED_WRONG_CHECKSUM,
	/* No memory for another subflow. */
	PLAIT_SKIPPED_NO_MEMORY,
	/* An event was lost, as the buffer was full. */
	PLAIT_LOST_EVENT,
	/* Not reasons, but counted here: subflows and connections tracked so far. */
	PLAIT_FLOWS_SEEN,
	PLAIT_CONNECTIONS_SEEN,
	PLAIT_SKIP_COUNTERS,
};

/* Bits of plait_settings.needs: the state that the loaded chains need. */
enum plait_need {
	/* Tracking of subflows, with their window scales. */
	PLAIT_NEEDS_FLOW = 1 << 0,
	/* Also the tokens of their connections. */
	PLAIT_NEEDS_TOKEN = 1 << 1,
	/* Also their bytes, round-trip times, retransmissions and reinjections. */
	PLAIT_NEEDS_RECORD = 1 << 2,
	/* Also the bytes of their connections. */
	PLAIT_NEEDS_CONNECTION = 1 << 3,
};

/* Settings that the programs read; written by Rust at any time. */
struct plait_settings {
	/* Bits of enum plait_need. */
	__u32 needs;
	/* Not 0: chains and actors are timed. */
	__u32 timing;
	/* Not 0: an event is emitted for each packet that matches. */
	__u32 tracing;
	/* The custom selectors of each hook: bit n is entry PLAIT_CUSTOM_SELECTORS + n. */
	__u32 custom_selectors[2];
	/* The generation of the policies loaded last. */
	__u32 generation;
};
_Static_assert(sizeof(struct plait_settings) == 24, "no hidden padding");

/* How far the sender of the other direction may send at a rate, enforced by the windows of this direction. */
struct plait_allowance {
	/* When it was last extended (CLOCK_MONOTONIC); 0: never. */
	__u64 nanoseconds;
	/* Bytes per second. */
	__u64 rate;
	/* The sequence number after the last that may be sent. */
	__u32 edge;
	/* The acknowledgment at which it was last extended. */
	__u32 acknowledgment;
	/* The generation of the policies that set the rate. */
	__u32 generation;
	__u32 padding;
};
_Static_assert(sizeof(struct plait_allowance) == 32, "no hidden padding");

/* The unit in which processors read memory, in bytes. */
#define PLAIT_CACHE_LINE 64

/* One direction of a subflow: two lines of the cache, of which most packets need only the first. */
struct plait_flow_dir {
	__u64 packets;
	/* Payload, retransmissions included. */
	__u64 bytes;
	/* Time of the last packet (CLOCK_MONOTONIC_COARSE). */
	__u64 last_nanoseconds;
	/* The sequence number after all payload seen so far. */
	__u32 next_sequence;
	/* The highest acknowledgment; 0: none yet. */
	__u32 acknowledgment;
	/* The interface on which a packet was last seen first; 0: none yet. */
	__u32 last_interface;
	/* The last window, scaled; 0: the scale is unknown. */
	__u32 window;
	/* Of the SYN; 0: not seen yet. */
	__u32 initial_sequence;
	/* The lower half of the last data acknowledgment. */
	__u32 data_acknowledgment;
	/* The RFC 7323 timestamps sent last, in network order. */
	__u32 timestamps[2];
	/* The last window as forwarded, unscaled. */
	__u16 offered_window;
	/* The window scale in this direction's SYN; 255: none or not seen. */
	__u8 offered_scale;
	/* The SYN of this direction was seen. */
	__u8 syn_seen;
	/* The address id of MP_JOIN's SYN; 0 for the initial subflow. */
	__u8 address_id;
	__u8 padding[3];
	/* From here on what few packets need. */
	__u64 retransmitted_packets;
	/* Payload that an earlier packet of this subflow carried. */
	__u64 retransmitted_bytes;
	/* Payload new to this subflow that was not new to the connection: outgoing, already sent on another
	 * subflow (RFC 8684 section 3.3.6); incoming, already acknowledged at the data level. */
	__u64 reinjected_bytes;
	struct plait_allowance allowance;
	__u8 reserved[8];
};
_Static_assert(sizeof(struct plait_flow_dir) == 2 * PLAIT_CACHE_LINE, "no hidden padding");

/* A subflow, as seen by the hooks of this host. What every packet needs comes first: the first 40 bytes share a cache
 * line with the end of the key (flows_map.h), and each direction begins another. */
struct plait_flow {
	/* The RTT sample in progress: when its packet was sent, the sequence number that ends it, and whether
	 * there is one. */
	__u64 sample_nanoseconds;
	__u32 sample_sequence;
	__u8 sample_pending;
	/* The last outgoing packet was redirected. */
	__u8 redirected;
	/* By enum plait_hook: the scale of windows in packets after the SYN; 255: unknown. */
	__u8 scale[2];
	/* In microseconds, smoothed as in RFC 6298; 0: not measured yet. */
	__u32 rtt;
	__u32 rtt_variance;
	__u32 rtt_min;
	/* This host's token of the connection; 0: unknown. */
	__u32 token;
	__u32 interface;
	/* Bits of enum plait_flow_flag. */
	__u32 flags;
	/* By enum plait_hook. */
	struct plait_flow_dir dir[2];
	/* Rate set by the actor `pace`, in bytes per second; 0: none. */
	__u64 pace;
	/* When it was set (CLOCK_MONOTONIC). */
	__u64 pace_nanoseconds;
	/* The withheld ADD_ADDR of each direction, and its length. */
	__u8 withheld[2][32];
	__u8 withheld_length[2];
	/* Length of the announcement to be added to the next pure acknowledgment of each direction. */
	__u8 pending_length[2];
	/* The MSS option in the SYN of each direction; 0: none or not seen. */
	__u16 mss[2];
	__u8 pending[2][32];
	/* When MP_PRIO was last added in each direction (CLOCK_MONOTONIC); `prioritized` counts how often since
	 * it changed. */
	__u64 prioritized_nanoseconds[2];
	/* When an announcement was last added or requested; `announced` counts how often. */
	__u64 announced_nanoseconds[2];
	/* By enum plait_hook: a bit for each address id announced by add_subflow. */
	__u64 announced_ids[2][4];
	__u8 prioritized[2];
	__u8 announced[2];
	__u8 padding[4];
};
_Static_assert(sizeof(struct plait_flow) == 552, "no hidden padding");

/* What the socket of a subflow knows of it. */
struct plait_socket {
	struct plait_flow_key key;
	/* In microseconds. */
	__u32 rtt;
	__u32 rtt_variance;
	__u16 mss;
	/* By enum plait_hook: the window scale offered in this direction; 255: none. */
	__u8 scale[2];
	/* By enum plait_hook: the backup flag last sent in this direction. */
	__u8 backup[2];
	__u8 padding[2];
};
_Static_assert(sizeof(struct plait_socket) == 56, "no hidden padding");

enum plait_flow_flag {
	/* Started by MP_CAPABLE. */
	PLAIT_FLOW_INITIAL = 1 << 0,
	PLAIT_FLOW_JOINED = 1 << 1,
	/* The backup flag last sent in each direction: the sender requests that the peer not send on this
	 * subflow. */
	PLAIT_FLOW_BACKUP_IN = 1 << 2,
	PLAIT_FLOW_BACKUP_OUT = 1 << 3,
	/* Packets of each direction have PLAIT_CHECKSUM_PARTIAL. */
	PLAIT_FLOW_PARTIAL_IN = 1 << 4,
	PLAIT_FLOW_PARTIAL_OUT = 1 << 5,
	/* FIN or RST was seen in each direction. */
	PLAIT_FLOW_FIN_IN = 1 << 6,
	PLAIT_FLOW_FIN_OUT = 1 << 7,
	/* MP_CAPABLE arrived with the flag of the actor capable_flag. */
	PLAIT_FLOW_CAPABLE_FLAG = 1 << 8,
	/* Reported by the actor get_connection, without or with keys. */
	PLAIT_FLOW_REPORTED = 1 << 9,
	PLAIT_FLOW_REPORTED_KEYS = 1 << 10,
};

/* State shared by the subflows of a connection. */
struct plait_connection {
	/* By enum plait_hook: payload new to the connection. */
	__u64 bytes[2];
	/* By enum plait_hook: the lower half of the next new data sequence number. Outgoing: after everything
	 * sent; incoming: as acknowledged by this host. */
	__u32 next_data[2];
	/* By enum plait_hook: next_data is valid. */
	__u8 is_known[2];
	__u8 padding[6];
};
_Static_assert(sizeof(struct plait_connection) == 32, "no hidden padding");

enum plait_event_kind {
	/* A packet matched; shown by `plait policy trace`. */
	PLAIT_EVENT_PACKET = 1,
	/* The actor get_connection saw MP_CAPABLE. */
	PLAIT_EVENT_CONNECTION,
	/* The actor get_subflow saw MP_JOIN. */
	PLAIT_EVENT_SUBFLOW,
	/* An ADD_ADDR was withheld. */
	PLAIT_EVENT_WITHHELD,
	/* Emitted by a custom program. */
	PLAIT_EVENT_CUSTOM,
};

/**
 * An event, in chronological order per CPU.
 * <div rustbindgen nodebug></div>
 */
struct plait_event {
	/* By CLOCK_MONOTONIC. */
	__u64 nanoseconds;
	/* enum plait_event_kind. */
	__u32 kind;
	__u32 token;
	struct plait_flow_key flow;
	__u64 kinds;
	__u64 data_sequence;
	/* Keys of the initiator and the responder, in PLAIT_EVENT_CONNECTION if requested; otherwise zero. */
	__u64 keys[2];
	__u64 chains_hit;
	__u32 sequence;
	__u32 acknowledgment;
	__u32 payload;
	__u32 interface;
	/* Emitted by a custom program. */
	__u64 values[2];
	__u8 hook;
	__u8 verdict;
	__u8 chain_count;
	__u8 changed;
	__u8 address_id;
	/* The backup flag of MP_JOIN. */
	__u8 backup;
	__u8 padding[2];
	/* Counters of the first 16 chains that matched. */
	__u16 chains[16];
	/* The withheld option. */
	__u8 option[32];
};
_Static_assert(sizeof(struct plait_event) == 200, "no hidden padding");

#endif
