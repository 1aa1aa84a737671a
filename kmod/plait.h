/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Interfaces between the module's files. Each calls only those below it.
 *
 *	main.c		module init and exit
 *	proto.c		hooks: MPTCP's struct proto with our functions, on sockets that rules match
 *	send.c		sendmsg
 *	receive.c	recvmsg
 *	connection.c	state of one connection: plain, protected, refused
 *	status.c	counters
 *	rules.c		which connections to protect, and how
 *	verdict.c	what the two ends negotiated
 *	transform.c	the two directions' transforms: xor64.c, stream.c, keyed by derive.c
 *	layout.c	MPTCP's own functions and its state of a connection, found by btf.c
 *	compat.c	differences between kernel versions
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
	/* Held while bytes of this direction are moved, never while waiting for the network. */
	struct mutex lock;
	/* One of enum plait_mode; 0 before plait_direction_init(). */
	u8 mode;
	union {
		struct plait_xor64 xor64;
		struct plait_keystream keystream;
	};
};

/* The MPTCP keys from which a direction's secrets are derived. */
struct plait_keys {
	u8 sender[PLAIT_KEY_SIZE];
	u8 receiver[PLAIT_KEY_SIZE];
	bool from_initiator;
};

/*
 * Buffer in which bytes are transformed. Space before them holds earlier bytes that the transform needs, and they are
 * aligned as in the cipher's blocks, so that no block straddles two pages.
 */
struct plait_bounce {
	u8 *bytes;
	void *memory;
	size_t size;
};

/* Maximum bytes moved at a time: 16 KiB with the space before them. */
#define PLAIT_PIECE ((size_t)SZ_16K - 256)
/* Maximum bytes of one MSG_PEEK, which cannot be done in pieces: 64 KiB with the space before them. */
#define PLAIT_PEEK ((size_t)SZ_64K - 256)

/* Memory is charged to the caller's control group, and wiped when it is freed: it held plaintext. */
int plait_bounce_get(struct plait_bounce *bounce, size_t size);
void plait_bounce_put(struct plait_bounce *bounce);
/* Call before each use, with the direction locked. */
void plait_bounce_align(struct plait_bounce *bounce, const struct plait_direction *direction);

int plait_direction_init(struct plait_direction *direction, u8 mode, const struct plait_keys *keys);
void plait_direction_destroy(struct plait_direction *direction);

/*
 * Transform the next bytes to wire form and back. Neither advances the stream: plait_advance() does, by as many of the
 * bytes just transformed as were actually consumed.
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

int plait_keystream_init(struct plait_keystream *keystream, const struct plait_keys *keys);
void plait_keystream_destroy(struct plait_keystream *keystream);
/* Before @from and @to must be as many writable bytes as the position is into its block; see struct plait_bounce. */
int plait_keystream_apply(struct plait_keystream *keystream, u8 *from, u8 *to, size_t len);

/* derive.c */

#define PLAIT_HASH_SIZE 32

int plait_hmac_sha256(const u8 *key, size_t key_len, const u8 *message, size_t message_len,
		      u8 result[PLAIT_HASH_SIZE]);

/* rules.c */

/* What to do with a connection that a rule matches. */
struct plait_rule_action {
	/* Applied without negotiation; 0: as negotiated. */
	u8 mode;
	/* Refuse what cannot be protected. */
	bool require;
	/* A user-space path manager creates subflows of outgoing connections. */
	bool hold;
	/* The BPF map with the negotiator's verdicts. */
	u32 verdicts;
};

/* Whether a socket that is being created may match a rule later. */
bool plait_rules_may_match(const struct sock *sk);
/* The first rule for a connection with the service's @port. */
bool plait_rules_match(const struct sock *sk, u16 port, struct plait_rule_action *action);
int plait_rules_write(char *line);
void plait_rules_show(struct seq_file *file);
int plait_rules_start(void);
void plait_rules_stop(void);

/* connection.c */

enum plait_connection_state {
	PLAIT_UNDECIDED,
	PLAIT_PLAIN,
	PLAIT_PROTECTED,
	PLAIT_REFUSED,
};

struct plait_connection {
	/* enum plait_connection_state; written with the socket locked. */
	int state;
	/* This end called connect(). */
	bool initiator;
	/* Whether a rule matched when the connection was opened or accepted; later rule changes do not matter. */
	bool has_rule;
	/* plait_check_first_data() was called. */
	bool first_data_checked;
	struct plait_rule_action action;
	struct plait_direction out, in;
};

/* The socket's connection, allocated if it has none; NULL: out of memory. */
struct plait_connection *plait_connection_get(struct sock *sk);
/* The socket's connection, or NULL. */
struct plait_connection *plait_connection_find(const struct sock *sk);
/* Back to undecided: the socket may connect again. Both directions must be locked. */
void plait_connection_reset(struct plait_connection *connection);
void plait_connection_free(struct sock *sk);
/* Looks up the rule for a connection to or on the service's @port, when it is opened or accepted. */
void plait_connection_match_rule(struct sock *sk, struct plait_connection *connection, u16 port);
/*
 * Decides once the connection is established (@arrived: data prove that it is); before that PLAIT_UNDECIDED. Returns
 * the state, or an error that may be temporary. Takes the socket's lock.
 */
int plait_connection_decide(struct sock *sk, struct plait_connection *connection, bool arrived);
/* Call with the peer's first bytes before the program gets them; an error if they must not be delivered. */
int plait_check_first_data(struct sock *sk, struct plait_connection *connection);
/* Whether a TCP connection accepted by @listener must be refused. */
bool plait_tcp_is_refused(const struct sock *listener, struct sock *child);
/* Sets the socket's error, for the next call. */
void plait_set_error(struct sock *sk, int error);

/* verdict.c */

bool plait_verdict_read(struct sock *sk, u32 map, struct plait_verdict *verdict);

/* layout.c */

int plait_layout_find(void);
/* MPTCP's original functions; taken from a socket that is not hooked, for all hooked ones of its family. */
void plait_set_base_proto(const struct sock *sk);
const struct proto *plait_base_proto(const struct sock *sk);
u64 plait_local_key(const struct sock *sk);
u64 plait_remote_key(const struct sock *sk);
struct sock *plait_first_subflow(const struct sock *sk);
/* MPTCP keeps the previous connection's key: clear it, so that a key found later is the next one's. */
void plait_forget_remote_key(struct sock *sk);
/* For an unconnected socket: only a user-space path manager creates further subflows. */
void plait_use_userspace_pm(struct sock *sk);

/* proto.c */

int plait_protos_find(void);
void plait_protos_hook(void);
void plait_protos_unhook(void);

/* send.c, receive.c */

int plait_sendmsg(struct sock *sk, struct msghdr *msg, size_t len);
int plait_recvmsg(struct sock *sk, struct msghdr *msg, size_t len, int flags);

/* status.c */

enum plait_counter {
	PLAIT_COUNT_HOOKED,
	PLAIT_COUNT_OPENED,
	PLAIT_COUNT_CLOSED,
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
