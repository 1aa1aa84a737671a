// SPDX-License-Identifier: GPL-2.0
/*
 * recvmsg(): bytes are peeked at, transformed in the copy, and copied to the program; only what was actually copied is
 * then consumed. So bytes wait only in MPTCP's queue, poll() and SIOCINQ stay correct, and a failed copy loses nothing.
 *
 * MPTCP is always called without blocking. Blocking is done here, with the direction unlocked, on the wait queue that
 * MPTCP wakes for every event that may change the outcome of a call.
 */
#include <linux/sched/signal.h>
#include <linux/wait.h>
#include <net/sock.h>
#include <net/tcp_states.h>

#include "plait.h"

/* One call of recvmsg(). */
struct reading {
	struct sock *sk;
	struct plait_connection *connection;
	struct msghdr *msg;
	int flags;
	/* The program's control buffer, restored for each call of MPTCP. */
	void *control;
	size_t control_len;
};

/* MPTCP's recvmsg() without blocking, into @bytes; control messages go to @msg. */
static int receive_raw(struct sock *sk, struct msghdr *msg, u8 *bytes, size_t len, int flags)
{
	struct iov_iter programs = msg->msg_iter;
	struct kvec vector = { .iov_base = bytes, .iov_len = len };
	int result;

	iov_iter_kvec(&msg->msg_iter, ITER_DEST, &vector, 1, len);
	result = plait_call_recvmsg(plait_base_proto(sk), sk, msg, len, flags | MSG_DONTWAIT);
	msg->msg_iter = programs;
	return result;
}

/* As receive_raw(), with control messages for the program. */
static int receive_with_cmsg(const struct reading *reading, u8 *bytes, size_t len, int flags)
{
	reading->msg->msg_control = reading->control;
	reading->msg->msg_controllen = reading->control_len;
	return receive_raw(reading->sk, reading->msg, bytes, len, flags);
}

/* Removes from the queue what the program has; nobody else can, as the direction is locked. */
static void consume(const struct reading *reading, u8 *bytes, size_t len)
{
	int consumed = receive_with_cmsg(reading, bytes, len, MSG_TRUNC);

	if (WARN_ON_ONCE(consumed != len))
		plait_count(PLAIT_ERRORS, 1);
}

/* Delivers what is queued, at most @len bytes. Returns how much; 0 at the end of the stream; or an error. */
static int receive_now(const struct reading *reading, struct plait_bounce *bounce, size_t len)
{
	struct plait_direction *in = &reading->connection->in;
	struct msghdr quiet = {};
	size_t copied;
	int found, err;

	plait_bounce_align(bounce, in);
	if (reading->flags & MSG_PEEK)
		found = receive_with_cmsg(reading, bounce->bytes, len, MSG_PEEK);
	else
		found = receive_raw(reading->sk, &quiet, bounce->bytes, len, MSG_PEEK);
	if (found <= 0)
		return found;
	err = plait_check_first_data(reading->sk, reading->connection);
	if (err)
		return err;
	err = plait_decode(in, bounce, found);
	if (err) {
		plait_count(PLAIT_ERRORS, 1);
		return err;
	}
	copied = found;
	if (!(reading->flags & MSG_TRUNC))
		copied = copy_to_iter(bounce->bytes, found, &reading->msg->msg_iter);
	if (copied < found)
		plait_count(PLAIT_FAULTS, 1);
	if (reading->flags & MSG_PEEK)
		return copied < found ? -EFAULT : copied;
	if (!copied)
		return -EFAULT;
	plait_advance(in, bounce, copied);
	consume(reading, bounce->bytes, copied);
	return copied;
}

/*
 * As receive_now(), with the direction locked. The buffer lives within the lock, so that a direction has one, however
 * many threads call. -ECONNRESET: the socket was disconnected while this call waited.
 */
static int receive_piece(const struct reading *reading, size_t len)
{
	struct plait_direction *in = &reading->connection->in;
	struct plait_bounce bounce;
	int result = -ECONNRESET;

	mutex_lock(&in->lock);
	if (READ_ONCE(reading->connection->state) == PLAIT_PROTECTED)
		result = plait_bounce_get(&bounce, len);
	if (!result) {
		result = receive_now(reading, &bounce, len);
		plait_bounce_put(&bounce);
	}
	mutex_unlock(&in->lock);
	return result;
}

/* Whether a socket that is connecting, was reset or was never connected has data nevertheless. */
static bool has_data(struct sock *sk)
{
	struct msghdr quiet = {};
	u8 byte;
	int found = receive_raw(sk, &quiet, &byte, sizeof(byte), MSG_PEEK);

	if (found < 0)
		plait_set_error(sk, found);
	return found > 0;
}

/* Whether nothing will follow what is queued. */
static bool has_ended(const struct sock *sk)
{
	return READ_ONCE(sk->sk_err) || sk->sk_state == TCP_CLOSE ||
	       READ_ONCE(sk->sk_shutdown) & RCV_SHUTDOWN;
}

