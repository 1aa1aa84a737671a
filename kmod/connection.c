// SPDX-License-Identifier: GPL-2.0
/*
 * The state of one connection. It is decided once, at the first call that moves bytes after the handshake, by the first
 * rule that matches and the negotiated mode; a protected connection never becomes a plain one.
 *
 * It is stored in sk_user_data, which the kernel does not copy to accepted sockets and which nothing else uses on MPTCP
 * sockets of user space.
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

struct plait_connection *plait_connection_get(struct sock *sk)
{
	struct plait_connection *connection = plait_connection_find(sk);
	void *tagged;

	if (connection)
		return connection;
	connection = kzalloc(sizeof(*connection), GFP_KERNEL_ACCOUNT);
	if (!connection)
		return NULL;
	mutex_init(&connection->out.lock);
	mutex_init(&connection->in.lock);
	tagged = (void *)((uintptr_t)connection | SK_USER_DATA_NOCOPY);
	if (cmpxchg(&sk->sk_user_data, NULL, tagged)) {
		kfree(connection);
		return plait_connection_find(sk);
	}
	plait_count(PLAIT_COUNT_OPENED, 1);
	return connection;
}

void plait_connection_reset(struct plait_connection *connection)
{
	plait_direction_destroy(&connection->out);
	plait_direction_destroy(&connection->in);
	connection->initiator = false;
	connection->has_rule = false;
	connection->first_data_checked = false;
	/* Pairs with plait_connection_decide(). */
	smp_store_release(&connection->state, PLAIT_UNDECIDED);
}

void plait_connection_free(struct sock *sk)
{
	struct plait_connection *connection = plait_connection_find(sk);

	if (!connection)
		return;
	WRITE_ONCE(sk->sk_user_data, NULL);
	plait_connection_reset(connection);
	kfree_sensitive(connection);
	plait_count(PLAIT_COUNT_CLOSED, 1);
}

void plait_set_error(struct sock *sk, int error)
{
	/* These follow from the connection's state and recur. */
	if (error != -EAGAIN && error != -EPIPE && error != -ENOTCONN)
		WRITE_ONCE(sk->sk_err, -error);
}

static int init_directions(struct sock *sk, struct plait_connection *connection, u8 mode)
{
	struct plait_keys out = { .from_initiator = connection->initiator };
	struct plait_keys in = { .from_initiator = !connection->initiator };
	int err;

	put_unaligned_be64(plait_local_key(sk), out.sender);
	put_unaligned_be64(plait_remote_key(sk), out.receiver);
	memcpy(in.sender, out.receiver, PLAIT_KEY_SIZE);
	memcpy(in.receiver, out.sender, PLAIT_KEY_SIZE);
	err = plait_direction_init(&connection->out, mode, &out);
	if (!err) {
		err = plait_direction_init(&connection->in, mode, &in);
		if (err)
			plait_direction_destroy(&connection->out);
	}
	memzero_explicit(&out, sizeof(out));
	memzero_explicit(&in, sizeof(in));
	return err;
}

static int state_unprotected(const struct plait_rule_action *action)
{
	return action->require ? PLAIT_REFUSED : PLAIT_PLAIN;
}

/*
 * The state by the negotiated outcome; the mode of a protected connection is stored in @mode. The negotiator runs while
 * a packet of the handshake is processed, with the first subflow locked, and this may run before: locking the subflow
 * waits for it.
 */
static int negotiated(struct sock *sk, struct sock *subflow, const struct plait_rule_action *action, u8 *mode)
{
	int state = PLAIT_REFUSED;
	struct plait_verdict verdict;

	lock_sock_nested(subflow, SINGLE_DEPTH_NESTING);
	release_sock(subflow);
	if (!plait_verdict_read(sk, action->verdicts, &verdict))
		return state;
	switch (verdict.outcome) {
	case PLAIT_OUTCOME_NEGOTIATED:
		*mode = verdict.mode;
		state = PLAIT_PROTECTED;
		break;
	case PLAIT_OUTCOME_PLAIN:
	case PLAIT_OUTCOME_NO_COMMON_MODE:
	case PLAIT_OUTCOME_FALLBACK:
		state = state_unprotected(action);
		break;
	}
	/* It has the MPTCP keys. */
	memzero_explicit(&verdict, sizeof(verdict));
	return state;
}

