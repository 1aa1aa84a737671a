// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * OLIA, opportunistic linked increases: Khalili, Gast, Popovic, Upadhyay and Le Boudec ("MPTCP is not
 * Pareto-optimal: performance issues and a possible solution", CoNEXT 2012, section 4). For each ACK on
 * path r
 *
 *	w_r grows by (w_r / rtt_r^2) / (sum of w_p / rtt_p)^2 + alpha_r / w_r;
 *
 * for each loss on path r, w_r shrinks by w_r / 2. M are the paths with the largest window, B those with the
 * largest l_p / rtt_p^2, where l_p are the bytes between the last two losses or since the last loss,
 * whichever is more; n is the number of paths. If there are paths in B that are not in M, alpha_r is
 * 1 / (n |B \ M|) for each of these and -1 / (n |M|) for each in M; else, and for all others, it is 0.
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

/* Compares l / rtt^2 of two paths without a division. */
__noinline int exceeds(__u64 bytes, __u32 rtt, __u64 other_bytes, __u32 other_rtt)
{
	struct product one = multiply(bytes, (__u64)other_rtt * other_rtt);
	struct product other = multiply(other_bytes, (__u64)rtt * rtt);

	return one.high > other.high || (one.high == other.high && one.low > other.low);
}

static __always_inline int is_better(const struct plait_path *path, const struct plait_path *other)
{
	return exceeds(path->transmitted, path->rtt, other->transmitted, other->rtt);
}

__noinline __u32 largest_window(const struct connection *connection)
{
	__u32 largest = 0;

	if (!connection)
		return 0;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < connection->path_count; i++)
		if (connection->paths[i].window > largest)
			largest = connection->paths[i].window;
	return largest;
}

/* The index of a path in B. */
__noinline __u32 best_path(const struct connection *connection)
{
	__u32 best = 0;

	if (!connection)
		return 0;
	for (__u32 i = 1; i < PLAIT_MAX_SUBFLOWS && i < connection->path_count; i++)
		if (is_better(&connection->paths[i], &connection->paths[best]))
			best = i;
	return best;
}

/* |M| in the low 32 bits, |B \ M| in the high ones. */
__noinline __u64 count_sets(const struct connection *connection, __u32 largest, __u32 best)
{
	__u64 counts = 0;

	if (!connection || best >= PLAIT_MAX_SUBFLOWS)
		return 0;
	for (__u32 i = 0; i < PLAIT_MAX_SUBFLOWS && i < connection->path_count; i++) {
		const struct plait_path *path = &connection->paths[i];

		if (path->window == largest)
			counts += 1;
		else if (!is_better(&connection->paths[best], path))
			counts += 1ull << 32;
	}
	return counts;
}

/* alpha_r of the first path, in 2^-32. */
__noinline __s64 alpha(const struct connection *connection)
{
	__u32 largest = largest_window(connection), best = best_path(connection), in_largest, in_best_alone;
	__u64 counts = count_sets(connection, largest, best);

	in_largest = counts;
	in_best_alone = counts >> 32;
	if (!connection || best >= PLAIT_MAX_SUBFLOWS || !in_best_alone || !in_largest ||
	    !connection->path_count)
		return 0;
	if (connection->paths[0].window == largest)
		return -(__s64)(ONE / (connection->path_count * in_largest));
	if (!is_better(&connection->paths[best], &connection->paths[0]))
		return ONE / (connection->path_count * in_best_alone);
	return 0;
}

__noinline __s64 window_increase(const struct connection *connection)
{
	__u64 sum = sum_of_rates(connection), magnitude;
	__s64 alpha_r = alpha(connection);
	__u32 window;

	if (!connection)
		return 0;
	window = connection->paths[0].window ?: 1;
	magnitude = (__u64)(alpha_r < 0 ? -alpha_r : alpha_r) / window;
	return (__s64)linked_increase(share(rate(&connection->paths[0]), sum, rate_shift(sum)), window) +
	       (alpha_r < 0 ? -(__s64)magnitude : (__s64)magnitude);
}

__noinline __u32 window_after_loss(const struct connection *connection)
{
	return connection ? reno_ssthresh(connection->paths[0].window) : 2;
}

PLAIT_ALGORITHM(olia);
