/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Fixed-point arithmetic. Increases of a window are in 2^-32 segments, shares in 2^-31 of the total.
 *
 * All of these algorithms can be written in terms of shares: with the rate x = w / rtt of each path and
 * f = x / (sum of all x), (w / rtt^2) / (sum of all w / rtt)^2 = f^2 / w. A rate is exact to rtt / (w 2^40),
 * with the round-trip time in 1/8 us: for one segment per second, 8e-6; a share to 2^-30 beyond that.
 */
#ifndef PLAIT_CONGESTION_FIXED_H
#define PLAIT_CONGESTION_FIXED_H

#include "connection.h"

#define ONE (1ull << PLAIT_FRACTION_BITS)
#define SHARE_BITS 31
#define RATE_BITS 40

/* At most 2^60, as add_path() limits window and round-trip time: the sum of all fits into 64 bits. */
static __always_inline __u64 rate(const struct plait_path *path)
{
	return ((__u64)path->window << RATE_BITS) / path->rtt;
}

/* How far rates must be shifted right for their sum to fit into 32 bits. */
__noinline __u32 rate_shift(__u64 sum)
{
	__u32 shift = 0;

	for (__u32 step = 16; step; step >>= 1)
		if (sum >> shift >> step >> 31 > 1)
			shift += step;
	if (sum >> shift >> 32)
		shift++;
	return shift;
}

/* A rate's share of the sum, with the sum's rate_shift(). At most 1. */
__noinline __u64 share(__u64 rate, __u64 sum, __u32 shift)
{
	__u64 total = sum >> shift;

	return total ? ((rate >> shift) << SHARE_BITS) / total : 0;
}

__noinline __u64 sum_of_rates(const struct connection *connection)
{
	__u64 sum = 0;

	if (!connection)
		return 0;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < connection->path_count; i++)
		sum += rate(&connection->paths[i]);
	return sum;
}

/* f^2 / w = (w / rtt^2) / (sum of all w / rtt)^2, in 2^-32. */
static __always_inline __u64 linked_increase(__u64 share, __u32 window)
{
	return (share * share >> (2 * SHARE_BITS - PLAIT_FRACTION_BITS)) / window;
}

#endif
