/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The networks that a host reaches without plait, and the network namespace of a packet. */
#ifndef PLAIT_GATEWAY_NETWORKS_H
#define PLAIT_GATEWAY_NETWORKS_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "kernel.h"
#include "intf.h"
#include "loopback.h"

#define MAX_NETWORKS 65536

#define PORT_DNS 53
#define PORT_DHCP_SERVER 67
#define PORT_DHCP_CLIENT 68
#define PORT_DHCPV6_CLIENT 546
#define PORT_DHCPV6_SERVER 547

struct networks_v4 {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_NETWORKS);
	__type(key, struct plait_net_v4);
	__type(value, __u8);
};

struct networks_v6 {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_NETWORKS);
	__type(key, struct plait_net_v6);
	__type(value, __u8);
};

struct networks_v4 excluded_v4 SEC(".maps");
struct networks_v6 excluded_v6 SEC(".maps");

/* Addresses are in network order. */
static __always_inline int contain_v4(struct networks_v4 *networks, __u32 address)
{
	struct plait_net_v4 key = {.prefix_length = 32, .address = address};

	return bpf_map_lookup_elem(networks, &key) != NULL;
}

static __always_inline int contain_v6(struct networks_v6 *networks, const __u32 address[4])
{
	struct plait_net_v6 key = {.prefix_length = 128};

	key.address[0] = address[0];
	key.address[1] = address[1];
	key.address[2] = address[2];
	key.address[3] = address[3];
	return bpf_map_lookup_elem(networks, &key) != NULL;
}

static __always_inline int is_excluded_v4(__u32 address)
{
	return contain_v4(&excluded_v4, address);
}

static __always_inline int is_excluded_v6(const __u32 address[4])
{
	return is_mapped(address) ? is_excluded_v4(address[3]) : contain_v6(&excluded_v6, address);
}

/* Ports in network order, which TCP and UDP have at the same place. */
struct ports {
	__u16 source;
	__u16 destination;
};

/* The length of the ICMP header of an error, which the quoted packet follows (RFC 792, RFC 4443). */
#define ICMP_ERROR_HEADER 8

/* Destination unreachable, source quench, redirect, time exceeded and parameter problem (RFC 792). */
static __always_inline int is_error_v4(__u8 type)
{
	return (type >= 3 && type <= 5) || type == 11 || type == 12;
}

/* RFC 4443, section 2.1. */
static __always_inline int is_error_v6(__u8 type)
{
	return type < 128;
}

/* Of a packet that an ICMP error quotes: an answer that nobody waits for any longer has the name in it. */
static __always_inline int is_dns(const struct ports *quoted)
{
	return quoted->source == bpf_htons(PORT_DNS) || quoted->destination == bpf_htons(PORT_DNS);
}

/* Ports in network order; 0: any of the client. */
static __always_inline int is_dhcp(__u16 source, __u16 destination)
{
	return (destination == bpf_htons(PORT_DHCP_SERVER) &&
		(!source || source == bpf_htons(PORT_DHCP_CLIENT))) ||
	       (destination == bpf_htons(PORT_DHCPV6_SERVER) &&
		(!source || source == bpf_htons(PORT_DHCPV6_CLIENT)));
}

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/*
 * The cookie of the network namespace that a packet leaves, for programs at the egress of a cgroup, whose helper for it is newer
 * (6.16). 0 before Linux 6.2, where the loader does not attach them.
 */
static __always_inline __u64 namespace_of(struct __sk_buff *ctx)
{
	struct sk_buff *skb;

	if (!bpf_cast_to_kern_ctx)
		return 0;
	skb = bpf_cast_to_kern_ctx(ctx);
	return skb->dev->nd_net.net->net_cookie;
}

#endif
