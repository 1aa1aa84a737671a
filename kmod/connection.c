// SPDX-License-Identifier: GPL-2.0
/*
 * What becomes of one connection. It is decided once, at the first call that moves bytes after the handshake, from the
 * first rule that matches and from what the ends negotiated; a protected connection never becomes a plain one.
 *
 * It hangs at sk_user_data, which the kernel does not copy to accepted sockets and which nothing else uses on sockets
 * that user space made with MPTCP.
 */
#include <linux/slab.h>
#include <linux/tcp.h>
#include <net/inet_sock.h>
#include <net/tcp_states.h>

#include "plait.h"

struct plait_connection *plait_connection_find(const struct sock *sk)
{
	return (void *)((uintptr_t)READ_ONCE(sk->sk_user_data) & SK_USER_DATA_PTRMASK);
}

struct plait_connection *plait_connection_of(struct sock *sk)
{
	struct plait_connection *connection = plait_connection_find(sk);
	void *tagged;

	if (connection)
		return connection;
	connection = kzalloc(sizeof(*connection), GFP_KERNEL);
	if (!connection)
		return NULL;
	mutex_init(&connection->out.lock);
	mutex_init(&connection->in.lock);
	tagged = (void *)((uintptr_t)connection | SK_USER_DATA_NOCOPY);
	if (cmpxchg(&sk->sk_user_data, NULL, tagged)) {
		kfree(connection);
		return plait_connection_find(sk);
	}
	plait_count(PLAIT_OPENED, 1);
	return connection;
}

void plait_connection_reset(struct plait_connection *connection)
{
	plait_direction_end(&connection->out);
	plait_direction_end(&connection->in);
	connection->initiator = false;
	connection->ordered = false;
	connection->heard = false;
	/* As in conclude(). */
	smp_store_release(&connection->fate, PLAIT_UNDECIDED);
}

void plait_connection_free(struct sock *sk)
{
	struct plait_connection *connection = plait_connection_find(sk);

	if (!connection)
		return;
	WRITE_ONCE(sk->sk_user_data, NULL);
	plait_connection_reset(connection);
	kfree(connection);
	plait_count(PLAIT_CLOSED, 1);
}

void plait_return_error(struct sock *sk, int error)
{
	/* These come from the connection's state, and come again. */
	if (error != -EAGAIN && error != -EPIPE && error != -ENOTCONN)
		WRITE_ONCE(sk->sk_err, -error);
}

static int begin(struct sock *sk, struct plait_connection *connection, u8 mode)
{
	struct plait_keys out = { .from_initiator = connection->initiator };
	struct plait_keys in = { .from_initiator = !connection->initiator };
	int err;

	put_unaligned_be64(plait_local_key(sk), out.sender);
	put_unaligned_be64(plait_remote_key(sk), out.receiver);
	memcpy(in.sender, out.receiver, PLAIT_KEY_SIZE);
	memcpy(in.receiver, out.sender, PLAIT_KEY_SIZE);
	err = plait_direction_begin(&connection->out, mode, &out);
	if (!err) {
		err = plait_direction_begin(&connection->in, mode, &in);
		if (err)
			plait_direction_end(&connection->out);
	}
	memzero_explicit(&out, sizeof(out));
	memzero_explicit(&in, sizeof(in));
	return err;
}

static int fate_unprotected(const struct plait_order *order)
{
	return order->require ? PLAIT_REFUSED : PLAIT_PLAIN;
}

/*
 * The fate by what the ends agreed on; a protected one's mode goes to @mode. The negotiator runs while a packet of the
 * handshake is processed, with the first subflow locked, and the connection may be seen from here before it has:
 * locking the subflow waits for it.
 */
static int negotiated(struct sock *sk, struct sock *subflow, const struct plait_order *order, u8 *mode)
{
	struct plait_verdict verdict;

	lock_sock_nested(subflow, SINGLE_DEPTH_NESTING);
	release_sock(subflow);
	if (!plait_verdict_read(sk, order->verdicts, &verdict))
		return PLAIT_REFUSED;
	switch (verdict.outcome) {
	case PLAIT_OUTCOME_NEGOTIATED:
		*mode = verdict.mode;
		return PLAIT_PROTECTED;
	case PLAIT_OUTCOME_PLAIN:
	case PLAIT_OUTCOME_NO_COMMON_MODE:
	case PLAIT_OUTCOME_FALLBACK:
		return fate_unprotected(order);
	default:
		return PLAIT_REFUSED;
	}
}

