/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that the module is built for: from Debian's 6.1 to mainline. Nothing but this file
 * and compat.c asks for a kernel's version.
 */
#ifndef PLAIT_COMPAT_H
#define PLAIT_COMPAT_H

#include <linux/net.h>
#include <linux/uio.h>
#include <linux/version.h>
#include <net/sock.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

/* 6.2 gave the directions of an iov_iter names of their own. */
#ifndef ITER_SOURCE
#define ITER_SOURCE WRITE
#define ITER_DEST READ
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 10, 0)
struct proto_accept_arg {
	int flags;
	bool kern;
};
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 19, 0)
#define sockaddr_unsized sockaddr
#endif

/* compat.c: in the newest form, whatever the running kernel's */

int plait_call_accept(const struct proto_ops *ops, struct socket *sock, struct socket *newsock,
		      struct proto_accept_arg *arg);
int plait_call_recvmsg(const struct proto *proto, struct sock *sk, struct msghdr *msg, size_t len,
		       int flags);
/* Have plait_accept() and plait_recvmsg() called. */
void plait_set_accept(struct proto_ops *ops);
void plait_set_recvmsg(struct proto *proto);

#endif
