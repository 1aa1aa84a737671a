/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Whose traffic is redirected. The programs of a whole host are attached to the root of the control groups, or to slices, where
 * they see the sockets of other network namespaces and of the gateway, too.
 */
#ifndef PLAIT_GATEWAY_SCOPE_H
#define PLAIT_GATEWAY_SCOPE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"
#include "intf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_scope);
} scopes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} users SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct plait_program);
	__type(value, __u8);
} programs SEC(".maps");

static __always_inline struct plait_scope read_scope(void)
{
	struct plait_scope *scope, none = {};
	__u32 zero = 0;

	scope = bpf_map_lookup_elem(&scopes, &zero);
	return scope ? *scope : none;
}

static __always_inline int is_user_in_scope(struct plait_scope scope, __u32 user)
{
	return !scope.by_user || bpf_map_lookup_elem(&users, &user);
}

static __always_inline int is_program_in_scope(struct plait_scope scope)
{
	struct plait_program program = {};
	struct task_struct *task;

	if (!scope.by_program)
		return 1;
	task = (struct task_struct *)bpf_get_current_task_btf();
	for (int byte = 0; byte < 15; byte++)
		program.name[byte] = task->group_leader->comm[byte];
	return bpf_map_lookup_elem(&programs, &program) != NULL;
}

/*
 * The cgroup of a socket that connects. The kernel may connect the subflows of a connection in a task of its own.
 */
static __always_inline __u64 cgroup_of(struct bpf_sock_addr *ctx)
{
	struct tcp_sock *tcp = ctx->sk ? (struct tcp_sock *)bpf_skc_to_tcp_sock(ctx->sk) : NULL;
	struct sock *sk = (struct sock *)tcp;

	return sk ? sk->sk_cgrp_data.cgroup->kn->id : bpf_get_current_cgroup_id();
}

/* Whether that of a task is, whose socket is in this network namespace and control group. */
static __always_inline int is_task_in_scope(struct plait_scope scope, __u64 namespace, __u64 cgroup)
{
	return namespace == scope.namespace && cgroup != scope.gateway &&
	       is_user_in_scope(scope, bpf_get_current_uid_gid()) && is_program_in_scope(scope);
}

static __always_inline int is_in_scope(struct bpf_sock_addr *ctx)
{
	struct plait_scope scope = read_scope();

	return !scope.namespace || is_task_in_scope(scope, bpf_get_netns_cookie(ctx), cgroup_of(ctx));
}

/* As is_in_scope, of a socket that is created. */
static __always_inline int is_new_in_scope(struct bpf_sock *ctx)
{
	struct plait_scope scope = read_scope();

	return !scope.namespace ||
	       is_task_in_scope(scope, bpf_get_netns_cookie(ctx), bpf_get_current_cgroup_id());
}

#endif
