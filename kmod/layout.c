// SPDX-License-Identifier: GPL-2.0
/*
 * MPTCP's own struct proto, and the members of struct mptcp_sock that the module needs. That structure is private to
 * MPTCP and differs between kernels; the running kernel's type information (BTF) gives the offsets.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "btf.h"
#include "plait.h"

enum { LOCAL_KEY, REMOTE_KEY, FIRST, PM_TYPE, PM_WORK, PM_ADDRESSES, PM_SUBFLOWS, FIELDS };

static struct {
	const char *path;
	size_t size;
	int offset;
} fields[FIELDS] = {
	[LOCAL_KEY] = { "local_key", sizeof(u64) },
	[REMOTE_KEY] = { "remote_key", sizeof(u64) },
	[FIRST] = { "first", sizeof(struct sock *) },
	[PM_TYPE] = { "pm.pm_type", sizeof(u8) },
	[PM_WORK] = { "pm.work_pending", sizeof(bool) },
	[PM_ADDRESSES] = { "pm.accept_addr", sizeof(bool) },
	[PM_SUBFLOWS] = { "pm.accept_subflow", sizeof(bool) },
};

/* MPTCP's number for path management in user space. */
#define PM_TYPE_USERSPACE 1

/* By address family: IPv4 and IPv6. */
static const struct proto *base_protos[2];

void plait_set_base_proto(const struct sock *sk)
{
	base_protos[sk->sk_family == AF_INET6] = sk->sk_prot;
}

const struct proto *plait_base_proto(const struct sock *sk)
{
	return base_protos[sk->sk_family == AF_INET6];
}

int plait_layout_find(void)
{
	struct plait_btf btf;
	int err, i;

	err = plait_btf_open(&btf);
	if (err) {
		pr_err("cannot read the kernel's type information, error %d\n", err);
		return err;
	}
	for (i = 0; i < FIELDS && !err; i++) {
		fields[i].offset = plait_btf_offset(&btf, "mptcp_sock", fields[i].path, fields[i].size);
		if (fields[i].offset < 0) {
			pr_err("this kernel's struct mptcp_sock has no %s of %zu bytes\n", fields[i].path,
			       fields[i].size);
			err = -ENOENT;
		}
	}
	plait_btf_close(&btf);
	return err;
}

static void *field_of(const struct sock *sk, int field)
{
	return (u8 *)sk + fields[field].offset;
}

u64 plait_local_key(const struct sock *sk)
{
	return READ_ONCE(*(u64 *)field_of(sk, LOCAL_KEY));
}

u64 plait_remote_key(const struct sock *sk)
{
	return READ_ONCE(*(u64 *)field_of(sk, REMOTE_KEY));
}

void plait_forget_remote_key(struct sock *sk)
{
	WRITE_ONCE(*(u64 *)field_of(sk, REMOTE_KEY), 0);
}

struct sock *plait_first_subflow(const struct sock *sk)
{
	return READ_ONCE(*(struct sock **)field_of(sk, FIRST));
}

/* As MPTCP itself does for a socket that is created while net.mptcp.pm_type is 1. */
void plait_use_userspace_pm(struct sock *sk)
{
	WRITE_ONCE(*(u8 *)field_of(sk, PM_TYPE), PM_TYPE_USERSPACE);
	WRITE_ONCE(*(bool *)field_of(sk, PM_WORK), false);
	WRITE_ONCE(*(bool *)field_of(sk, PM_ADDRESSES), false);
	WRITE_ONCE(*(bool *)field_of(sk, PM_SUBFLOWS), false);
}
