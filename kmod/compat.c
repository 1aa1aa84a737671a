// SPDX-License-Identifier: GPL-2.0
/* Functions whose signature differs between kernels: MPTCP's, called by us, and ours, called by the kernel. */
#include "compat.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)

int plait_call_accept(const struct proto_ops *ops, struct socket *sock, struct socket *newsock,
		      struct proto_accept_arg *arg)
{
	return ops->accept(sock, newsock, arg);
}

void plait_set_accept(struct proto_ops *ops, plait_accept_fn *accept)
{
	ops->accept = accept;
}

#else

int plait_call_accept(const struct proto_ops *ops, struct socket *sock, struct socket *newsock,
		      struct proto_accept_arg *arg)
{
	return ops->accept(sock, newsock, arg->flags, arg->kern);
}

static plait_accept_fn *new_accept;

static int old_accept(struct socket *sock, struct socket *newsock, int flags, bool kern)
{
	struct proto_accept_arg arg = { .flags = flags, .kern = kern };

	return new_accept(sock, newsock, &arg);
}

void plait_set_accept(struct proto_ops *ops, plait_accept_fn *accept)
{
	new_accept = accept;
	ops->accept = old_accept;
}

#endif

/*
 * The address length was a parameter of its own until 7.1; stable kernels may or may not have the change backported, so
 * test the type and not the version. Only the error queue returns addresses.
 */
typedef int old_recvmsg_fn(struct sock *sk, struct msghdr *msg, size_t len, int flags, int *addr_len);

#define RECVMSG_IS_OLD __same_type(((struct proto *)0)->recvmsg, (old_recvmsg_fn *)0)

int plait_call_recvmsg(const struct proto *proto, struct sock *sk, struct msghdr *msg, size_t len,
		       int flags)
{
	void *recvmsg = proto->recvmsg;

	if (RECVMSG_IS_OLD)
		return ((old_recvmsg_fn *)recvmsg)(sk, msg, len, flags, &msg->msg_namelen);
	return ((plait_recvmsg_fn *)recvmsg)(sk, msg, len, flags);
}

static plait_recvmsg_fn *new_recvmsg;

static int old_recvmsg(struct sock *sk, struct msghdr *msg, size_t len, int flags, int *addr_len)
{
	int result;

	msg->msg_namelen = *addr_len;
	result = new_recvmsg(sk, msg, len, flags);
	*addr_len = msg->msg_namelen;
	return result;
}

void plait_set_recvmsg(struct proto *proto, plait_recvmsg_fn *recvmsg)
{
	new_recvmsg = recvmsg;
	proto->recvmsg = RECVMSG_IS_OLD ? (void *)old_recvmsg : (void *)recvmsg;
}
