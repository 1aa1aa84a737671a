/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Who sends a packet to the gateway. */
#ifndef PLAIT_GATEWAY_CLIENT_H
#define PLAIT_GATEWAY_CLIENT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "intf.h"
#include "kernel.h"

/*
 * Fills in the client of a packet of TCP or UDP that leaves by loopback. Returns the length of the IP header; 0: the packet is
 * malformed, or has extension headers.
 */
static __always_inline __u32 read_client(struct __sk_buff *skb, __u8 protocol, struct plait_client *client)
{
	struct ipv6hdr six;
	struct iphdr four;
	__u32 length;
	__be16 port;

	client->ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (client->ipv6) {
		if (bpf_skb_load_bytes(skb, 0, &six, sizeof(six)) || six.nexthdr != protocol)
			return 0;
		__builtin_memcpy(client->address, &six.saddr, sizeof(six.saddr));
		length = sizeof(six);
	} else {
		if (bpf_skb_load_bytes(skb, 0, &four, sizeof(four)))
			return 0;
		client->address[0] = four.saddr;
		length = four.ihl * 4;
	}
	/* The first field of both headers. */
	if (bpf_skb_load_bytes(skb, length, &port, sizeof(port)))
		return 0;
	client->port = bpf_ntohs(port);
	return length;
}

#endif
