// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The fully coupled algorithm: COUPLED of Wischik, Raiciu, Greenhalgh and Handley ("Design, implementation
 *and evaluation of congestion control for multipath TCP", NSDI 2011, section 2.2). All subflows together are
 *one TCP, which moves to the paths that lose least:
 *
 *	for each ACK on path r, w_r grows by 1 / w_total;
 *	for each loss on path r, w_r shrinks by w_total / 2, but not below 1.
 */
#include "reno.h"

__noinline __u64 total_window(const struct connection *seen)
{
	__u64 total = 0;

	if (!seen)
		return 1;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < seen->number; i++)
		total += seen->paths[i].window;
	return total;
}

__noinline __s64 increase(const struct connection *seen)
{
	return ONE / total_window(seen);
}

__noinline __u32 after_loss(const struct connection *seen)
{
	__u64 lost = total_window(seen) / 2;

	return seen && lost < seen->paths[0].window ? seen->paths[0].window - lost : 1;
}

PLAIT_ALGORITHM(coupled);
