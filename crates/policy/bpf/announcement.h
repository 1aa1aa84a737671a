/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Announces a given address by ADD_ADDR (RFC 8684 section 3.4.1), with an HMAC keyed with both keys of the
 * connection. The keys of this host's connections are read from the kernel (since Linux 5.19), where the socket
 * is looked up by the addresses of the subflow.
 */
#ifndef PLAIT_ANNOUNCEMENT_H
#define PLAIT_ANNOUNCEMENT_H

#include "options.h"
#include "kernel.h"
#include <bpf/bpf_core_read.h>

#define ADD_ADDR_HMAC 8

/* Fills in the addresses of the socket of a packet's subflow, as in the packets that it receives; returns their
 * length. */
static __always_inline __u32 fill_socket_tuple(const struct plait_packet *packet, struct bpf_sock_tuple *name)
{
	const struct plait_flow_key *ends = &packet->flow;

	if (!(packet->kinds & PLAIT_IS_IPV6)) {
		name->ipv4.saddr = bpf_htonl((__u32)ends->remote[1]);
		name->ipv4.daddr = bpf_htonl((__u32)ends->local[1]);
		name->ipv4.sport = bpf_htons(ends->remote_port);
		name->ipv4.dport = bpf_htons(ends->local_port);
		return sizeof(name->ipv4);
	}
	for (int i = 0; i < 4; i++) {
		name->ipv6.saddr[i] = bpf_htonl((__u32)(ends->remote[i / 2] >> (i % 2 ? 0 : 32)));
		name->ipv6.daddr[i] = bpf_htonl((__u32)(ends->local[i / 2] >> (i % 2 ? 0 : 32)));
	}
	name->ipv6.sport = bpf_htons(ends->remote_port);
	name->ipv6.dport = bpf_htons(ends->local_port);
	return sizeof(name->ipv6);
}

/* Reads the keys of the packet's connection, this host's first. Not 0 if the connection is not of this host, or
 * the kernel does not support the look-up. */
static __always_inline long find_keys(struct plait_context context, const struct plait_packet *packet,
				      __u64 keys[2])
{
	struct mptcp_sock *connection;
	struct bpf_sock_tuple name = {};
	struct bpf_sock *socket = NULL;
	__u32 length;

	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_skc_to_mptcp_sock))
		return -1;
	length = fill_socket_tuple(packet, &name);
	if (context.skb)
		socket = bpf_sk_lookup_tcp(context.skb, &name, length, BPF_F_CURRENT_NETNS, 0);
	else if (context.xdp)
		socket = bpf_sk_lookup_tcp(context.xdp, &name, length, BPF_F_CURRENT_NETNS, 0);
	if (!socket)
		return -1;
	connection = (struct mptcp_sock *)bpf_skc_to_mptcp_sock(socket);
	if (connection) {
		keys[0] = connection->local_key;
		keys[1] = connection->remote_key;
	}
	bpf_sk_release(socket);
	return keys[0] && keys[1] ? 0 : -1;
}

/* State of SHA-256 (FIPS 180-4): the hash of the previous blocks, and the next block. */
struct sha256 {
	__u32 state[8];
	/* The block's 16 words, extended to the message schedule. */
	__u32 words[64];
	__u32 working[8];
	/* HMAC's inner hash (RFC 2104). */
	__u32 inner[8];
};

#define BLOCK 64

/* Too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sha256);
} hashes SEC(".maps");

static const __u32 sha256_initial[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static const __u32 sha256_rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static __always_inline __u32 rotated(__u32 word, __u32 by)
{
	return word >> by | word << (32 - by);
}

/* Processes a block (section 6.2.2). */
__weak int sha256_process(struct sha256 *hash)
{
	if (!hash)
		return -1;
#pragma clang loop unroll(disable)
	for (__u32 i = 16; i < 64; i++) {
		__u32 *word = &hash->words[i];

		*word = word[-16] + (rotated(word[-15], 7) ^ rotated(word[-15], 18) ^ word[-15] >> 3) +
			word[-7] + (rotated(word[-2], 17) ^ rotated(word[-2], 19) ^ word[-2] >> 10);
	}
	for (int i = 0; i < 8; i++)
		hash->working[i] = hash->state[i];
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < 64; i++) {
		__u32 one, other;
		/* The standard's variables a to h, which rotate with each round. */
#define WORKING(n) hash->working[((n) - i) & 7]

		one = WORKING(4);
		one = (rotated(one, 6) ^ rotated(one, 11) ^ rotated(one, 25)) +
		      ((one & WORKING(5)) ^ (~one & WORKING(6)));
		one += WORKING(7) + sha256_rounds[i] + hash->words[i];
		other = WORKING(0);
		other = (rotated(other, 2) ^ rotated(other, 13) ^ rotated(other, 22)) +
			((other & WORKING(1)) ^ (other & WORKING(2)) ^ (WORKING(1) & WORKING(2)));
		WORKING(3) += one;
		WORKING(7) = one + other;
#undef WORKING
	}
	for (int i = 0; i < 8; i++)
		hash->state[i] += hash->working[i];
	return 0;
}

