// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * OLIA, opportunistic linked increases: Khalili, Gast, Popovic, Upadhyay and Le Boudec ("MPTCP is not
 *Pareto-optimal: performance issues and a possible solution", CoNEXT 2012, section 4). For each ACK on path r
 *
 *	w_r grows by (w_r / rtt_r^2) / (sum of w_p / rtt_p)^2 + alpha_r / w_r;
 *
 * for each loss on path r, w_r shrinks by w_r / 2. M are the paths with the largest window, B those with the
 * largest l_p / rtt_p^2, where l_p are the bytes between the last two losses or since the last, whichever are
 * more; n is the number of paths. If there are paths in B that are not in M, alpha_r is 1 / (n |B \ M|) for
 * each of these and -1 / (n |M|) for each in M; else, and for all others, it is 0.
 */
#include "reno.h"

struct product {
	__u64 high, low;
};

static __always_inline struct product multiply(__u64 one, __u64 other)
{
	__u64 a = one >> 32, b = one & 0xffffffff, c = other >> 32, d = other & 0xffffffff;
	__u64 middle = (b * d >> 32) + (a * d & 0xffffffff) + (b * c & 0xffffffff);

	return (struct product){
	    .high = a * c + (a * d >> 32) + (b * c >> 32) + (middle >> 32),
	    .low = middle << 32 | (b * d & 0xffffffff),
	};
}

/* Whether l / rtt^2 is greater there than here, without dividing. */
__noinline int exceeds(__u64 there, __u32 rtt_there, __u64 here, __u32 rtt_here)
{
	struct product one = multiply(there, (__u64)rtt_here * rtt_here);
	struct product other = multiply(here, (__u64)rtt_there * rtt_there);

	return one.high > other.high || (one.high == other.high && one.low > other.low);
}

static __always_inline int is_better(const struct plait_path *there, const struct plait_path *here)
{
	return exceeds(there->transmitted, there->rtt, here->transmitted, here->rtt);
}

__noinline __u32 largest_window(const struct connection *seen)
{
	__u32 largest = 0;

	if (!seen)
		return 0;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < seen->number; i++)
		if (seen->paths[i].window > largest)
			largest = seen->paths[i].window;
	return largest;
}

/* The place of a path of B. */
__noinline __u32 best_path(const struct connection *seen)
{
	__u32 best = 0;

	if (!seen)
		return 0;
	for (__u32 i = 1; i < PLAIT_MAX_SUBFLOWS && i < seen->number; i++)
		if (is_better(&seen->paths[i], &seen->paths[best]))
			best = i;
	return best;
}

/* |M|, and 32 bits above it |B \ M|. */
__noinline __u64 sizes(const struct connection *seen, __u32 largest, __u32 best)
{
	__u64 found = 0;

	if (!seen || best >= PLAIT_MAX_SUBFLOWS)
		return 0;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < seen->number; i++) {
		const struct plait_path *path = &seen->paths[i];

		if (path->window == largest)
			found += 1;
		else if (!is_better(&seen->paths[best], path))
			found += 1ull << 32;
	}
	return found;
}

/* alpha_r of the first path, in 2^-32. */
__noinline __s64 alpha(const struct connection *seen)
{
	__u32 largest = largest_window(seen), best = best_path(seen), in_largest, in_best_alone;
	__u64 found = sizes(seen, largest, best);

	in_largest = found;
	in_best_alone = found >> 32;
	if (!seen || best >= PLAIT_MAX_SUBFLOWS || !in_best_alone || !in_largest || !seen->number)
		return 0;
	if (seen->paths[0].window == largest)
		return -(__s64)(ONE / (seen->number * in_largest));
	if (!is_better(&seen->paths[best], &seen->paths[0]))
		return ONE / (seen->number * in_best_alone);
	return 0;
}

__noinline __s64 increase(const struct connection *seen)
{
	__u64 sum = sum_of_rates(seen), size;
	__s64 moved = alpha(seen);
	__u32 window;

	if (!seen)
		return 0;
	window = seen->paths[0].window ?: 1;
	size = (__u64)(moved < 0 ? -moved : moved) / window;
	return (__s64)linked_increase(share(rate(&seen->paths[0]), sum, excess(sum)), window) +
	       (moved < 0 ? -(__s64)size : (__s64)size);
}

__noinline __u32 after_loss(const struct connection *seen)
{
	return seen ? half_of(seen->paths[0].window) : 2;
}

PLAIT_ALGORITHM(olia);
