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
#include "client.h"
#include "constants.h"
#include "intf.h"
#include "loopback.h"
#include "networks.h"
#include "redirect_settings.h"
#include "scope.h"

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
struct networks_v4 own_v4 SEC(".maps");
struct networks_v6 own_v6 SEC(".maps");

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
static __always_inline int ensure_mark(struct bpf_sock_addr *ctx, __u32 mark)
{
	__u32 present = ctx->sk ? ctx->sk->mark : ~0;

	return is_mark_of_gateway(present) || (!present && !set_mark(ctx, mark));
}

/* Datagrams that no gateway carries would leave unprotected. */
static __always_inline int refuses_datagrams(struct plait_redirect_settings config)
{
	return config.require || config.mark;
}

static __always_inline enum verdict judge_destination_port(struct plait_redirect_settings config, __u16 port)
{
	return refuses_datagrams(config) && port && port != bpf_htons(PORT_DNS) && !is_dhcp(0, port) ? REFUSE
												     : ALLOW;
}

/*
 * A datagram is routed by the mark that its socket has before. One of a socket that was there before the gateway is refused, and those
 * after it are carried. What leaves this host all the same, redirect_egress refuses.
 */
static __always_inline enum verdict judge_datagram(struct bpf_sock_addr *ctx,
						   struct plait_redirect_settings config)
{
	if (ctx->type != SOCK_DGRAM)
		return ALLOW;
	if (!config.mark || !is_udp(ctx) || is_dhcp(0, ctx->user_port))
		return judge_destination_port(config, ctx->user_port);
	if (ctx->sk && is_mark_of_gateway(ctx->sk->mark))
		return ALLOW;
	ensure_mark(ctx, config.mark);
	return REFUSE;
}

static __always_inline enum verdict judge_port(struct __sk_buff *skb, __u32 header_length)
{
	struct udphdr udp;

	if (bpf_skb_load_bytes(skb, header_length, &udp, sizeof(udp)))
		return REFUSE;
	if (is_dhcp(udp.source, udp.dest))
		return ALLOW;
	return udp.dest == bpf_htons(PORT_DNS) && !read_settings().dns ? ALLOW : REFUSE;
}

static __always_inline enum verdict judge_udp_v4(struct __sk_buff *skb)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
		return REFUSE;
	if (ip.protocol == IPPROTO_ICMP || is_loopback_v4(ip.daddr) || is_excluded_v4(ip.daddr))
		return ALLOW;
	return ip.protocol == IPPROTO_UDP ? judge_port(skb, ip.ihl * 4) : REFUSE;
}

static __always_inline enum verdict judge_udp_v6(struct __sk_buff *skb)
{
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)))
		return REFUSE;
	if (ip.nexthdr == IPPROTO_ICMPV6 || is_loopback_v6(ip.daddr.in6_u.u6_addr32) ||
	    is_excluded_v6(ip.daddr.in6_u.u6_addr32))
		return ALLOW;
	return ip.nexthdr == IPPROTO_UDP ? judge_port(skb, sizeof(ip)) : REFUSE;
}

/* Remembers who sends a datagram that leaves by loopback. */
static __always_inline void remember_client(struct __sk_buff *skb)
{
	struct plait_client client = {};
	__u8 one = 1;

	if (read_client(skb, IPPROTO_UDP, &client) && !bpf_map_lookup_elem(&datagram_clients, &client))
		bpf_map_update_elem(&datagram_clients, &client, &one, BPF_ANY);
}

static __always_inline int is_own(struct bpf_sk_lookup *ctx)
{
	__u32 six[4] = {ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2], ctx->local_ip6[3]};
	__u32 four = ctx->local_ip4;

	if (ctx->family == AF_INET6)
		return is_loopback_v6(six) || contain_v6(&own_v6, six);
	return is_loopback_v4(four) || contain_v4(&own_v4, four);
}

/* Before the first datagram of a socket is routed. */
SEC("cgroup/sock_create")
int redirect_socket(struct bpf_sock *ctx)
{
	__u32 mark = read_settings().mark;

	if (mark && !ctx->mark && ctx->type == SOCK_DGRAM && ctx->protocol == IPPROTO_UDP &&
	    is_new_in_scope(ctx))
		ctx->mark = mark;
	return ALLOW;
}

/* A DHCP client talks to a server on the link. */
static __always_inline int unmark_dhcp_client(struct bpf_sock_addr *ctx, __u16 port)
{
	__u32 mark = read_settings().mark;

	if (mark && ctx->user_port == bpf_htons(port) && is_udp(ctx) && ctx->sk && ctx->sk->mark == mark)
		set_mark(ctx, 0);
	return ALLOW;
}

SEC("cgroup/bind4")
int redirect_bind4(struct bpf_sock_addr *ctx)
{
	return unmark_dhcp_client(ctx, PORT_DHCP_CLIENT);
}

SEC("cgroup/bind6")
int redirect_bind6(struct bpf_sock_addr *ctx)
{
	return unmark_dhcp_client(ctx, PORT_DHCPV6_CLIENT);
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
