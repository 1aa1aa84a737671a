/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Sends a packet out by another interface, to the next hop of the route to its destination there.
 *
 * Incoming packets are forwarded: the hop limit is decremented and the link-layer header removed. Only TC resolves
 * next hops, so interfaces whose chains redirect incoming packets are attached to at TC (engine/attach.rs).
 */
#ifndef PLAIT_ACTORS_REDIRECT_H
#define PLAIT_ACTORS_REDIRECT_H

#include "../options.h"

#define ETHERNET_HEADER 14
/* In skb->cb[0], which is zero when IP sends a packet: it was redirected. */
#define REDIRECTED 0x706c6169

/* The TTL or hop limit (RFC 791 section 3.2, RFC 8200 section 3). */
static __always_inline __u8 hops_left(struct plait_context context, const struct plait_packet *packet)
{
	__u32 at = packet->kinds & PLAIT_IS_IPV6 ? IPV6_HOP_LIMIT_AT : IPV4_TTL_AT;
	__u8 hops;

	return plait_load(context, packet->ip_at + at, &hops, sizeof(hops)) ? 0 : hops;
}

static __always_inline long count_hop(struct plait_context context, const struct plait_packet *packet,
				      __u8 hops)
{
	__u16 protocol = 6;

	hops--;
	/* IPv6 has no header checksum, but the interface may have computed a sum over the packet. */
	if (packet->kinds & PLAIT_IS_IPV6)
		return bpf_skb_store_bytes(context.skb, packet->ip_at + IPV6_HOP_LIMIT_AT, &hops,
					   sizeof(hops), BPF_F_RECOMPUTE_CSUM);
	return plait_replace_in_ipv4(context, packet, IPV4_TTL_AT, bpf_htons((hops + 1) << 8 | protocol),
				     bpf_htons(hops << 8 | protocol));
}

/* Leaves an Ethernet header without VLAN tags, to be rewritten by the next link. */
static __always_inline long strip_link(struct __sk_buff *skb, const struct plait_packet *packet)
{
	if (!packet->ip_at)
		return bpf_skb_change_head(skb, ETHERNET_HEADER, 0);
	for (int i = 0; i < 2; i++)
		if ((skb->vlan_present || packet->ip_at > ETHERNET_HEADER) && bpf_skb_vlan_pop(skb))
			return -1;
	return 0;
}

/*
 * A redirected packet that goes out again, by an interface below the other one, must not be redirected again.
 * Bridges and bonds clear cb; VLANs keep it, and their packets may be seen on the original interface.
 */
static __always_inline int was_redirected(const struct __sk_buff *skb, const struct plait_packet *packet,
					  const struct plait_flow *flow)
{
	return skb->cb[0] == REDIRECTED || (flow && packet->seen_before && flow->redirected);
}

/* parameters[0]: the interface's index; 0: it does not exist. */
static __always_inline int redirect(struct plait_context context, struct plait_packet *packet,
				    const struct plait_actor *actor, struct plait_flow *flow)
{
	__u32 to = actor->parameters[0];
	__u8 hops;

	if (!to || !context.skb)
		return PLAIT_ERROR;
	if (to == packet->interface)
		return PLAIT_MISS;
	if (packet->hook == PLAIT_INGRESS) {
		hops = hops_left(context, packet);
		/* The kernel reports this to the sender. */
		if (hops <= 1)
			return PLAIT_MISS;
		if (count_hop(context, packet, hops))
			return PLAIT_ERROR;
		packet->changed = 1;
	} else {
		if (was_redirected(context.skb, packet, flow))
			return PLAIT_MISS;
		context.skb->cb[0] = REDIRECTED;
		if (flow)
			flow->redirected = 1;
	}
	if (strip_link(context.skb, packet))
		return PLAIT_ERROR;
	packet->redirect_to = to;
	packet->verdict = PLAIT_REDIRECT;
	return PLAIT_HIT;
}

#endif