/* Starts HMAC's inner or outer hash (RFC 2104), keyed with the concatenation of both keys. */
static __always_inline void hmac_begin(struct sha256 *hash, __u64 first, __u64 second, __u32 pad)
{
	for (int i = 0; i < 8; i++)
		hash->state[i] = sha256_initial[i];
	for (int i = 0; i < 16; i++)
		hash->words[i] = pad;
	hash->words[0] ^= (__u32)(first >> 32);
	hash->words[1] ^= (__u32)first;
	hash->words[2] ^= (__u32)(second >> 32);
	hash->words[3] ^= (__u32)second;
	sha256_process(hash);
}

/* Finishes the hash of 64 + `bytes` bytes; the padding bit is already set. */
static __always_inline void hmac_end(struct sha256 *hash, __u32 bytes)
{
	hash->words[15] = (BLOCK + bytes) * 8;
	sha256_process(hash);
}

/* Whether the announced address is a mapped IPv4 address. */
static __always_inline int is_ipv4(const struct plait_actor *actor)
{
	return !actor->parameters[0] && actor->parameters[1] >> 32 == 0xffff;
}

/* Computes the HMAC of the id, address and port of an actor add_subflow. */
__weak int hash_announcement(const struct plait_actor *actor, __u64 announcer, __u64 other)
{
	__u32 zero = 0, first, port;
	struct sha256 *hash = bpf_map_lookup_elem(&hashes, &zero);
	__u64 upper, lower;

	if (!actor || !hash)
		return -1;
	hmac_begin(hash, announcer, other, 0x36363636);
	__builtin_memset(hash->words, 0, BLOCK);
	upper = actor->parameters[0];
	lower = actor->parameters[1];
	first = (__u32)actor->parameters[3] << 24;
	/* The padding bit follows the message. */
	port = (actor->parameters[2] & 0xffff) << 8 | 0x80;
	if (is_ipv4(actor)) {
		hash->words[0] = first | (__u32)lower >> 8;
		hash->words[1] = (__u32)lower << 24 | port;
		hmac_end(hash, 7);
	} else {
		hash->words[0] = first | (__u32)(upper >> 40);
		hash->words[1] = (__u32)(upper >> 8);
		hash->words[2] = (__u32)upper << 24 | (__u32)(lower >> 40);
		hash->words[3] = (__u32)(lower >> 8);
		hash->words[4] = (__u32)lower << 24 | port;
		hmac_end(hash, 19);
	}
	__builtin_memcpy(hash->inner, hash->state, sizeof(hash->inner));
	hmac_begin(hash, announcer, other, 0x5c5c5c5c);
	__builtin_memset(hash->words, 0, BLOCK);
	__builtin_memcpy(hash->words, hash->inner, sizeof(hash->inner));
	hash->words[8] = 0x80000000;
	hmac_end(hash, sizeof(hash->inner));
	return 0;
}

/* Writes the announcement with the HMAC computed last, followed by NOPs. Returns its length. */
__weak int write_announcement(struct plait_option *option, const struct plait_actor *actor)
{
	__u32 zero = 0, port, at;
	struct sha256 *hash = bpf_map_lookup_elem(&hashes, &zero);
	__u64 upper, lower;
	__u8 *bytes;

	if (!option || !actor || !hash)
		return 0;
	upper = actor->parameters[0];
	lower = actor->parameters[1];
	port = actor->parameters[2] & 0xffff;
	at = is_ipv4(actor) ? 8 : 20;
	for (int i = 0; i < 8; i++)
		option->words[i] = PLAIT_WORD_OF_NOPS;
	option->words[0] = bpf_htonl((__u32)TCPOPT_MPTCP << 24 | (at + (port ? 2 : 0) + ADD_ADDR_HMAC) << 16 |
				     MPTCP_ADD_ADDR << 12 | (actor->parameters[3] & 0xff));
	if (at == 8) {
		option->words[1] = bpf_htonl((__u32)lower);
	} else {
		option->words[1] = bpf_htonl((__u32)(upper >> 32));
		option->words[2] = bpf_htonl((__u32)upper);
		option->words[3] = bpf_htonl((__u32)(lower >> 32));
		option->words[4] = bpf_htonl((__u32)lower);
	}
	bytes = (void *)option;
	if (port) {
		bytes[at & 31] = port >> 8;
		bytes[(at + 1) & 31] = port;
		at += 2;
	}
	/* The last eight bytes of the hash. */
	for (int i = 0; i < ADD_ADDR_HMAC; i++)
		bytes[(at + i) & 31] = hash->state[6 + i / 4] >> (24 - i % 4 * 8);
	return at + ADD_ADDR_HMAC;
}

#endif