/* Waits for the next event, once @wait is in the queue. */
static int wait_for_change(struct wait_queue_entry *wait, long *timeout)
{
	if (!*timeout)
		return -EAGAIN;
	if (signal_pending(current))
		return sock_intr_errno(*timeout);
	*timeout = wait_woken(wait, TASK_INTERRUPTIBLE, *timeout);
	return 0;
}

/* Waits until the state is decided: 0 or the error of the call. */
static int wait_until_decided(const struct reading *reading, struct wait_queue_entry *wait,
			      long *timeout, int *state)
{
	struct sock *sk = reading->sk;
	int err = 0;

	while (!err) {
		*state = plait_connection_decide(sk, reading->connection, false);
		if (*state == PLAIT_UNDECIDED && has_data(sk))
			*state = plait_connection_decide(sk, reading->connection, true);
		if (*state != PLAIT_UNDECIDED)
			return min(*state, 0);
		if (sk->sk_state == TCP_CLOSE || sk->sk_state == TCP_LISTEN)
			return 0;
		err = wait_for_change(wait, timeout);
	}
	return err;
}

/* Whether the receive buffer has space for more. */
static bool has_space(const struct sock *sk)
{
	return atomic_read(&sk->sk_rmem_alloc) < READ_ONCE(sk->sk_rcvbuf) / 2;
}

/* Peeking consumes nothing: start over until there is enough. */
static int peek(const struct reading *reading, struct wait_queue_entry *wait, long timeout,
		size_t len, size_t target)
{
	size_t max = min(len, PLAIT_PEEK);
	struct iov_iter start = reading->msg->msg_iter;
	int found;

	for (;;) {
		bool enough;
		int err;

		found = receive_piece(reading, max);
		enough = found >= (int)min(target, max) ||
			 (found > 0 && (has_ended(reading->sk) || !has_space(reading->sk)));
		if (enough || !found || (found < 0 && found != -EAGAIN))
			return found;
		err = wait_for_change(wait, &timeout);
		if (err)
			return found > 0 ? found : err;
		reading->msg->msg_iter = start;
	}
}

/* Returns 0 if there was enough or at the end of the stream, else an error; @received is how much was delivered. */
static int receive(const struct reading *reading, struct wait_queue_entry *wait, long timeout,
		   size_t len, size_t target, size_t *received)
{
	int result;

	while (*received < len) {
		size_t size = min(len - *received, PLAIT_PIECE);

		result = receive_piece(reading, size);
		if (result > 0) {
			*received += result;
			/* Less than requested: the queue is empty. */
			if (result < size && *received >= target)
				return 0;
			continue;
		}
		if (result != -EAGAIN) {
			if (*received && result < 0 && result != -EFAULT)
				plait_set_error(reading->sk, result);
			return result;
		}
		if (*received && (*received >= target || has_ended(reading->sk)))
			return 0;
		result = wait_for_change(wait, &timeout);
		if (result)
			return result;
	}
	return 0;
}

static int receive_protected(const struct reading *reading, struct wait_queue_entry *wait,
			     long timeout, size_t len)
{
	size_t target = sock_rcvlowat(reading->sk, reading->flags & MSG_WAITALL, len);
	size_t received = 0;
	int result;

	if (reading->flags & MSG_PEEK)
		return peek(reading, wait, timeout, len, target);
	result = receive(reading, wait, timeout, len, target, &received);
	plait_count(PLAIT_BYTES_RECEIVED, received);
	return received ? received : result;
}

int plait_recvmsg(struct sock *sk, struct msghdr *msg, size_t len, int flags)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	long timeout = sock_rcvtimeo(sk, flags & MSG_DONTWAIT);
	struct reading reading = {
		.sk = sk,
		.msg = msg,
		.flags = flags,
		.control = msg->msg_control,
		.control_len = msg->msg_controllen,
	};
	int state = PLAIT_UNDECIDED;
	int result;

	if (!len || flags & MSG_ERRQUEUE)
		return plait_call_recvmsg(plait_base_proto(sk), sk, msg, len, flags);
	reading.connection = plait_connection_get(sk);
	if (!reading.connection)
		return -ENOMEM;
	if (READ_ONCE(reading.connection->state) == PLAIT_PLAIN)
		return plait_call_recvmsg(plait_base_proto(sk), sk, msg, len, flags);
	len = min_t(size_t, len, INT_MAX);
	/* In the queue before the first check, so that no later event is missed. */
	add_wait_queue(sk_sleep(sk), &wait);
	result = wait_until_decided(&reading, &wait, &timeout, &state);
	if (!result && state == PLAIT_PROTECTED)
		result = receive_protected(&reading, &wait, timeout, len);
	remove_wait_queue(sk_sleep(sk), &wait);
	if (result || state == PLAIT_PROTECTED)
		return result;
	if (state == PLAIT_REFUSED)
		return -ECONNRESET;
	/* A socket without a connection: MPTCP returns the error. */
	if (state == PLAIT_UNDECIDED)
		flags |= MSG_DONTWAIT;
	return plait_call_recvmsg(plait_base_proto(sk), sk, msg, len, flags);
}
