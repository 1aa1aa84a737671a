/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Takes the datagrams (UDP) of programs to the gateway's sockets, which send them to an exit, transparently to the programs.
 *
 * Their sockets get a mark, by which a routing rule delivers what they send to this host, though it is for others: it leaves by
 * loopback. There redirect_lookup gives it to a socket of the gateway.
 */
#ifndef PLAIT_GATEWAY_DATAGRAMS_H
#define PLAIT_GATEWAY_DATAGRAMS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "intf.h"
#include "loopback.h"
#include "networks.h"

/* Addresses and ports that programs send from, as of their last datagram. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct plait_client);
	__type(value, __u8);
} datagram_clients SEC(".maps");

/* Emptied by the kernel when the gateway's sockets are closed. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, PLAIT_DATAGRAM_SOCKETS);
	__type(key, __u32);
	__type(value, __u64);
} datagram_sockets SEC(".maps");

/* The addresses of this host. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_NETWORKS);
	__type(key, struct plait_net_v4);
	__type(value, __u8);
} own_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_NETWORKS);
	__type(key, struct plait_net_v6);
	__type(value, __u8);
} own_v6 SEC(".maps");

static __always_inline int is_udp(struct bpf_sock_addr *ctx)
{
	/* Against an address that is computed once for several reads, which the verifier does not allow. */
	asm volatile("" : "+r"(ctx));
	return ctx->type == SOCK_DGRAM && ctx->protocol == IPPROTO_UDP;
}

/* Of this gateway, or another one. */
static __always_inline int is_mark_of_gateway(__u32 mark)
{
	return mark == PLAIT_MARK_HOST || (mark & ~PLAIT_MARK_PID) == PLAIT_MARK_PROGRAM;
}

static __always_inline long set_mark(struct bpf_sock_addr *ctx, __u32 mark)
{
	return bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, sizeof(mark));
}

/* Whether what the socket sends is routed to a gateway: from now on, if it has no mark yet. */
static __always_inline int has_or_gets_mark(struct bpf_sock_addr *ctx, __u32 mark)
{
	__u32 present = ctx->sk ? ctx->sk->mark : ~0;

	return is_mark_of_gateway(present) || (!present && !set_mark(ctx, mark));
}

/* Remembers who sends a packet that leaves by loopback. */
static __always_inline void remember_client(struct __sk_buff *skb)
{
	struct plait_client client = {};
	struct ipv6hdr six;
	struct iphdr four;
	__u32 length;
	__u8 one = 1;
	__be16 port;

	client.ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (client.ipv6) {
		if (bpf_skb_load_bytes(skb, 0, &six, sizeof(six)) || six.nexthdr != IPPROTO_UDP)
			return;
		__builtin_memcpy(client.address, &six.saddr, sizeof(six.saddr));
		length = sizeof(six);
	} else {
		if (bpf_skb_load_bytes(skb, 0, &four, sizeof(four)))
			return;
		client.address[0] = four.saddr;
		length = four.ihl * 4;
	}
	if (bpf_skb_load_bytes(skb, length, &port, sizeof(port)))
		return;
	client.port = bpf_ntohs(port);
	if (!bpf_map_lookup_elem(&datagram_clients, &client))
		bpf_map_update_elem(&datagram_clients, &client, &one, BPF_ANY);
}

static __always_inline int is_own(struct bpf_sk_lookup *ctx)
{
	struct plait_net_v4 four = {.prefix_length = 32, .address = ctx->local_ip4};
	struct plait_net_v6 six = {
	    .prefix_length = 128,
	    .address = {ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2], ctx->local_ip6[3]},
	};

	if (ctx->family == AF_INET6)
		return is_loopback_v6(six.address) || bpf_map_lookup_elem(&own_v6, &six);
	return is_loopback_v4(four.address) || bpf_map_lookup_elem(&own_v4, &four);
}

SEC("sk_lookup")
int redirect_lookup(struct bpf_sk_lookup *ctx)
{
	struct plait_client client = {.port = bpf_ntohs(ctx->remote_port)};
	__u32 index, v4 = ctx->remote_ip4;
	struct bpf_sock *sk;
	long error;

	client.ipv6 = ctx->family == AF_INET6;
	/* Read in any case: the verifier allows no computed offset. */
	asm volatile("" : "+r"(v4));
	client.address[0] = client.ipv6 ? ctx->remote_ip6[0] : v4;
	client.address[1] = ctx->remote_ip6[1];
	client.address[2] = ctx->remote_ip6[2];
	client.address[3] = ctx->remote_ip6[3];
	if (ctx->protocol != IPPROTO_UDP || is_own(ctx) || !bpf_map_lookup_elem(&datagram_clients, &client))
		return SK_PASS;
	index = client.ipv6 ? PLAIT_DATAGRAM_SOCKET_V6 : PLAIT_DATAGRAM_SOCKET_V4;
	sk = bpf_map_lookup_elem(&datagram_sockets, &index);
	if (!sk)
		return SK_PASS;
	error = bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return error ? SK_DROP : SK_PASS;
}

#endif