static int decide(struct sock *sk, struct plait_connection *connection)
{
	const struct plait_order *order = &connection->order;
	struct sock *first = plait_first_subflow(sk);
	int fate = PLAIT_PROTECTED;
	u8 mode = order->mode;
	int err;

	if (!connection->ordered)
		return PLAIT_PLAIN;
	if (order->verdicts)
		fate = first ? negotiated(sk, first, order, &mode) : PLAIT_REFUSED;
	/* After a fallback to TCP there is no key to protect anything with. */
	if (fate == PLAIT_PROTECTED && !plait_remote_key(sk))
		fate = order->verdicts ? PLAIT_REFUSED : fate_unprotected(order);
	if (fate != PLAIT_PROTECTED)
		return fate;
	err = begin(sk, connection, mode);
	return err == -EOPNOTSUPP ? PLAIT_REFUSED : err ? : PLAIT_PROTECTED;
}

void plait_connection_order(struct sock *sk, struct plait_connection *connection, u16 port)
{
	connection->ordered = plait_rules_match(sk, port, &connection->order);
}

bool plait_refuses_tcp(const struct sock *listener, struct sock *child)
{
	struct plait_order order;
	u8 mode;

	if (!plait_rules_match(listener, inet_sk(listener)->inet_num, &order))
		return false;
	if (!order.verdicts)
		return order.require;
	return negotiated(child, child, &order, &mode) != PLAIT_PLAIN;
}

static void conclude(struct sock *sk, struct plait_connection *connection, int fate)
{
	if (fate == PLAIT_REFUSED) {
		/* Resets every subflow. Where it cannot, no byte passes all the same. */
		plait_base(sk)->disconnect(sk, 0);
		plait_count(PLAIT_COUNT_REFUSED, 1);
	} else {
		plait_count(fate == PLAIT_PLAIN ? PLAIT_COUNT_PLAIN : PLAIT_COUNT_PROTECTED, 1);
	}
	pr_debug("%p: fate %d, mode %#x\n", sk, fate, connection->out.mode);
	/* Whoever sees the fate sees the transforms. */
	smp_store_release(&connection->fate, fate);
}

static bool is_connected(const struct sock *sk)
{
	return !((1 << sk->sk_state) & (TCPF_CLOSE | TCPF_LISTEN | TCPF_SYN_SENT | TCPF_SYN_RECV));
}

int plait_settle(struct sock *sk, struct plait_connection *connection, bool arrived)
{
	/* Pairs with conclude(). */
	int fate = smp_load_acquire(&connection->fate);

	if (fate != PLAIT_UNDECIDED)
		return fate;
	lock_sock(sk);
	fate = connection->fate;
	if (fate == PLAIT_UNDECIDED && (arrived || is_connected(sk))) {
		fate = decide(sk, connection);
		if (fate >= 0)
			conclude(sk, connection, fate);
	}
	release_sock(sk);
	return fate;
}

/*
 * A peer that negotiates makes no further subflow before its first flight has arrived. One that was made all the same
 * says that somebody else made it, or that the first flight crossed paths that are not trusted.
 */
int plait_hear(struct sock *sk, struct plait_connection *connection)
{
	struct plait_verdict verdict;
	bool early;

	if (connection->heard)
		return 0;
	connection->heard = true;
	if (connection->initiator || !connection->order.verdicts)
		return 0;
	early = plait_verdict_read(sk, connection->order.verdicts, &verdict) &&
		verdict.joined & PLAIT_JOINED_EARLY;
	memzero_explicit(&verdict, sizeof(verdict));
	if (!early)
		return 0;
	lock_sock(sk);
	conclude(sk, connection, PLAIT_REFUSED);
	release_sock(sk);
	return -ECONNRESET;
}
