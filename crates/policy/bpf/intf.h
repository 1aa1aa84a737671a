/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the policy engine's BPF programs and its Rust exchange; the Rust side is generated from this file by
 * scripts/bindings. Numbers are in host order unless they say otherwise.
 */
#ifndef PLAIT_POLICY_INTF_H
#define PLAIT_POLICY_INTF_H

#include <linux/types.h>

enum plait_limit {
	/* TCP's header has room for 40 bytes of options (RFC 9293 section 3.1). */
	PLAIT_MAX_OPTIONS = 40,
	/* Chains of one hook, of all policies together, that may match one packet. */
	PLAIT_MAX_CHAINS = 64,
	/* Actors of a chain. */
	PLAIT_MAX_ACTORS = 8,
	/* Selectors and actors of the user's own that are loaded at a time. */
	PLAIT_MAX_CUSTOM = 24,
	/* Entries of the map of chains: many more than chains, so that one is not used again before every
	 * packet has left it. */
	PLAIT_CHAIN_SLOTS = 4096,
	/* Entries of the map of counters. */
	PLAIT_COUNTER_SLOTS = 8192,
	/* Entries of the map of leases; the first is nobody's. */
	PLAIT_LEASES = 64,
	/* Subflows remembered; of more, the one unused for longest is forgotten. */
	PLAIT_FLOWS = 65536,
	/* Connections remembered. */
	PLAIT_CONNECTIONS = 16384,
	/* Events that wait to be read, in bytes. */
	PLAIT_EVENT_BYTES = 1 << 20,
};

enum plait_hook {
	PLAIT_INGRESS = 0,
	PLAIT_EGRESS = 1,
};

/* Entries of the maps of programs that are called for a packet; they answer in its struct plait_packet. */
enum plait_step {
	/* Finds the chains whose selectors match: written anew for every policy. */
	PLAIT_MATCH_INGRESS = 0,
	PLAIT_MATCH_EGRESS = 1,
	/* The first of PLAIT_MAX_CUSTOM selectors of the user's own, and then as many actors. */
	PLAIT_CUSTOM_SELECTORS = 8,
	PLAIT_CUSTOM_ACTORS = PLAIT_CUSTOM_SELECTORS + PLAIT_MAX_CUSTOM,
	PLAIT_STEPS = PLAIT_CUSTOM_ACTORS + PLAIT_MAX_CUSTOM,
};

/* Bits of plait_packet.kinds: what a packet is and carries. The first are TCP's flags in their places (RFC
 * 9293 section 3.1), the last the options of MPTCP by subtype. */
