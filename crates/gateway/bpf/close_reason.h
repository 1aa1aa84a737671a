/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Why a connection ends: an option of its resets. Nothing authenticates it, so it is for messages alone.
 *
 * The kernel shows no program of a socket the options of a reset that arrives, except to those that see every packet of
 * the cgroup.
 */
#ifndef PLAIT_GATEWAY_CLOSE_REASON_H
#define PLAIT_GATEWAY_CLOSE_REASON_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "intf.h"

#define IPV6_HEADER_LENGTH 40
#define TCP_HEADER_LENGTH 20
#define MAX_OPTIONS_LENGTH 40

/* Stored with the socket that user space has. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct plait_close_reasons);
} close_reasons SEC(".maps");

static __always_inline int is_plait_option(const __u8 *bytes)
{
	return bytes[0] == PLAIT_OPTION_KIND && bytes[1] == sizeof(struct plait_option) &&
	       bytes[2] == (PLAIT_OPTION_EXID >> 24) && bytes[3] == (PLAIT_OPTION_EXID >> 16 & 0xff) &&
	       bytes[4] == (PLAIT_OPTION_EXID >> 8 & 0xff) && bytes[5] == (PLAIT_OPTION_EXID & 0xff) &&
	       bytes[6] == PLAIT_OPTION_VERSION;
}

/* The reason in the option of a reset; 0 without one. */
static __always_inline __u8 reason_of_reset(struct __sk_buff *skb)
{
	__u8 options[MAX_OPTIONS_LENGTH] = {};
	__u32 at = IPV6_HEADER_LENGTH, length;
	/* The bytes 12 and 13 of the TCP header. */
	__u8 offset_and_flags[2], first;

	if (skb->protocol != bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, 0, &first, sizeof(first)))
			return 0;
		at = (first & 15) * 4;
	}
	if (bpf_skb_load_bytes(skb, at + 12, offset_and_flags, sizeof(offset_and_flags)) ||
	    !(offset_and_flags[1] & TCPHDR_RST))
		return 0;
	length = (offset_and_flags[0] >> 4) * 4 - TCP_HEADER_LENGTH;
	if (length < sizeof(struct plait_option) || length > sizeof(options) ||
	    bpf_skb_load_bytes(skb, at + TCP_HEADER_LENGTH, options, length))
		return 0;
	/* Wherever it begins: other bytes look like it by no accident. */
	for (__u32 start = 0; start + sizeof(struct plait_option) <= sizeof(options); start++)
		if (is_plait_option(options + start))
			return options[start + 7];
	return 0;
}

#endif
