// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The fully coupled algorithm: COUPLED of Wischik, Raiciu, Greenhalgh and Handley ("Design, implementation
 * and evaluation of congestion control for multipath TCP", NSDI 2011, section 2.2). All subflows together
 * behave like one TCP, which moves to the paths with the lowest loss:
 *
 *	for each ACK on path r, w_r grows by 1 / w_total;
 *	for each loss on path r, w_r shrinks by w_total / 2, but not below 1.
 */
#include "reno.h"

__noinline __u64 total_window(const struct connection *connection)
{
	__u64 total = 0;

	if (!connection)
		return 1;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < connection->path_count; i++)
		total += connection->paths[i].window;
	return total;
}

__noinline __s64 window_increase(const struct connection *connection)
{
	return ONE / total_window(connection);
}

__noinline __u32 window_after_loss(const struct connection *connection)
{
	__u64 lost = total_window(connection) / 2;

	return connection && lost < connection->paths[0].window ? connection->paths[0].window - lost : 1;
}

PLAIT_ALGORITHM(coupled);
