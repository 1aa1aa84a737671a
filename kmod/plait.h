/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the module's files offer each other.
 *
 *	main.c		life of the module
 *	proto.c		MPTCP's struct proto, with our functions in it, on the sockets that rules take
 *	connection.c	what becomes of one connection: plain, protected, refused
 *	send.c		a program's bytes on their way out
 *	receive.c	and in
 *	transform.c	the two directions' transforms: xor64.c, stream.c, keyed by derive.c
 *	rules.c		which connections, and how
 *	verdict.c	what the two ends negotiated
 *	compat.c	what differs between kernels
 *	layout.c	MPTCP's own state of a connection, found by btf.c
 *	status.c	counters
 */
#ifndef PLAIT_H
#define PLAIT_H

#include <linux/mutex.h>
#include <linux/sizes.h>
#include <linux/types.h>
#include <net/sock.h>

#include "compat.h"
#include "intf.h"

struct crypto_skcipher;
struct seq_file;
struct skcipher_request;

/* An MPTCP key, as MP_CAPABLE carries it. */
#define PLAIT_KEY_SIZE 8

/* transform.c */

/* State of xor64: the 64 plaintext bytes before the next one, oldest first. */
struct plait_xor64 {
	u8 window[64];
};

/* State of stream: a keystream, and where in it the next byte stands. */
struct plait_keystream {
	struct crypto_skcipher *cipher;
	struct skcipher_request *request;
	u64 position;
	/* The epoch whose key the cipher has. */
	u64 epoch;
	u8 secret[32];
	/* 0 from the initiator to the responder, 1 back. */
	u8 direction;
};

/* One direction of a connection's byte stream. */
struct plait_direction {
	/* Held by who moves bytes of this direction, and never while waiting for the network. */
	struct mutex lock;
	/* One of enum plait_mode; 0 before plait_direction_begin(). */
	u8 mode;
	union {
		struct plait_xor64 xor64;
		struct plait_keystream keystream;
	};
};

/* What a direction's secrets are made of. */
struct plait_keys {
	u8 sender[PLAIT_KEY_SIZE];
	u8 receiver[PLAIT_KEY_SIZE];
	bool from_initiator;
};

/*
 * Memory for bytes on their way through a transform. Before them is room in which it puts what it needs of the past,
 * and they begin where they stand in a block of the cipher, so that no block straddles two pages.
 */
struct plait_bounce {
	u8 *bytes;
	void *memory;
};

/* Most bytes that are moved at a time, peeking excepted: with the room before them 16 KiB. */
#define PLAIT_PIECE ((size_t)SZ_16K - 256)

int plait_bounce_get(struct plait_bounce *bounce, size_t size);
void plait_bounce_put(struct plait_bounce *bounce);
/* To be called before each use, with the direction locked. */
void plait_bounce_place(struct plait_bounce *bounce, const struct plait_direction *direction);

int plait_direction_begin(struct plait_direction *direction, u8 mode, const struct plait_keys *keys);
void plait_direction_end(struct plait_direction *direction);

/*
 * The wire form of the next plaintext bytes, and back, in place. Neither moves on: that plait_advance() does, by as
 * many of the bytes just transformed as were really taken.
 */
int plait_encode(struct plait_direction *direction, struct plait_bounce *plain,
		 struct plait_bounce *wire, size_t len);
int plait_decode(struct plait_direction *direction, struct plait_bounce *bytes, size_t len);
void plait_advance(struct plait_direction *direction, const struct plait_bounce *plain, size_t len);

/* xor64.c */

/* @plain must have 65 writable bytes before it. */
void plait_xor64_encode(const struct plait_xor64 *state, u8 *plain, u8 *wire, size_t len);
void plait_xor64_decode(const struct plait_xor64 *state, u8 *bytes, size_t len);
void plait_xor64_advance(struct plait_xor64 *state, const u8 *plain, size_t len);

/* stream.c */

#define PLAIT_CIPHER_BLOCK 16

int plait_keystream_begin(struct plait_keystream *keystream, const struct plait_keys *keys);
void plait_keystream_end(struct plait_keystream *keystream);
/* Before @from and @to must be as many writable bytes as the position is into its block; see struct plait_bounce. */
int plait_keystream_apply(struct plait_keystream *keystream, u8 *from, u8 *to, size_t len);

/* derive.c */

#define PLAIT_HASH_SIZE 32

