/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Differences between the supported kernels, from Debian's 6.1 to mainline. Only this file and compat.c test the
 * kernel's version.
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

/* Named since 6.2. */
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

/* compat.c: the newest signatures, on any kernel */

int plait_call_accept(const struct proto_ops *ops, struct socket *sock, struct socket *newsock,
		      struct proto_accept_arg *arg);
int plait_call_recvmsg(const struct proto *proto, struct sock *sk, struct msghdr *msg, size_t len,
		       int flags);

typedef int plait_accept_fn(struct socket *sock, struct socket *newsock,
			    struct proto_accept_arg *arg);
typedef int plait_recvmsg_fn(struct sock *sk, struct msghdr *msg, size_t len, int flags);

/* Install functions with the newest signatures, always the same ones. */
void plait_set_accept(struct proto_ops *ops, plait_accept_fn *accept);
void plait_set_recvmsg(struct proto *proto, plait_recvmsg_fn *recvmsg);

#endif
