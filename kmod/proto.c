// SPDX-License-Identifier: GPL-2.0
/*
 * Hooks sockets. MPTCP's struct proto is copied for each address family, and the copy has our functions for what moves
 * bytes or ends a connection. A socket is hooked by giving it the copy when it is created; accepted sockets inherit it.
 * In MPTCP's own struct proto only .init is ours, so sockets that are not hooked, and those from before the module was
 * loaded, never get here again.
 *
 * A hooked socket holds a reference to the module until its memory is freed, because the copy's owner is the module and
 * the kernel's core drops that reference by sk_prot_creator: after that none of our code can run for that socket.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/in.h>
#include <linux/module.h>
#include <linux/net.h>
#include <linux/rcupdate.h>
#include <linux/srcu.h>
#include <net/net_namespace.h>
#include <net/tcp.h>

#include "plait.h"

struct family {
	int number;
	/* MPTCP's own struct proto, whose .init is hooked, and the original .init. */
	struct proto *base;
	int (*init)(struct sock *sk);
	const struct proto_ops *base_ops;
	struct proto ours;
	struct proto_ops ops;
};

static struct family families[] = {
	{ .number = AF_INET },
	{ .number = AF_INET6 },
};

/* Callers inside hooked_init(). */
DEFINE_STATIC_SRCU(in_hook);

static struct family *family_of(const struct sock *sk)
{
	return &families[sk->sk_family == AF_INET6];
}

static int plait_connect(struct sock *sk, struct sockaddr_unsized *address, int len)
{
	struct plait_connection *connection = plait_connection_get(sk);
	/* The port is at the same offset in an IPv6 address. */
	u16 port = ntohs(((struct sockaddr_in *)address)->sin_port);

	if (!connection)
		return -ENOMEM;
	connection->initiator = true;
	plait_connection_match_rule(sk, connection, port);
	plait_forget_remote_key(sk);
	if (connection->has_rule && connection->action.hold)
		plait_use_userspace_pm(sk);
	return plait_base_proto(sk)->connect(sk, address, len);
}

/*
 * Called with the socket locked, while moving bytes locks the direction first and then the socket: so only trylock is
 * possible here. MPTCP itself refuses to disconnect during a blocking call.
 */
static int plait_disconnect(struct sock *sk, int flags)
{
	struct plait_connection *connection = plait_connection_find(sk);
	int err = -EBUSY;

	if (!connection)
		return plait_base_proto(sk)->disconnect(sk, flags);
	if (!mutex_trylock(&connection->out.lock))
		return err;
	if (mutex_trylock(&connection->in.lock)) {
		err = plait_base_proto(sk)->disconnect(sk, flags);
		if (!err)
			plait_connection_reset(connection);
		mutex_unlock(&connection->in.lock);
	}
	mutex_unlock(&connection->out.lock);
	return err;
}

/* Decided at once, by the current rules; a temporary error leaves it for later. */
static int decide_accepted(struct sock *sk)
{
	struct plait_connection *connection = plait_connection_get(sk);

	if (!connection)
		return -ENOMEM;
	plait_connection_match_rule(sk, connection, inet_sk(sk)->inet_num);
	plait_connection_decide(sk, connection, true);
	return 0;
}

/* A connection that fell back to TCP in its handshake is accepted as a TCP socket, which is not hooked. */
static int plait_accept(struct socket *sock, struct socket *newsock, struct proto_accept_arg *arg)
{
	struct sock *listener = sock->sk;
	int err;

	err = plait_call_accept(family_of(listener)->base_ops, sock, newsock, arg);
	if (err)
		return err;
	if (newsock->sk->sk_prot == listener->sk_prot)
		return decide_accepted(newsock->sk);
	if (plait_tcp_is_refused(listener, newsock->sk)) {
		tcp_abort(newsock->sk, ECONNRESET);
		plait_count(PLAIT_COUNT_REFUSED, 1);
	}
	return 0;
}

static void plait_destroy(struct sock *sk)
{
	plait_connection_free(sk);
	plait_base_proto(sk)->destroy(sk);
}

static void hook_socket(struct family *family, struct sock *sk)
{
	sk->sk_prot_creator = &family->ours;
	WRITE_ONCE(sk->sk_prot, &family->ours);
	WRITE_ONCE(sk->sk_socket->ops, &family->ops);
	plait_count(PLAIT_COUNT_HOOKED, 1);
}

static int hooked_init(struct sock *sk)
{
	struct family *family = family_of(sk);
	int index = srcu_read_lock(&in_hook);
	int err = family->init(sk);

	if (!err && !sk->sk_kern_sock && plait_rules_may_match(sk) && try_module_get(THIS_MODULE))
		hook_socket(family, sk);
	srcu_read_unlock(&in_hook, index);
	return err;
}

static void copy_proto(struct family *family, struct socket *probe)
{
	family->base = probe->sk->sk_prot;
	plait_set_base_proto(probe->sk);
	family->init = family->base->init;
	family->ours = *family->base;
	family->ours.owner = THIS_MODULE;
	family->ours.connect = plait_connect;
	family->ours.disconnect = plait_disconnect;
	family->ours.destroy = plait_destroy;
	family->ours.sendmsg = plait_sendmsg;
	plait_set_recvmsg(&family->ours, plait_recvmsg);
	family->base_ops = probe->ops;
	family->ops = *probe->ops;
	plait_set_accept(&family->ops, plait_accept);
	/* Without these, the kernel uses recvmsg. */
	family->ops.splice_read = NULL;
	family->ops.read_sock = NULL;
}

/* They have no symbol to look up: create a socket to find them. */
int plait_protos_find(void)
{
	struct socket *probe;
	size_t i;
	int err;

	for (i = 0; i < ARRAY_SIZE(families); i++) {
		err = sock_create_kern(&init_net, families[i].number, SOCK_STREAM, IPPROTO_MPTCP, &probe);
		/* A kernel without IPv6, or without MPTCP over it. */
		if (i && (err == -EAFNOSUPPORT || err == -EPROTONOSUPPORT))
			continue;
		if (err) {
			pr_err("cannot create an MPTCP socket, error %d: is net.mptcp.enabled 1?\n", err);
			return err;
		}
		copy_proto(&families[i], probe);
		sock_release(probe);
	}
	return 0;
}

void plait_protos_hook(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(families); i++)
		if (families[i].base)
			WRITE_ONCE(families[i].base->init, hooked_init);
}

/*
 * A task that read the pointer before it was restored may not have locked yet, and one that has unlocked may not have
 * returned yet: neither sleeps there, so an RCU tasks grace period covers both.
 */
void plait_protos_unhook(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(families); i++)
		if (families[i].base)
			WRITE_ONCE(families[i].base->init, families[i].init);
	synchronize_rcu_tasks();
	synchronize_srcu(&in_hook);
	synchronize_rcu_tasks();
}
