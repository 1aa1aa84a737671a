// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * BALIA, balanced linked adaptation: Peng, Walid and Low ("Multipath TCP algorithms: theory and design",
 * SIGMETRICS 2013; with Hwang, "Multipath TCP: analysis, design and implementation", IEEE/ACM Transactions on
 * Networking, 2016). With x_r = w_r / rtt_r and alpha_r = max(x_p) / x_r
 *
 *	for each ACK on path r, w_r grows by
 *	(x_r / rtt_r) / (sum of x_p)^2 * (1 + alpha_r) / 2 * (4 + alpha_r) / 5;
 *	for each loss on path r, w_r shrinks by w_r / 2 * min(alpha_r, 3/2).
 *
 * With the shares f = x_r / (sum of x_p) and m = max(x_p) / (sum of x_p), which is alpha_r f, the increase is
 * (f + m) (4 f + m) / 10 / w_r.
 */
#include "reno.h"

__noinline __u64 max_rate(const struct connection *connection)
{
	__u64 max = 0;

	if (!connection)
		return 0;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < connection->path_count; i++) {
		__u64 each = rate(&connection->paths[i]);

		if (each > max)
			max = each;
	}
	return max;
}

__noinline __s64 window_increase(const struct connection *connection)
{
	__u64 sum = sum_of_rates(connection), own, max;
	__u32 shift = rate_shift(sum);

	if (!connection)
		return 0;
	/* In 2^-30: the product, of up to 10, must fit into 64 bits. */
	own = share(rate(&connection->paths[0]), sum, shift) >> 1;
	max = share(max_rate(connection), sum, shift) >> 1;
	return ((own + max) * (4 * own + max) / 10 >> (60 - PLAIT_FRACTION_BITS)) /
	       (connection->paths[0].window ?: 1);
}

__noinline __u32 window_after_loss(const struct connection *connection)
{
	__u64 sum = sum_of_rates(connection), own, max, window, lost;
	__u32 shift = rate_shift(sum);

	if (!connection)
		return 1;
	own = share(rate(&connection->paths[0]), sum, shift);
	max = share(max_rate(connection), sum, shift);
	window = connection->paths[0].window;
	lost = 2 * max >= 3 * own ? window * 3 / 4 : window * max / (2 * own);
	return lost < window ? window - lost : 1;
}

PLAIT_ALGORITHM(balia);
