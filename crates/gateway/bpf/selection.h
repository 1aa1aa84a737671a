/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Selects connections by the same criteria as a rule of the kernel module: the connections that negotiate must
 * be those that the module protects.
 */
#ifndef PLAIT_GATEWAY_SELECTION_H
#define PLAIT_GATEWAY_SELECTION_H

#include "kernel.h"
#include "intf.h"

/* The kernel's own MPTCP functions belong to no module; those that plait.ko replaces them with belong to it. */
static __always_inline int is_taken(struct mptcp_sock *msk)
{
	struct proto *proto = ((struct sock *)msk)->__sk_common.skc_prot;

	return proto && proto->owner;
}

static __always_inline int selects(const struct plait_selection *selection, __u32 mark, __u16 port)
{
	if ((mark & selection->mask) != selection->mark)
		return 0;
	if (!selection->ports_len)
		return 1;
	for (int i = 0; i < PLAIT_MAX_PORTS; i++)
		if ((__u32)i < selection->ports_len && port >= selection->ports[i].first &&
		    port <= selection->ports[i].last)
			return 1;
	return 0;
}

#endif
