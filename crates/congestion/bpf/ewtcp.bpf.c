// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * EWTCP, equally weighted TCP: as Wischik, Raiciu, Greenhalgh and Handley have it ("Design, implementation
 *and evaluation of congestion control for multipath TCP", NSDI 2011, section 2.1). Each subflow is a TCP of
 *its own with a lesser increase:
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

__noinline __s64 increase(const struct connection *seen)
{
	__u32 number;

	if (!seen)
		return 0;
	number = seen->number;
	if (number > PLAIT_MAX_SUBFLOWS)
		number = PLAIT_MAX_SUBFLOWS;
	return inverse_root[number] / seen->paths[0].window;
}

__noinline __u32 after_loss(const struct connection *seen)
{
	return seen ? half_of(seen->paths[0].window) : 2;
}

PLAIT_ALGORITHM(ewtcp);
