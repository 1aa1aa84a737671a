// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * EWTCP, equally weighted TCP, as defined by Wischik, Raiciu, Greenhalgh and Handley ("Design,
 * implementation and evaluation of congestion control for multipath TCP", NSDI 2011, section 2.1). Each
 * subflow is an independent TCP with a smaller increase:
 *
 *	for each ACK on path r, w_r grows by a / w_r, where a = 1 / sqrt(n) for n paths;
 *	for each loss on path r, w_r shrinks by w_r / 2.
 */
#include "reno.h"

/* 2^32 / sqrt(n), rounded. */
static const __u32 inverse_root[PLAIT_MAX_SUBFLOWS + 1] = {
    0,		4294967295, 3037000500, 2479700525, 2147483648, 1920767767, 1753413056,
    1623345051, 1518500250, 1431655765, 1358187913, 1294981364, 1239850262,
};

__noinline __s64 window_increase(const struct connection *connection)
{
	__u32 count;

	if (!connection)
		return 0;
	count = connection->path_count;
	if (count > PLAIT_MAX_SUBFLOWS)
		count = PLAIT_MAX_SUBFLOWS;
	return inverse_root[count] / connection->paths[0].window;
}

__noinline __u32 window_after_loss(const struct connection *connection)
{
	return connection ? reno_ssthresh(connection->paths[0].window) : 2;
}

PLAIT_ALGORITHM(ewtcp);
