/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The contract between the gateway's BPF programs, its Rust and the kernel module: option layout, map values,
 * constants. plait-bpf-build generates Rust's side from this file.
 */
#ifndef PLAIT_GATEWAY_INTF_H
#define PLAIT_GATEWAY_INTF_H

#include <linux/types.h>

/* The experimental TCP option (RFC 6994): kind 254, ExID "PLAI". */
enum plait_option_number {
	PLAIT_OPTION_KIND = 254,
	PLAIT_OPTION_EXID = 0x504c4149,
	PLAIT_OPTION_VERSION = 1,
	/* In place of the version where a flag of MP_CAPABLE stands for the option, which then does not leave the host. */
	PLAIT_OPTION_BY_FLAG = 0xff,
};

/*
 * On SYN: the offered modes. On SYN-ACK: the one chosen mode, or if the two ends share no mode, those of the responder, with
 * PLAIT_MODE_REQUIRED. On a reset: why the connection ends (CloseReason).
 */
struct plait_option {
	__u8 kind;
	__u8 length;
	__u8 exid[4];
	__u8 version;
	/* Or the reason. */
	__u8 modes;
};
_Static_assert(sizeof(struct plait_option) == 8, "fits next to MP_CAPABLE on SYN and SYN-ACK");

/*
 * On every packet of the initiator until the responder's first packet after the handshake: acknowledges the
 * responder's choice, and repeats the offer for a responder that sent a SYN cookie and stored nothing. There is
 * room for 4 bytes, with a quarter of the ExID, next to MP_CAPABLE with data.
 */
struct plait_confirmation {
	__u8 kind;
	__u8 length;
	__u8 exid;
	/* The offered modes; PLAIT_CONFIRMS_LOWER, if the chosen one is not the highest of them. */
	__u8 modes;
};
_Static_assert(sizeof(struct plait_confirmation) == 4, "fits next to MP_CAPABLE with data");

enum plait_confirmation_number {
	/* An offer has at most two bits, so that this bit tells which one was chosen. */
	PLAIT_CONFIRMS_LOWER = 1 << 7,
};

/* A range of ports, inclusive. */
struct plait_ports {
	__u16 first;
	__u16 last;
};
_Static_assert(sizeof(struct plait_ports) == 4, "no hidden padding");

enum plait_selection_number {
	/* The same as in a rule of the kernel module. */
	PLAIT_MAX_PORTS = 16,
};

/* Selects connections in a control group, like a rule of the kernel module. */
struct plait_selection {
	/* Only sockets that the module has taken over. */
	__u32 taken;
	/* Only sockets whose mark, under the mask, has this value. */
	__u32 mark;
	__u32 mask;
	/* Only these service ports; none: all ports. */
	__u32 ports_len;
	struct plait_ports ports[PLAIT_MAX_PORTS];
};
_Static_assert(sizeof(struct plait_selection) == 80, "no hidden padding");

/* Written before the program is attached. */
struct plait_negotiate_settings {
	/* Modes this end offers and accepts. */
	__u32 modes;
	/* Connections without one of them are refused. */
	__u32 required;
	/* Resets tell peers that speak plait why, if user space says so. */
	__u32 give_reasons;
	/* Report every outcome. */
	__u32 report_outcomes;
	struct plait_selection selection;
	/* capable_flag.bpf.c carries the option by a flag. */
	__u32 by_flag;
};
_Static_assert(sizeof(struct plait_negotiate_settings) == 100, "no hidden padding");

/* Written before the programs are attached. */
struct plait_flag_settings {
	/* The id of the gateway's control group. */
	__u64 cgroup;
};
_Static_assert(sizeof(struct plait_flag_settings) == 8, "no hidden padding");

/* Bits of plait_option.modes. A responder chooses the highest bit that both sides know. */
enum plait_mode {
	PLAIT_MODE_XOR64_KEY = 1 << 0,
	PLAIT_MODE_XOR64_HMAC = 1 << 1,
	PLAIT_MODE_STREAM_CHACHA20 = 1 << 2,
	PLAIT_MODE_STREAM_AES256 = 1 << 3,
	PLAIT_MODE_SEALED_CHACHAPOLY = 1 << 4,
	PLAIT_MODE_SEALED_AESGCM = 1 << 5,
	/* Only in the kernel module: keyed by the MPTCP keys, without a handshake. */
	PLAIT_MODE_STREAM_KEYS = 1 << 6,
	/* No mode: the responder requires one of its modes. */
	PLAIT_MODE_REQUIRED = 1 << 7,
};

enum plait_outcome {
	/* The peer sent no option. */
	PLAIT_OUTCOME_PLAIN = 1,
	/* Both sides chose plait_verdict.mode. */
	PLAIT_OUTCOME_NEGOTIATED = 2,
	/* The peer sent the option, but there is no common mode or version. */
	PLAIT_OUTCOME_NO_COMMON_MODE = 3,
	/* The two ends may disagree: a middlebox strips options. */
	PLAIT_OUTCOME_UNCONFIRMED = 4,
	/* The peer sent the option, but the connection fell back to TCP, and both ends know. */
	PLAIT_OUTCOME_FALLBACK = 5,
};