static int decide(struct sock *sk, struct plait_connection *connection)
{
	const struct plait_rule_action *action = &connection->action;
	struct sock *first = plait_first_subflow(sk);
	int state = PLAIT_PROTECTED;
	u8 mode = action->mode;
	int err;

	if (!connection->has_rule)
		return PLAIT_PLAIN;
	if (action->verdicts)
		state = first ? negotiated(sk, first, action, &mode) : PLAIT_REFUSED;
	/* After a fallback to TCP there is no key to protect anything with. */
	if (state == PLAIT_PROTECTED && !plait_remote_key(sk))
		state = action->verdicts ? PLAIT_REFUSED : state_unprotected(action);
	if (state != PLAIT_PROTECTED)
		return state;
	err = init_directions(sk, connection, mode);
	return err == -EOPNOTSUPP ? PLAIT_REFUSED : err ? : PLAIT_PROTECTED;
}

void plait_connection_match_rule(struct sock *sk, struct plait_connection *connection, u16 port)
{
	connection->has_rule = plait_rules_match(sk, port, &connection->action);
}

bool plait_tcp_is_refused(const struct sock *listener, struct sock *child)
{
	struct plait_rule_action action;
	u8 mode;

	if (!plait_rules_match(listener, inet_sk(listener)->inet_num, &action))
		return false;
	if (!action.verdicts)
		return action.require;
	return negotiated(child, child, &action, &mode) != PLAIT_PLAIN;
}

static void set_state(struct sock *sk, struct plait_connection *connection, int state)
{
	if (state == PLAIT_REFUSED) {
		/* Resets every subflow. Even if that fails, no byte passes. */
		plait_base_proto(sk)->disconnect(sk, 0);
		plait_count(PLAIT_COUNT_REFUSED, 1);
	} else {
		plait_count(state == PLAIT_PLAIN ? PLAIT_COUNT_PLAIN : PLAIT_COUNT_PROTECTED, 1);
	}
	pr_debug("%p: state %d, mode %#x\n", sk, state, connection->out.mode);
	/* Publish the transforms before the state. */
	smp_store_release(&connection->state, state);
}

static bool is_connected(const struct sock *sk)
{
	return !((1 << sk->sk_state) & (TCPF_CLOSE | TCPF_LISTEN | TCPF_SYN_SENT | TCPF_SYN_RECV));
}

int plait_connection_decide(struct sock *sk, struct plait_connection *connection, bool arrived)
{
	/* Pairs with set_state(). */
	int state = smp_load_acquire(&connection->state);

	if (state != PLAIT_UNDECIDED)
		return state;
	lock_sock(sk);
	state = connection->state;
	if (state == PLAIT_UNDECIDED && (arrived || is_connected(sk))) {
		state = decide(sk, connection);
		if (state >= 0)
			set_state(sk, connection, state);
	}
	release_sock(sk);
	return state;
}

/*
 * A peer that negotiates creates no further subflow before its first flight has arrived. If there is one, an attacker
 * created it, or the first flight crossed untrusted paths.
 */
int plait_check_first_data(struct sock *sk, struct plait_connection *connection)
{
	struct plait_verdict verdict;
	bool early;

	if (connection->first_data_checked)
		return 0;
	connection->first_data_checked = true;
	if (connection->initiator || !connection->action.verdicts)
		return 0;
	early = plait_verdict_read(sk, connection->action.verdicts, &verdict) &&
		verdict.joined & PLAIT_JOINED_EARLY;
	memzero_explicit(&verdict, sizeof(verdict));
	if (!early)
		return 0;
	lock_sock(sk);
	set_state(sk, connection, PLAIT_REFUSED);
	release_sock(sk);
	return -ECONNRESET;
}
