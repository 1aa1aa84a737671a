// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * LIA, linked increases: RFC 6356, section 3. For each ACK on path r (all in segments of the same size)
 *
 *	w_r grows by min(alpha / w_total, 1 / w_r), where
 *	alpha = w_total * max(w_p / rtt_p^2) / (sum of w_p / rtt_p)^2;
 *
 * for each loss on path r, w_r shrinks by w_r / 2. Here w_total is cancelled.
 */
#include "reno.h"

__noinline __s64 increase(const struct connection *seen)
{
	__u64 sum = sum_of_rates(seen), most = 0, alone;
	__u32 shift = excess(sum);

	if (!seen)
		return 0;
	alone = ONE / (seen->paths[0].window ?: 1);
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < seen->number; i++) {
		const struct plait_path *path = &seen->paths[i];
		__u64 linked = linked_increase(share(rate(path), sum, shift), path->window ?: 1);

		if (linked > most)
			most = linked;
	}
	return most < alone ? most : alone;
}

__noinline __u32 after_loss(const struct connection *seen)
{
	return seen ? half_of(seen->paths[0].window) : 2;
}

PLAIT_ALGORITHM(lia);