/* Further subflows that were accepted. */
enum plait_joined {
	PLAIT_JOINED = 1 << 0,
	/* Before any data of the first flight had arrived. */
	PLAIT_JOINED_EARLY = 1 << 1,
};

/**
 * The outcome of a connection's handshake, in the socket storage of the MPTCP socket, or of the TCP socket
 * without MPTCP.
 * <div rustbindgen nodebug></div>
 */
struct plait_verdict {
	/* As the kernel stores them: numbers that are sent big-endian. Zero without MPTCP. */
	__u64 local_key;
	__u64 remote_key;
	__u32 token;
	/* enum plait_outcome; 0: not known yet. */
	__u8 outcome;
	/* At the initiator without a common mode: those of the responder, with PLAIT_MODE_REQUIRED. */
	__u8 mode;
	/* All modes offered by the initiator. */
	__u8 offered;
	/* Bits of enum plait_joined. */
	__u8 joined;
};
_Static_assert(sizeof(struct plait_verdict) == 24, "no hidden padding");

/* Why a connection ends, in the same storage: codes of CloseReason, or 0. */
struct plait_close_reasons {
	/* What user space tells the peer, before it resets the connection. */
	__u8 own;
	/* What the peer's reset told. */
	__u8 peer;
};
_Static_assert(sizeof(struct plait_close_reasons) == 2, "no hidden padding");

/* Reports an outcome as soon as it is known. Ports in host order, addresses in network order. */
struct plait_outcome_event {
	/* 0 without MPTCP. */
	__u32 token;
	__u8 outcome;
	__u8 initiator;
	/* AF_INET, with the address in the first word, or AF_INET6. */
	__u16 family;
	__u16 local_port;
	__u16 remote_port;
	__u32 local[4];
	__u32 remote[4];
};
_Static_assert(sizeof(struct plait_outcome_event) == 44, "no hidden padding");

/* Written before the programs are attached. */
struct plait_trusted_settings {
	/* Name of the interface for initial subflows; empty: routing decides. */
	char interface[16];
	/* Refuse connections that cannot be protected. */
	__u32 require;
	struct plait_selection selection;
};
_Static_assert(sizeof(struct plait_trusted_settings) == 100, "no hidden padding");

/* Written before the programs are attached. */
struct plait_redirect_settings {
	/* The gateway's listeners on 127.0.0.1 and ::1, network order; 0: none. */
	__u16 listener_v4;
	__u16 listener_v6;
	/* Refuse traffic that cannot be protected: datagrams, other than DNS, that have no mark, or a family without a listener. */
	__u16 require;
	/* Hold SYNs until the gateway releases them. */
	__u16 hold;
	/*
	 * Redirect DNS, too: queries to the gateway's sockets on these ports of 127.0.0.1 and ::1, network order, even those to
	 * resolvers on loopback, which would ask others. 0: no such socket.
	 */
	__u16 dns;
	__u16 dns_v4;
	__u16 dns_v6;
	__u16 reserved;
	/* Of sockets whose datagrams the gateway carries, by the exit; 0: it carries none. */
	__u32 mark;
};
_Static_assert(sizeof(struct plait_redirect_settings) == 20, "no hidden padding");

/* Marks of sockets whose datagrams are delivered to a gateway of this host. */
enum plait_datagram_mark {
	/* That of a whole host, "plah": daemons after it go on with its sockets. */
	PLAIT_MARK_HOST = 0x706c6168,
	/* That of a program, beside the id of the gateway's process. */
	PLAIT_MARK_PROGRAM = 0x70400000,
	PLAIT_MARK_PID = 0x003fffff,
};

/* The gateway's sockets. */
enum plait_datagram_socket {
	PLAIT_DATAGRAM_SOCKET_V4 = 0,
	PLAIT_DATAGRAM_SOCKET_V6 = 1,
	PLAIT_DATAGRAM_SOCKETS = 2,
};

/* Whose traffic of a whole host is redirected. Written while the programs are attached. */
struct plait_scope {
	/* The cookie of the network namespace; 0: everything in the cgroup that the programs are attached to. */
	__u64 namespace;
	/* The id of the gateway's cgroup, whose traffic is not. */
	__u64 gateway;
	/* Whether only that of the users, or programs, in the maps is. */
	__u32 by_user;
	__u32 by_program;
};
_Static_assert(sizeof(struct plait_scope) == 24, "no hidden padding");

/* Keys of networks, in network order, as a longest-prefix match has them. */
struct plait_net_v4 {
	__u32 prefix_length;
	__u32 address;
};
_Static_assert(sizeof(struct plait_net_v4) == 8, "no hidden padding");

struct plait_net_v6 {
	__u32 prefix_length;
	__u32 address[4];
};
_Static_assert(sizeof(struct plait_net_v6) == 20, "no hidden padding");

