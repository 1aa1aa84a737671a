// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Random calls on MPTCP connections, in both directions at once, from a seed:
 *
 *	stress SEED SECONDS listen|connect ADDRESS PORT
 *
 * Each connection carries, each way, a stream that begins with its length and whose every byte follows from its place.
 * Every end has one thread that sends and one that receives, each by a call that it draws anew every time, io_uring
 * included. Exits with 1 at the first byte that is wrong, missing or too many. SIGTERM ends it sooner, after the
 * connection that there is.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

#define MOST (256 << 10)

static void fail(const char *what, uint64_t where)
{
	fprintf(stderr, "FAILED %s at %llu: %s\n", what, (unsigned long long)where, strerror(errno));
	exit(1);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

struct random {
	uint64_t state;
};

static uint64_t draw(struct random *random, uint64_t below)
{
	random->state += 0x9e3779b97f4a7c15;
	return mix(random->state) % below;
}

/* Mostly small, sometimes large: around the sizes at which something changes. */
static size_t draw_size(struct random *random)
{
	static const size_t edges[] = {1, 8, 16, 64, 65, 1400, 4096, 16128, 65536, MOST};
	size_t edge = edges[draw(random, sizeof(edges) / sizeof(*edges))];

	return draw(random, 2) ? 1 + draw(random, edge) : edge;
}

/* The stream that begins with @length: 8 bytes of it, then text by its place. */
static void fill(uint8_t *bytes, uint64_t offset, size_t size, uint64_t length)
{
	for (size_t i = 0; i < size; i++) {
		uint64_t at = offset + i;

		bytes[i] = at < 8 ? length >> 8 * at : mix(at / 8 + length) >> 8 * (at % 8);
	}
}

struct ring {
	int fd;
	struct io_uring_params params;
	uint8_t *rings;
	struct io_uring_sqe *entries;
};

static void ring_open(struct ring *ring)
{
	size_t submissions, completions;

	memset(ring, 0, sizeof(*ring));
	ring->fd = syscall(SYS_io_uring_setup, 1, &ring->params);
	if (ring->fd < 0)
		return;
	submissions = ring->params.sq_off.array + ring->params.sq_entries * sizeof(uint32_t);
	completions = ring->params.cq_off.cqes + ring->params.cq_entries * sizeof(struct io_uring_cqe);
	ring->rings = mmap(NULL, submissions > completions ? submissions : completions, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
	ring->entries = mmap(NULL, ring->params.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
	if (ring->rings == MAP_FAILED || ring->entries == MAP_FAILED)
		fail("io_uring", 0);
}

/* One operation, waited for. */
static ssize_t ring_call(struct ring *ring, int operation, int fd, void *bytes, size_t size, int flags)
{
	uint32_t *tail = (uint32_t *)(ring->rings + ring->params.sq_off.tail);
	uint32_t *array = (uint32_t *)(ring->rings + ring->params.sq_off.array);
	uint32_t *head = (uint32_t *)(ring->rings + ring->params.cq_off.head);
	struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->rings + ring->params.cq_off.cqes);
	int result;

	memset(ring->entries, 0, sizeof(*ring->entries));
	ring->entries->opcode = operation;
	ring->entries->fd = fd;
	ring->entries->addr = (uintptr_t)bytes;
	ring->entries->len = size;
	ring->entries->msg_flags = flags;
	array[*tail & (ring->params.sq_entries - 1)] = 0;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	while (syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		if (errno != EINTR)
			fail("io_uring_enter", 0);
	result = done[*head & (ring->params.cq_entries - 1)].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	if (result >= 0)
		return result;
	errno = -result;
	return -1;
}

struct end {
	int sock;
	struct random random;
	struct ring ring;
	int pipe[2];
	uint8_t *bytes, *expected;
};

static void end_open(struct end *end, uint64_t seed)
{
	end->random.state = seed;
	ring_open(&end->ring);
	end->bytes = malloc(MOST);
	end->expected = malloc(MOST);
	if (pipe(end->pipe) || !end->bytes || !end->expected)
		fail("resources", 0);
	fcntl(end->pipe[1], F_SETPIPE_SZ, MOST);
}

static void wait_for(int sock, short events)
{
	struct pollfd poll_for = {.fd = sock, .events = events};

	if (poll(&poll_for, 1, 60000) == 0)
		fail("poll: nothing for a minute", 0);
}

static ssize_t send_file(struct end *end, size_t size)
{
	int file = memfd_create("stress", 0);
	off_t position = 0;
	ssize_t sent;

	if (file < 0 || write(file, end->bytes, size) != (ssize_t)size)
		fail("memfd", 0);
	sent = sendfile(end->sock, file, &position, size);
	close(file);
	return sent;
}

/* What was not taken stays in the pipe, so all of it is sent. */
static ssize_t send_pipe(struct end *end, size_t size)
{
	ssize_t done = write(end->pipe[1], end->bytes, size), sent, left;

	for (left = done; left > 0; left -= sent) {
		sent = splice(end->pipe[0], NULL, end->sock, NULL, left, 0);
		if (sent <= 0)
			return -1;
	}
	return done;
}

static ssize_t send_some(struct end *end, size_t size)
{
	size_t third = size / 3;
	struct iovec parts[] = {{end->bytes, third}, {end->bytes + third, 1}, {end->bytes + third + 1, size - third - 1}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
	ssize_t sent;

	switch (draw(&end->random, 9)) {
	case 0:
		return write(end->sock, end->bytes, size);
	case 1:
		return writev(end->sock, parts, 3);
	case 2:
		return sendmsg(end->sock, &message, MSG_NOSIGNAL);
	case 3:
		return send_file(end, size);
	case 4:
		return send_pipe(end, size < 60000 ? size : 60000);
	case 5:
		sent = send(end->sock, end->bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (sent < 0 && errno == EAGAIN)
			wait_for(end->sock, POLLOUT);
		return sent < 0 && errno == EAGAIN ? 0 : sent;
	case 6:
		if (end->ring.fd >= 0)
			return ring_call(&end->ring, IORING_OP_SEND, end->sock, end->bytes, size, MSG_NOSIGNAL);
		return send(end->sock, end->bytes, size, MSG_NOSIGNAL);
	case 7:
		sent = send(end->sock, (void *)16, size, MSG_NOSIGNAL);
		if (sent != -1 || errno != EFAULT)
			fail("send from a bad pointer", 0);
		return 0;
	default:
		return send(end->sock, end->bytes, size, MSG_MORE | MSG_NOSIGNAL);
	}
}

static void *send_stream(void *argument)
{
	struct end *end = argument;
	uint64_t length = 8 + draw(&end->random, 4 << 20), offset = 0;

	while (offset < length) {
		size_t size = draw_size(&end->random);
		ssize_t sent;

		if (size > length - offset)
			size = length - offset;
		fill(end->bytes, offset, size, length);
		sent = send_some(end, size);
		if (sent < 0)
			fail("send", offset);
		offset += sent;
	}
	shutdown(end->sock, SHUT_WR);
	return NULL;
}

static ssize_t receive_pipe(struct end *end, size_t size)
{
	ssize_t got = splice(end->sock, NULL, end->pipe[1], NULL, size < 60000 ? size : 60000, 0);
	ssize_t done = 0;

	while (done < got) {
		ssize_t now = read(end->pipe[0], end->bytes + done, got - done);

		if (now <= 0)
			fail("read from a pipe", 0);
		done += now;
	}
	return got;
}

/* Received bytes, or 0 at the end; -2: nothing was received, look again. */
static ssize_t receive_some(struct end *end, size_t size, bool *discarded)
{
	size_t third = size / 3;
	struct iovec parts[] = {{end->bytes, third}, {end->bytes + third, size - third}};
	ssize_t got;

	switch (draw(&end->random, 9)) {
	case 0:
		return read(end->sock, end->bytes, size);
	case 1:
		return readv(end->sock, parts, 2);
	case 2:
		return recv(end->sock, end->bytes, size, MSG_WAITALL);
	case 3:
		return receive_pipe(end, size);
	case 4:
		got = recv(end->sock, end->bytes, size, MSG_DONTWAIT);
		if (got >= 0 || errno != EAGAIN)
			return got;
		wait_for(end->sock, POLLIN);
		return -2;
	case 5:
		if (end->ring.fd >= 0)
			return ring_call(&end->ring, IORING_OP_RECV, end->sock, end->bytes, size, 0);
		return recv(end->sock, end->bytes, size, 0);
	case 6:
		got = recv(end->sock, (void *)16, size, 0);
		if (got == 0 || (got < 0 && errno == EFAULT))
			return got ? -2 : 0;
		fail("receive to a bad pointer", 0);
		return -1;
	case 7:
		*discarded = true;
		return recv(end->sock, NULL, size, MSG_TRUNC);
	default:
		got = recv(end->sock, end->expected, size, MSG_PEEK);
		if (got <= 0)
			return got;
		if (recv(end->sock, end->bytes, got, MSG_WAITALL) != got)
			fail("receive what was peeked at", 0);
		if (memcmp(end->bytes, end->expected, got))
			fail("peeked bytes differ", 0);
		return got;
	}
}

static void *receive_stream(void *argument)
{
	struct end *end = argument;
	uint64_t length = 0, offset = 0;
	uint8_t first[8];

	if (recv(end->sock, first, sizeof(first), MSG_WAITALL) != sizeof(first))
		fail("receive the length", 0);
	for (int i = 7; i >= 0; i--)
		length = length << 8 | first[i];
	for (offset = sizeof(first);;) {
		bool discarded = false;
		ssize_t got = receive_some(end, draw_size(&end->random), &discarded);

		if (got == -2)
			continue;
		if (got < 0)
			fail("receive", offset);
		if (!got)
			break;
		fill(end->expected, offset, got, length);
		if (!discarded && memcmp(end->bytes, end->expected, got)) {
			errno = 0;
			fail("received bytes differ", offset);
		}
		offset += got;
	}
	errno = 0;
	if (offset != length)
		fail("the stream has another length", offset);
	*(uint64_t *)end->expected = length;
	return NULL;
}

static uint64_t both_ways(int sock, struct end *sender, struct end *receiver)
{
	pthread_t sending, receiving;

	sender->sock = receiver->sock = sock;
	if (pthread_create(&sending, NULL, send_stream, sender) ||
	    pthread_create(&receiving, NULL, receive_stream, receiver))
		fail("threads", 0);
	pthread_join(sending, NULL);
	pthread_join(receiving, NULL);
	return *(uint64_t *)receiver->expected;
}

static socklen_t parse(const char *text, int port, struct sockaddr_storage *address)
{
	struct sockaddr_in *four = (void *)address;
	struct sockaddr_in6 *six = (void *)address;

	memset(address, 0, sizeof(*address));
	if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = htons(port);
		return sizeof(*four);
	}
	if (inet_pton(AF_INET6, text, &six->sin6_addr) != 1)
		fail("address", 0);
	six->sin6_family = AF_INET6;
	six->sin6_port = htons(port);
	return sizeof(*six);
}

static volatile sig_atomic_t told_to_end;

static void end_soon(int signal)
{
	(void)signal;
	told_to_end = 1;
}

int main(int count, char **arguments)
{
	struct end sender, receiver;
	struct sockaddr_storage address;
	uint64_t seed, bytes = 0, connections = 0;
	int listener = -1, one = 1;
	bool listens;
	time_t until;
	socklen_t size;

	if (count != 6) {
		fprintf(stderr, "usage: stress SEED SECONDS listen|connect ADDRESS PORT\n");
		return 2;
	}
	listens = !strcmp(arguments[3], "listen");
	seed = strtoull(arguments[1], NULL, 0) * 2 + listens;
	until = time(NULL) + atoi(arguments[2]);
	size = parse(arguments[4], atoi(arguments[5]), &address);
	end_open(&sender, mix(seed));
	end_open(&receiver, mix(~seed));
	if (listens) {
		/* On all addresses: a subflow to one on which nobody listens is reset. */
		if (address.ss_family == AF_INET)
			((struct sockaddr_in *)&address)->sin_addr.s_addr = INADDR_ANY;
		else
			((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_any;
		listener = socket(address.ss_family, SOCK_STREAM, IPPROTO_MPTCP);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (listener < 0 || bind(listener, (void *)&address, size) || listen(listener, 16))
			fail("listen", 0);
		printf("listening\n");
		fflush(stdout);
	}
	signal(SIGTERM, end_soon);
	while (!told_to_end && time(NULL) < until) {
		int sock;

		if (listens) {
			struct pollfd incoming = {.fd = listener, .events = POLLIN};

			if (poll(&incoming, 1, 1000) <= 0)
				continue;
			sock = accept(listener, NULL, NULL);
		} else {
			sock = socket(address.ss_family, SOCK_STREAM, IPPROTO_MPTCP);
			if (connect(sock, (void *)&address, size)) {
				if (errno == ECONNREFUSED)
					break;
				fail("connect", connections);
			}
		}
		if (sock < 0)
			fail("socket", connections);
		bytes += both_ways(sock, &sender, &receiver);
		connections++;
		close(sock);
	}
	printf("%llu connections, %llu bytes received, none wrong\n", (unsigned long long)connections,
	       (unsigned long long)bytes);
	return 0;
}
