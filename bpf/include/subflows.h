/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * From a subflow to its MPTCP connection and its siblings, for programs of congestion control.
 *
 * Siblings are read without their locks, as the kernel itself does: each value may be from another moment, and
 * a sibling that is being removed may be read once more. No value is to be trusted.
 */
#ifndef PLAIT_SUBFLOWS_H
#define PLAIT_SUBFLOWS_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

#define AS(type, address) ((type *)bpf_rdonly_cast((const void *)(address), bpf_core_type_id_kernel(type)))

/* NULL if the socket is not a subflow. */
static __always_inline struct mptcp_subflow_context *subflow_of(struct sock *sk)
{
	struct inet_connection_sock *icsk = (struct inet_connection_sock *)sk;

	if (!((struct tcp_sock *)sk)->is_mptcp || !icsk->icsk_ulp_data)
		return NULL;
	return AS(struct mptcp_subflow_context, icsk->icsk_ulp_data);
}

/* The head of the list of a connection's subflows, for next_subflow(). */
static __always_inline void *subflows_of(struct sock *connection)
{
	return (void *)connection + bpf_core_field_offset(struct mptcp_sock, conn_list);
}

/* The entry after this one, or after the head; NULL after the last. */
static __always_inline void *next_subflow(void *head, void *entry)
{
	void *next = AS(struct list_head, entry)->next;

	return next == head ? NULL : next;
}

static __always_inline struct mptcp_subflow_context *subflow_at(void *entry)
{
	return AS(struct mptcp_subflow_context,
		  entry - bpf_core_field_offset(struct mptcp_subflow_context, node));
}

#endif
