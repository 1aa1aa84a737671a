/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* Whether a destination is this host itself. Addresses are in network order. */
#ifndef PLAIT_GATEWAY_LOOPBACK_H
#define PLAIT_GATEWAY_LOOPBACK_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The index of the interface lo. */
#define LOOPBACK_INDEX 1

/* The third word of an IPv4-mapped IPv6 address. */
#define MAPPED bpf_htonl(0xffff)

/* What a program for connect() and sendmsg() returns. */
enum verdict { REFUSE = 0, ALLOW = 1 };

static __always_inline int is_loopback_v4(__u32 address)
{
	return (bpf_ntohl(address) >> 24) == 127 || !address;
}

static __always_inline int is_mapped(const __u32 address[4])
{
	return !address[0] && !address[1] && address[2] == MAPPED;
}

static __always_inline int is_loopback_v6(const __u32 address[4])
{
	if (is_mapped(address))
		return is_loopback_v4(address[3]);
	return !address[0] && !address[1] && !address[2] && (!address[3] || address[3] == bpf_htonl(1));
}

#endif