/* The name of a program: that of its main thread (comm). */
struct plait_program {
	__u8 name[16];
};
_Static_assert(sizeof(struct plait_program) == 16, "no hidden padding");

/* The original destination of a redirected socket. Ports and addresses in network order. */
struct plait_destination {
	__u32 address[4];
	__u16 port;
	/* AF_INET or AF_INET6; an IPv4-mapped destination is AF_INET6 with a mapped address. */
	__u16 family;
	/* Index of the interface that the socket was bound to; 0 for none. */
	__u32 interface;
	/* Its first SYN was held. */
	__u32 held;
};
_Static_assert(sizeof(struct plait_destination) == 28, "no hidden padding");

/* Identifies a redirected connection, or the sender of datagrams, as the gateway's socket sees it. */
struct plait_client {
	/* Network order; an IPv4 address is the first word. */
	__u32 address[4];
	/* Host order. */
	__u16 port;
	/* Reached the socket over IPv6 (1) or IPv4 (0). */
	__u16 ipv6;
};
_Static_assert(sizeof(struct plait_client) == 20, "no hidden padding");

/* The longest headers of IPv6 without extensions, and of TCP. */
#define PLAIT_SYN_MAX_LEN 100

/* A held SYN, without its data. */
struct plait_syn {
	struct plait_client client;
	struct plait_destination destination;
	__u32 length;
	/* The headers of IP and TCP. */
	__u8 headers[PLAIT_SYN_MAX_LEN];
};
_Static_assert(sizeof(struct plait_syn) == 152, "no hidden padding");

enum plait_router_mark {
	/* Of a packet that is delivered to this host, whatever its destination: "plai". */
	PLAIT_MARK_LOCAL = 0x706c6169,
	/* Of a SYN that was held and is received again. */
	PLAIT_MARK_RELEASED = 0x706c6170,
};

/* Written before the programs are attached. */
struct plait_router_settings {
	/* The gateway answers DNS, that to this host, too. */
	__u32 dns;
	/* The gateway carries datagrams. */
	__u32 datagrams;
	/* Drop what the gateway does not carry. */
	__u32 closed;
};
_Static_assert(sizeof(struct plait_router_settings) == 12, "no hidden padding");

enum plait_network_kind {
	/* An address of this host. */
	PLAIT_NETWORK_OWN = 1,
	/* Destinations that the kernel forwards. */
	PLAIT_NETWORK_EXCLUDED = 2,
};

/* A network as a key of a trie. IPv4 networks are mapped to IPv6. */
struct plait_network {
	/* Bits. */
	__u32 prefix;
	/* Network order. */
	__u32 address[4];
};
_Static_assert(sizeof(struct plait_network) == 20, "no hidden padding");

/* A connection of a host behind an interface. Network order; IPv4 addresses are mapped to IPv6. */
struct plait_lan_flow {
	__u32 client[4];
	__u32 destination[4];
	__u16 client_port;
	__u16 destination_port;
};
_Static_assert(sizeof(struct plait_lan_flow) == 36, "no hidden padding");

/* A held SYN of a host behind an interface, without its data. */
struct plait_lan_syn {
	/* Index of the interface. */
	__u32 interface;
	__u32 length;
	/* The headers of IP and TCP. */
	__u8 headers[PLAIT_SYN_MAX_LEN];
};
_Static_assert(sizeof(struct plait_lan_syn) == 108, "no hidden padding");

/* The gateway's sockets. */
enum plait_router_socket {
	PLAIT_SOCKET_TCP4 = 0,
	PLAIT_SOCKET_TCP6 = 1,
	PLAIT_SOCKET_UDP4 = 2,
	PLAIT_SOCKET_UDP6 = 3,
	PLAIT_SOCKETS = 4,
};
/* Rules of paths that can have limits. */
#define PLAIT_MAX_PATH_RULES 64

enum plait_path_report {
	/* Beside the number of the rule: more arrives than the rate allows. */
	PLAIT_PATH_TOO_FAST = 1 << 16,
};

/* What the interfaces of a rule may carry together; written by user space. */
struct plait_path_limit {
	/* Bytes of IP packets per second, in each direction; 0: any number. */
	__u64 rate;
	/* plait_path_use.bytes may reach this; ~0: any number. */
	__u64 allowance;
	/* From so many bytes before the allowance on, the rate falls with what is left. */
	__u64 taper;
};
_Static_assert(sizeof(struct plait_path_limit) == 24, "no hidden padding");

/* What they carried; written by the programs. */
struct plait_path_use {
	/* Bytes of IP packets since the start, in both directions. */
	__u64 bytes;
	/* Those of the last report. */
	__u64 reported;
	/* ns, of the monotonic clock: when what was sent, and what was received, is over at the rate. */
	__u64 busy_until[2];
	/* ns: the last report that more arrives than the rate allows, and the last packet that was dropped for that. */
	__u64 warned;
	__u64 dropped;
};
_Static_assert(sizeof(struct plait_path_use) == 48, "no hidden padding");

#endif
