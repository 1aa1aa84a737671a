// SPDX-License-Identifier: GPL-2.0
/*
 * sendmsg(): the program's bytes are copied piece by piece, transformed in the copy, and passed to MPTCP. A direction
 * advances by what MPTCP accepted of a piece; the rest is dropped, and the program sends it again.
 *
 * MPTCP is always called without blocking. Blocking is done here, with the direction unlocked, so that a caller waiting
 * for buffer space never delays a non-blocking one, and a timeout applies to the whole call.
 */
#include <linux/sched/signal.h>
#include <net/sock.h>

#include "plait.h"

/* Lets MPTCP connect or wait until it is connected, as @msg asks, without a byte of data. */
static int connect_first(struct sock *sk, struct msghdr *msg)
{
	struct msghdr empty = {
		.msg_name = msg->msg_name,
		.msg_namelen = msg->msg_namelen,
		.msg_flags = msg->msg_flags,
	};

	iov_iter_kvec(&empty.msg_iter, ITER_SOURCE, NULL, 0, 0);
	return plait_base_proto(sk)->sendmsg(sk, &empty, 0);
}

/* How much MPTCP accepted of the next piece, or an error. */
static int send_piece(struct sock *sk, struct plait_direction *out, struct plait_bounce *plain,
		      struct plait_bounce *wire, struct iov_iter *bytes, size_t len, int flags)
{
	struct msghdr piece = { .msg_flags = flags | MSG_DONTWAIT | MSG_NOSIGNAL };
	struct kvec vector;
	size_t copied;
	int taken;

	plait_bounce_align(plain, out);
	plait_bounce_align(wire, out);
	copied = copy_from_iter(plain->bytes, len, bytes);
	if (!copied)
		return -EFAULT;
	taken = plait_encode(out, plain, wire, copied);
	if (!taken) {
		vector = (struct kvec){ .iov_base = wire->bytes, .iov_len = copied };
		iov_iter_kvec(&piece.msg_iter, ITER_SOURCE, &vector, 1, copied);
		taken = plait_base_proto(sk)->sendmsg(sk, &piece, copied);
	}
	if (taken > 0)
		plait_advance(out, plain, taken);
	iov_iter_revert(bytes, copied - max(taken, 0));
	return taken;
}

/*
 * There may be space by now, so check before waiting. If there was space before, too, the machine is out of memory, and
 * sk_stream_wait_memory() pauses.
 */
static int wait_for_space(struct sock *sk, long *timeout, bool had_space)
{
	int err = 0;

	lock_sock(sk);
	if (had_space || !sk_stream_memory_free(sk))
		err = sk_stream_wait_memory(sk, timeout);
	release_sock(sk);
	return err;
}

/* Sends as much as possible; @sent is how much. Returns the error that stopped it, 0 if all was sent. */
static int send_all(struct sock *sk, struct plait_connection *connection, struct msghdr *msg,
		    size_t len, size_t *sent)
{
	long timeout = sock_sndtimeo(sk, msg->msg_flags & MSG_DONTWAIT);
	struct plait_direction *out = &connection->out;
	struct plait_bounce plain = {}, wire = {};
	bool waited = false;
	int result;

	result = plait_bounce_get(&plain, min(len, PLAIT_PIECE));
	if (!result)
		result = plait_bounce_get(&wire, min(len, PLAIT_PIECE));
	if (result)
		goto free;
	mutex_lock(&out->lock);
	while (*sent < len) {
		size_t size = min(len - *sent, PLAIT_PIECE);
		bool last = size == len - *sent;
		int flags = last ? msg->msg_flags & MSG_MORE : MSG_MORE;

		/* The socket may have been disconnected while this call waited. */
		result = -ECONNRESET;
		if (READ_ONCE(connection->state) != PLAIT_PROTECTED)
			break;
		result = send_piece(sk, out, &plain, &wire, &msg->msg_iter, size, flags);
		if (result > 0) {
			*sent += result;
			waited = false;
			continue;
		}
		if (result == -EFAULT)
			plait_count(PLAIT_FAULTS, 1);
		else if (*sent)
			plait_set_error(sk, result);
		if (result != -EAGAIN || !timeout)
			break;
		mutex_unlock(&out->lock);
		result = wait_for_space(sk, &timeout, waited);
		mutex_lock(&out->lock);
		if (result)
			break;
		waited = true;
	}
	mutex_unlock(&out->lock);
free:
	plait_bounce_put(&wire);
	plait_bounce_put(&plain);
	return result;
}

int plait_sendmsg(struct sock *sk, struct msghdr *msg, size_t len)
{
	struct plait_connection *connection;
	size_t sent = 0;
	int result;

	if (!len)
		return plait_base_proto(sk)->sendmsg(sk, msg, len);
	connection = plait_connection_get(sk);
	if (!connection)
		return -ENOMEM;
	if (READ_ONCE(connection->state) == PLAIT_UNDECIDED) {
		result = connect_first(sk, msg);
		if (result < 0)
			return result;
	}
	result = plait_connection_decide(sk, connection, false);
	switch (result) {
	case PLAIT_PLAIN:
		return plait_base_proto(sk)->sendmsg(sk, msg, len);
	case PLAIT_PROTECTED:
		result = send_all(sk, connection, msg, len, &sent);
		break;
	case PLAIT_REFUSED:
		return -ECONNRESET;
	case PLAIT_UNDECIDED:
		/* It was established, and has ended. */
		result = -EPIPE;
	}
	plait_count(PLAIT_BYTES_SENT, sent);
	if (sent)
		return sent;
	lock_sock(sk);
	result = sk_stream_error(sk, msg->msg_flags, result);
	release_sock(sk);
	return result;
}