int plait_hmac_sha256(const u8 *key, size_t key_len, const u8 *message, size_t message_len,
		      u8 result[PLAIT_HASH_SIZE]);

/* rules.c */

/* What a rule says of a connection that it matches. */
struct plait_order {
	/* Applied without asking the peer; 0: as negotiated. */
	u8 mode;
	/* Refuse what cannot be protected. */
	bool require;
	/* A program looks after the paths of connections that begin here. */
	bool hold;
	/* The BPF map with the negotiator's verdicts. */
	u32 verdicts;
};

/* Whether a socket that is being made may come to match. */
bool plait_rules_concern(const struct sock *sk);
/* The first rule for a connection with the service's @port. */
bool plait_rules_match(const struct sock *sk, u16 port, struct plait_order *order);
int plait_rules_write(char *line);
void plait_rules_show(struct seq_file *file);
int plait_rules_start(void);
void plait_rules_stop(void);

/* connection.c */

enum plait_fate {
	PLAIT_UNDECIDED,
	PLAIT_PLAIN,
	PLAIT_PROTECTED,
	PLAIT_REFUSED,
};

struct plait_connection {
	/* enum plait_fate; written with the socket locked. */
	int fate;
	/* This end called connect(). */
	bool initiator;
	/* Whether a rule matched when the connection was begun or accepted; whatever becomes of the rules, it counts. */
	bool ordered;
	/* The peer's first bytes have been looked at. */
	bool heard;
	struct plait_order order;
	struct plait_direction out, in;
};

/* The socket's, made when it has none; NULL: no memory. */
struct plait_connection *plait_connection_of(struct sock *sk);
/* The socket's, if it has one. */
struct plait_connection *plait_connection_find(const struct sock *sk);
/* Forgets what was decided: the socket may connect anew. Both directions must be locked. */
void plait_connection_reset(struct plait_connection *connection);
void plait_connection_free(struct sock *sk);
/* Looks for the rule of a connection to or at the service's @port, once it is begun or accepted. */
void plait_connection_order(struct sock *sk, struct plait_connection *connection, u16 port);
/*
 * Decides once the connection is there, which @arrived data prove; before that PLAIT_UNDECIDED. Else a fate, or an
 * error that may pass. Takes the socket's lock.
 */
int plait_settle(struct sock *sk, struct plait_connection *connection, bool arrived);
/* To be called with the peer's first bytes, before the program has them; an error if they must not be taken. */
int plait_hear(struct sock *sk, struct plait_connection *connection);
/* Whether what @listener accepted as a TCP connection must not go on. */
bool plait_refuses_tcp(const struct sock *listener, struct sock *child);
/* Gives an error back to the socket, for the call after this one. */
void plait_return_error(struct sock *sk, int error);

/* verdict.c */

bool plait_verdict_read(struct sock *sk, u32 map, struct plait_verdict *verdict);

/* layout.c */

int plait_layout_find(void);
u64 plait_local_key(const struct sock *sk);
u64 plait_remote_key(const struct sock *sk);
struct sock *plait_first_subflow(const struct sock *sk);
/* MPTCP keeps the key of the connection before: a key that is found after this is the next one's. */
void plait_forget_remote_key(struct sock *sk);
/* For a socket that is not connected: whoever looks after its paths must make all further subflows. */
void plait_leave_paths_to_userspace(struct sock *sk);

/* proto.c */

int plait_protos_find(void);
void plait_protos_hook(void);
void plait_protos_unhook(void);
/* MPTCP's own functions, for a socket that has ours. */
const struct proto *plait_base(const struct sock *sk);
int plait_accept(struct socket *sock, struct socket *newsock, struct proto_accept_arg *arg);

/* send.c, receive.c */

int plait_sendmsg(struct sock *sk, struct msghdr *msg, size_t len);
int plait_recvmsg(struct sock *sk, struct msghdr *msg, size_t len, int flags);

/* status.c */

enum plait_counter {
	PLAIT_TAKEN,
	PLAIT_OPENED,
	PLAIT_CLOSED,
	PLAIT_COUNT_PROTECTED,
	PLAIT_COUNT_PLAIN,
	PLAIT_COUNT_REFUSED,
	PLAIT_BYTES_SENT,
	PLAIT_BYTES_RECEIVED,
	PLAIT_FAULTS,
	PLAIT_ERRORS,
	PLAIT_COUNTERS,
};

void plait_count(enum plait_counter counter, u64 amount);
int plait_status_start(void);
void plait_status_stop(void);

#endif
