// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * LIA, linked increases: RFC 6356, section 3. For each ACK on path r (all in segments of the same size)
 *
 *	w_r grows by min(alpha / w_total, 1 / w_r), where
 *	alpha = w_total * max(w_p / rtt_p^2) / (sum of w_p / rtt_p)^2;
 *
 * for each loss on path r, w_r shrinks by w_r / 2. Here w_total cancels out.
 */
#include "reno.h"

__noinline __s64 window_increase(const struct connection *connection)
{
	__u64 sum = sum_of_rates(connection), linked = 0, reno;
	__u32 shift = rate_shift(sum);

	if (!connection)
		return 0;
	reno = ONE / (connection->paths[0].window ?: 1);
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < connection->path_count; i++) {
		const struct plait_path *path = &connection->paths[i];
		__u64 candidate = linked_increase(share(rate(path), sum, shift), path->window ?: 1);

		if (candidate > linked)
			linked = candidate;
	}
	return linked < reno ? linked : reno;
}

__noinline __u32 window_after_loss(const struct connection *connection)
{
	return connection ? reno_ssthresh(connection->paths[0].window) : 2;
}

PLAIT_ALGORITHM(lia);
