/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Names of congestion control algorithms. */
#ifndef PLAIT_ALGORITHM_H
#define PLAIT_ALGORITHM_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

static const char prefix[] = "plait_";

/* Whether it is one of plait's. */
static __always_inline int is_plait(const __u8 *name)
{
	for (int i = 0; i < (int)sizeof(prefix) - 1; i++)
		if (name[i] != (__u8)prefix[i])
			return 0;
	return 1;
}

#endif
