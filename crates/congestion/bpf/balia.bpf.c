// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * BALIA, balanced linked adaptation: Peng, Walid and Low ("Multipath TCP algorithms: theory and design",
 *SIGMETRICS 2013; with Hwang, "Multipath TCP: analysis, design and implementation", IEEE/ACM Transactions on
 *Networking, 2016). With x_r = w_r / rtt_r and alpha_r = max(x_p) / x_r
 *
 *	for each ACK on path r, w_r grows by
 *	(x_r / rtt_r) / (sum of x_p)^2 * (1 + alpha_r) / 2 * (4 + alpha_r) / 5;
 *	for each loss on path r, w_r shrinks by w_r / 2 * min(alpha_r, 3/2).
 *
 * With the shares f = x_r / (sum of x_p) and m = max(x_p) / (sum of x_p), which is alpha_r f, the increase is
 * (f + m) (4 f + m) / 10 / w_r.
 */
#include "reno.h"

/* The greatest rate. */
__noinline __u64 most_rate(const struct connection *seen)
{
	__u64 most = 0;

	if (!seen)
		return 0;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < seen->number; i++) {
		__u64 each = rate(&seen->paths[i]);

		if (each > most)
			most = each;
	}
	return most;
}

__noinline __s64 increase(const struct connection *seen)
{
	__u64 sum = sum_of_rates(seen), own, most;
	__u32 shift = excess(sum);

	if (!seen)
		return 0;
	/* In 2^-30: the product, of up to 10, is to fit. */
	own = share(rate(&seen->paths[0]), sum, shift) >> 1;
	most = share(most_rate(seen), sum, shift) >> 1;
	return ((own + most) * (4 * own + most) / 10 >> (60 - PLAIT_FRACTION_BITS)) /
	       (seen->paths[0].window ?: 1);
}

__noinline __u32 after_loss(const struct connection *seen)
{
	__u64 sum = sum_of_rates(seen), own, most, window, lost;
	__u32 shift = excess(sum);

	if (!seen)
		return 1;
	own = share(rate(&seen->paths[0]), sum, shift);
	most = share(most_rate(seen), sum, shift);
	window = seen->paths[0].window;
	lost = 2 * most >= 3 * own ? window * 3 / 4 : window * most / (2 * own);
	return lost < window ? window - lost : 1;
}

PLAIT_ALGORITHM(balia);