enum plait_kind {
	PLAIT_IS_FIN = 1 << 0,
	PLAIT_IS_SYN = 1 << 1,
	PLAIT_IS_RST = 1 << 2,
	PLAIT_IS_ACK = 1 << 4,
	/* Has payload. */
	PLAIT_IS_DATA = 1 << 6,
	/* Acknowledges and does nothing else: no payload, SYN, FIN or RST. It may carry options. */
	PLAIT_IS_PURE_ACK = 1 << 7,
	PLAIT_IS_IPV6 = 1 << 8,
	/* Has an option of MPTCP; without, it belongs to a subflow that is known. */
	PLAIT_IS_MPTCP = 1 << 9,
	/* DSS with a mapping of data. */
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

/* Names a subflow from where the hook is: what is sent by egress comes from `local`. IPv4 addresses are
 * mapped
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

/* What is known of a packet, found out once. Lives in the memory of its processor while the packet is worked
 * on. */
struct plait_packet {
	/* Most significant half first; IPv4 addresses are mapped (::ffff:0:0/96). */
	__u64 source[2];
	__u64 destination[2];
	/* Bits of enum plait_kind. */
	__u64 kinds;
	/* Of the DSS mapping; its lower 32 bits if the packet has no more. */
	__u64 data_sequence;
	__u64 data_acknowledgment;
	/* Payload of the subflow in this direction before this packet, if a selector asks for it. */
	__u64 flow_bytes;
	/* Payload of the connection in both directions before this packet, if a selector asks for it. */
	__u64 connection_bytes;
	/* The user's own selectors that matched: bit n is entry PLAIT_CUSTOM_SELECTORS + n. */
	__u64 custom_matched;
	/* When somebody asked for the time first, by CLOCK_MONOTONIC; 0: nobody has yet. */
	__u64 nanoseconds;
	/* Bit of the chains whose actors hit, in the order of `chains`. */
	__u64 chains_hit;
	struct plait_flow_key flow;
	__u32 sequence;
	__u32 acknowledgment;
	/* Of the connection, at this host; 0: not known. */
	__u32 token;
	__u32 interface;
	/* Of the skb; 0 where there is none. */
	__u32 mark;
	/* Bytes of payload, of all segments that are sent as one. */
	__u32 payload;
	/* Of the whole packet, from the IP header on. */
	__u32 ip_bytes;
	/* Where the packet shall leave, when its verdict is PLAIT_REDIRECT. */
	__u32 redirect_to;
	/* Where the DSS mapping begins in the subflow, counted from its SYN (RFC 8684 section 3.3.1). */
	__u32 mapping_sequence;
	__u16 source_port;
	__u16 destination_port;
	/* As the packet says it, not scaled. */
	__u16 window;
	/* Of the DSS mapping. */
	__u16 data_length;
	/* Where headers begin in the packet, in bytes. */
	__u16 ip_at;
	__u16 tcp_at;
	/* The largest segment that a SYN asks for (RFC 9293 section 3.7.1); 0: none. */
	__u16 mss;
	/* Bytes of options behind TCP's header. */
	__u8 options_length;
	/* The shift count of RFC 7323 in a SYN; 255: none. */
	__u8 window_scale;
	/* enum plait_hook. */
	__u8 hook;
	/* Position of the walk through the options. */
	__u8 at;
	/* The subflow is remembered. */
	__u8 flow_known;
	/* Chains that matched. */
	__u8 chain_count;
	/* enum plait_verdict. */
	__u8 verdict;
	/* enum plait_checksum. */
	__u8 checksum;
	/* Something in the header was changed. */
	__u8 changed;
	/* What a selector or actor of the user's own answers: whether the packet is of its kind, or enum
	 * plait_outcome. */
	__u8 custom_result;
	/* It has passed by another interface already. */
	__u8 seen_before;
	__u8 padding[3];
	/* By the option's subtype: where it begins in `options`; 255: it is not there. */
	__u8 option_at[16];
	/* By the option's subtype: its length in bytes. */
	__u8 option_length[16];
	/* Zero behind options_length; longer than they can be, so that eight bytes may be read from any place
	 * below 64. */
	__u8 options[72];
	/* Slots of the chains that matched, by priority. Most packets have none, so they come last. */
	__u16 chains[PLAIT_MAX_CHAINS];
};
_Static_assert(sizeof(struct plait_packet) == 432, "no hidden padding");

enum plait_verdict {
	PLAIT_PASS = 0,
	PLAIT_DROP = 1,
	/* To the interface `redirect_to`. */
	PLAIT_REDIRECT = 2,
	/* Back to where it came from, as it is now. */
	PLAIT_REFLECT = 3,
};

/* What the checksum of TCP holds. */
enum plait_checksum {
	PLAIT_CHECKSUM_UNKNOWN = 0,
	PLAIT_CHECKSUM_FULL = 1,
	/* Only the sum of the pseudo header: who sends it on a wire completes it (CHECKSUM_PARTIAL). */
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
	/* Their meaning is the kind's. */
	__u64 parameters[4];
};
_Static_assert(sizeof(struct plait_actor) == 40, "no hidden padding");

struct plait_chain {
	__u32 actor_count;
	/* Entry of the map of counters. */
	__u32 counter;
	/* Entry of the map of leases, the time (CLOCK_MONOTONIC) from which on the chain does nothing; 0: it
	 * has none. */
	__u32 lease;
	__u32 padding;
	struct plait_actor actors[PLAIT_MAX_ACTORS];
};
_Static_assert(sizeof(struct plait_chain) == 336, "no hidden padding");

/* Of a chain or an actor, per processor. */
struct plait_counter {
	/* Packets that matched, or that the actor was asked for. */
	__u64 packets;
	/* Their bytes from the IP header on. */
	__u64 bytes;
	/* Those with which an actor did what it is for. */
	__u64 hits;
	/* Those with which an actor could not, though it should. */
	__u64 errors;
	/* Time spent, if `plait_settings.timing` asks for it. */
	__u64 nanoseconds;
};

/* Packets that were left alone, by the reason: entries of the map `skipped`, per processor. */
enum plait_skip_reason {
	PLAIT_SKIPPED_FRAGMENT = 0,
	/* An IPv6 packet with extension headers. */
	PLAIT_SKIPPED_EXTENSION,
	/* Headers that end too early or contradict each other. */
	PLAIT_SKIPPED_MALFORMED,
	/* Options that end too early, are too short, or reach beyond the header. */
	PLAIT_SKIPPED_BAD_OPTIONS,
	PLAIT_SKIPPED_WRONG_CHECKSUM,
	/* No room for a subflow in the map of subflows. */
	PLAIT_SKIPPED_NO_MEMORY,
	/* An event that nobody read in time. */
	PLAIT_LOST_EVENT,
	/* Not left alone, but counted here: subflows and connections that became known. */
	PLAIT_FLOWS_SEEN,
	PLAIT_CONNECTIONS_SEEN,
	PLAIT_SKIP_COUNTERS,
};

/* Bits of plait_settings.needs: what of the packets' past the loaded chains ask for. */
enum plait_need {
	/* Subflows are remembered, with their window scales. */
	PLAIT_NEEDS_FLOW = 1 << 0,
	/* Their connections' tokens as well. */
	PLAIT_NEEDS_TOKEN = 1 << 1,
	/* Their bytes, round-trip times, retransmissions and reinjections as well. */
	PLAIT_NEEDS_RECORD = 1 << 2,
	/* What their connections have carried as well. */
	PLAIT_NEEDS_CONNECTION = 1 << 3,
};

/* What the programs ask while they run; written by Rust at any time. */
struct plait_settings {
	/* Bits of enum plait_need. */
	__u32 needs;
	/* Not 0: chains and actors are timed. */
	__u32 timing;
	/* Not 0: packets that match are told as events. */
	__u32 tracing;
	/* The user's own selectors of each hook: bit n is entry PLAIT_CUSTOM_SELECTORS + n. */
	__u32 custom_selectors[2];
	/* The generation of the policy that was loaded last. */
	__u32 generation;
};
_Static_assert(sizeof(struct plait_settings) == 24, "no hidden padding");

/* One direction of a subflow. */
struct plait_flow_dir {
	__u64 packets;
	/* Payload, retransmissions included. */
	__u64 bytes;
	/* Behind all payload that was seen. */
	__u32 next_sequence;
	/* The last acknowledgment. */
	__u32 acknowledgment;
	/* Where a packet passed last that had not passed anywhere else; 0: none has. */
	__u32 last_interface;
	/* The last window, scaled; 0: the scale is not known. */
	__u32 window;
	__u64 retransmitted_packets;
	/* Of payload that an earlier packet of this subflow had. */
	__u64 retransmitted_bytes;
	/* Of payload new to this subflow: of what goes out, that which another subflow had carried before
	 * (RFC 8684 section 3.3.6); of what comes in, that which this host had already acknowledged to the
	 * connection. */
	__u64 reinjected_bytes;
	/* Of the last packet, by CLOCK_MONOTONIC, some milliseconds less than exact. */
	__u64 last_nanoseconds;
	/* Of the SYN; 0 until it is seen. */
	__u32 initial_sequence;
	/* The lower half of the last data acknowledgment. */
	__u32 data_acknowledgment;
	/* The last timestamps of RFC 7323, as they stand in the packet (network order). */
	__u32 timestamps[2];
	/* The last window as it went on from here, not scaled. */
	__u16 offered_window;
	/* The shift count that this side's SYN offered; 255: none or not seen. */
	__u8 offered_scale;
	/* The SYN of this direction was seen. */
	__u8 syn_seen;
	/* The address id of MP_JOIN's SYN; 0 for the initial subflow. */
	__u8 address_id;
	__u8 padding[3];
};
_Static_assert(sizeof(struct plait_flow_dir) == 88, "no hidden padding");

/* How far the sender of the other direction may go by a rate: what the windows of this direction say. */
struct plait_allowance {
	/* Up to when it has been extended, by CLOCK_MONOTONIC; 0: never. */
	__u64 nanoseconds;
	/* Bytes per second. */
	__u64 rate;
	/* The sequence number behind the last that may be sent. */
	__u32 edge;
	/* The acknowledgment at which it was extended last. */
	__u32 acknowledgment;
	/* The generation of the policy that says so. */
	__u32 generation;
	__u32 padding;
};
_Static_assert(sizeof(struct plait_allowance) == 32, "no hidden padding");

/* A subflow, as the hooks of this host see it. */
struct plait_flow {
	/* By enum plait_hook: what came in, what went out. */
	struct plait_flow_dir dir[2];
	/* The last of a direction whose acknowledgment is awaited, when it was sent, and whether it is
	 * awaited. */
	__u64 sample_nanoseconds;
	__u32 sample_sequence;
	__u32 sample_pending;
	/* Of packets sent here and acknowledged by the peer, in microseconds; 0: not measured yet. Smoothed
	 * as in RFC 6298.
	 */
	__u32 rtt;
	__u32 rtt_variance;
	__u32 rtt_min;
	/* Of the connection, at this host; 0: not known. */
	__u32 token;
	__u32 interface;
	/* Bits of enum plait_flow_flag. */
	__u32 flags;
	/* By enum plait_hook. */
	struct plait_allowance allowance[2];
	/* Bytes per second that the actor `pace` asks for; 0: none. */
	__u64 pace;
	/* When it did, by CLOCK_MONOTONIC. */
	__u64 pace_nanoseconds;
	/* ADD_ADDR that was withheld, and the bytes of it; both directions apart. */
	__u8 withheld[2][32];
	__u8 withheld_length[2];
	/* Announcements to be added to the next pure acknowledgment of each direction, and the bytes of it.
	 */
	__u8 pending_length[2];
	/* The largest segment that the SYN of each direction asks for; 0: none or not seen. */
	__u16 mss[2];
	__u8 pending[2][32];
	/* When MP_PRIO was added last to a packet of each direction, by CLOCK_MONOTONIC, and how often since
	 * it says what it says. */
	__u64 prioritized_nanoseconds[2];
	/* When an announcement was, or user space was asked for one, and how often. */
	__u64 announced_nanoseconds[2];
	/* By enum plait_hook: a bit for each address id that add_subflow has announced. */
	__u64 announced_ids[2][4];
	__u8 prioritized[2];
	__u8 announced[2];
	/* The last packet that went out was redirected. */
	__u8 redirected;
	__u8 padding[3];
};
_Static_assert(sizeof(struct plait_flow) == 536, "no hidden padding");

enum plait_flow_flag {
	/* This host's MP_CAPABLE began it, and not MP_JOIN. */
	PLAIT_FLOW_INITIAL = 1 << 0,
	PLAIT_FLOW_JOINED = 1 << 1,
	/* The backup flag of each direction, as last sent: who sends it asks the other not to send on this
	   subflow. */
	PLAIT_FLOW_BACKUP_IN = 1 << 2,
	PLAIT_FLOW_BACKUP_OUT = 1 << 3,
	/* Packets of each direction come with PLAIT_CHECKSUM_PARTIAL. */
	PLAIT_FLOW_PARTIAL_IN = 1 << 4,
	PLAIT_FLOW_PARTIAL_OUT = 1 << 5,
	/* Ended by FIN or RST in each direction. */
	PLAIT_FLOW_FIN_IN = 1 << 6,
	PLAIT_FLOW_FIN_OUT = 1 << 7,
	/* MP_CAPABLE came in with the flag of the actor capable_flag. */
	PLAIT_FLOW_CAPABLE_FLAG = 1 << 8,
	/* The actor get_connection has told of it, with keys or without. */
	PLAIT_FLOW_REPORTED = 1 << 9,
	PLAIT_FLOW_REPORTED_KEYS = 1 << 10,
};

/* A connection: what its subflows share. */
struct plait_connection {
	/* By enum plait_hook: payload new to the connection. */
	__u64 bytes[2];
	/* By enum plait_hook: the lower half of the first data sequence number that is new. Of what goes out,
	 * that behind all that was sent; of what comes in, that which this host's acknowledgments ask for. */
	__u32 next_data[2];
	/* By enum plait_hook: that is known. */
	__u8 is_known[2];
	__u8 padding[6];
};
_Static_assert(sizeof(struct plait_connection) == 32, "no hidden padding");

enum plait_event_kind {
	/* A packet matched: what `plait policy trace` shows. */
	PLAIT_EVENT_PACKET = 1,
	/* The actor get_connection saw MP_CAPABLE. */
	PLAIT_EVENT_CONNECTION,
	/* The actor get_subflow saw MP_JOIN. */
	PLAIT_EVENT_SUBFLOW,
	/* An ADD_ADDR was withheld. */
	PLAIT_EVENT_WITHHELD,
	/* Of the user's own. */
	PLAIT_EVENT_CUSTOM,
};

/**
 * What programs tell, in the order in which it happened on each processor.
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
	/* Keys of the initiator and the responder, for PLAIT_EVENT_CONNECTION if it asks for them; else zero.
	 */
	__u64 keys[2];
	__u64 chains_hit;
	__u32 sequence;
	__u32 acknowledgment;
	__u32 payload;
	__u32 interface;
	/* Of the user's own. */
	__u64 values[2];
	__u8 hook;
	__u8 verdict;
	__u8 chain_count;
	__u8 changed;
	__u8 address_id;
	/* Of MP_JOIN: who sends it asks not to be sent to on this subflow. */
	__u8 backup;
	__u8 padding[2];
	/* Counters of the chains that matched, the first 16. */
	__u16 chains[16];
	/* The option that was withheld. */
	__u8 option[32];
};
_Static_assert(sizeof(struct plait_event) == 200, "no hidden padding");

#endif
