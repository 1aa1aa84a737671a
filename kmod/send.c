// SPDX-License-Identifier: GPL-2.0
/*
 * A program's bytes on their way out: copied piece by piece, transformed in the copy, and given to MPTCP. A direction
 * moves on by what MPTCP took of a piece; the rest is forgotten and stays the program's to send again.
 *
 * MPTCP is always called so that it does not wait. The waiting is done here, with the direction unlocked: so one that
 * waits for room never keeps one that must not wait, and a timeout counts for the call and not for a piece.
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
	return plait_base(sk)->sendmsg(sk, &empty, 0);
}

/* What MPTCP took of the next piece, or an error. */
static int send_piece(struct sock *sk, struct plait_direction *out, struct plait_bounce *plain,
		      struct plait_bounce *wire, struct iov_iter *bytes, size_t len, int flags)
{
	struct msghdr piece = { .msg_flags = flags | MSG_DONTWAIT | MSG_NOSIGNAL };
	struct kvec vector;
	size_t copied;
	int taken;

	plait_bounce_place(plain, out);
	plait_bounce_place(wire, out);
	copied = copy_from_iter(plain->bytes, len, bytes);
	if (!copied)
		return -EFAULT;
	taken = plait_encode(out, plain, wire, copied);
	if (!taken) {
		vector = (struct kvec){ .iov_base = wire->bytes, .iov_len = copied };
		iov_iter_kvec(&piece.msg_iter, ITER_SOURCE, &vector, 1, copied);
		taken = plait_base(sk)->sendmsg(sk, &piece, copied);
	}
	if (taken > 0)
		plait_advance(out, plain, taken);
	iov_iter_revert(bytes, copied - max(taken, 0));
	return taken;
}

/*
 * There may be room by now, which must not be waited for. If there was room before, too, it is the machine that has no
 * memory, and sk_stream_wait_memory() pauses.
 */
static int wait_for_room(struct sock *sk, long *timeout, bool had_room)
{
	int err = 0;

	lock_sock(sk);
	if (had_room || !sk_stream_memory_free(sk))
		err = sk_stream_wait_memory(sk, timeout);
	release_sock(sk);
	return err;
}

/* Sends all, or as much as goes; @sent says how much. Returns why it stopped, 0 at the end. */
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

		/* While this call waited, somebody may have disconnected the socket. */
		result = -ECONNRESET;
		if (READ_ONCE(connection->fate) != PLAIT_PROTECTED)
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
			plait_return_error(sk, result);
		if (result != -EAGAIN || !timeout)
			break;
		mutex_unlock(&out->lock);
		result = wait_for_room(sk, &timeout, waited);
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
		return plait_base(sk)->sendmsg(sk, msg, len);
	connection = plait_connection_of(sk);
	if (!connection)
		return -ENOMEM;
	if (READ_ONCE(connection->fate) == PLAIT_UNDECIDED) {
		result = connect_first(sk, msg);
		if (result < 0)
			return result;
	}
	result = plait_settle(sk, connection, false);
	switch (result) {
	case PLAIT_PLAIN:
		return plait_base(sk)->sendmsg(sk, msg, len);
	case PLAIT_PROTECTED:
		result = send_all(sk, connection, msg, len, &sent);
		break;
	case PLAIT_REFUSED:
		return -ECONNRESET;
	case PLAIT_UNDECIDED:
		/* It was there, and has ended. */
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
