// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Negotiates the mode of a connection in its TCP handshake, and stores the outcome with the connection's MPTCP
 * keys in the socket's storage for user space.
 *
 * Attached to a cgroup that contains only the gateway, so that it sees no other program's connections; or to
 * one in which the kernel module has taken over some sockets, and then only those negotiate.
 *
 *	SYN		initiator	offers its modes
 *	SYN-ACK		responder	chooses one, if the SYN offered any
 *	ACK, data	initiator	confirms offer and choice, until the responder's next packet
 *	RST		either		tells why, if user space says so and the peer speaks plait
 *
 * capable_flag.bpf.c can carry offer, choice and confirmation by a flag of MP_CAPABLE instead.
 *
 * Without the confirmation, a path that strips the option only from the SYN-ACK would leave the responder
 * decoding a plain stream. A responder under a SYN flood sends SYN cookies and stores nothing: then the
 * confirmation is all it has. Its choice depends only on offer and settings, so it can compute it again.
 */
#include <linux/bpf.h>
#include <linux/errno.h> /* ENOENT, EINVAL */
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "constants.h"
#include "kernel.h"
#include "close_reason.h"
#include "intf.h"
#include "selection.h"

/* After this many unanswered SYNs, the offer is omitted: a middlebox may drop unknown options. */
#define MAX_OFFERS 2

/* What a program for packets returns. */
#define PASS 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_negotiate_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct plait_verdict);
} verdicts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} outcomes SEC(".maps");

static __always_inline struct plait_negotiate_settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

/* The modes that this end offers and accepts. */
static __always_inline __u8 own_modes(void)
{
	struct plait_negotiate_settings *config = get_settings();

	return config ? config->modes : 0;
}

static __always_inline int is_selected(struct mptcp_sock *msk, __u16 port)
{
	struct plait_negotiate_settings *config = get_settings();

	return config && (!config->selection.taken || is_taken(msk)) &&
	       selects(&config->selection, ((struct sock *)msk)->sk_mark, port);
}

/* Whether a flag of MP_CAPABLE carries the option, and not the packets as they leave. */
static __always_inline int is_by_flag(void)
{
	struct plait_negotiate_settings *config = get_settings();

	return config && config->by_flag;
}

/* Two ends of which one negotiates by the flag differ in this. */
static __always_inline __u8 own_version(void)
{
	return is_by_flag() ? PLAIT_OPTION_BY_FLAG : PLAIT_OPTION_VERSION;
}

static __always_inline struct plait_option option(__u8 modes)
{
	return (struct plait_option){
	    .kind = PLAIT_OPTION_KIND,
	    .length = sizeof(struct plait_option),
	    .exid = {PLAIT_OPTION_EXID >> 24, PLAIT_OPTION_EXID >> 16 & 0xff, PLAIT_OPTION_EXID >> 8 & 0xff,
		     PLAIT_OPTION_EXID & 0xff},
	    .version = own_version(),
	    .modes = modes,
	};
}

static __always_inline struct plait_confirmation confirmation(__u8 offered, __u8 chosen)
{
	return (struct plait_confirmation){
	    .kind = PLAIT_OPTION_KIND,
	    .length = sizeof(struct plait_confirmation),
	    .exid = PLAIT_OPTION_EXID >> 24,
	    .modes = offered | ((offered & ~chosen) > chosen ? PLAIT_CONFIRMS_LOWER : 0),
	};
}

/*
 * Reads the peer's option of this packet (flags 0) or of the SYN (BPF_LOAD_HDR_OPT_TCP_SYN). Returns 0 or a
 * negative error: -ENOENT if the SYN was not stored.
 */
static __always_inline int load_option(struct bpf_sock_ops *ctx, struct plait_option *found, __u64 flags)
{
	int length;

	*found = option(0);
	/* The helper expects the length of the ExID to search for instead of the option's. */
	found->length = 2 + sizeof(found->exid);
	length = bpf_load_hdr_opt(ctx, found, sizeof(*found), flags);
	if (length < 0)
		return length;
	return length < (int)sizeof(*found) ? -EINVAL : 0;
}

static __always_inline __u8 common_mode(const struct plait_option *offer)
{
	__u8 common = offer->modes & own_modes();

	if (offer->version != own_version())
		return 0;
	for (int bit = 7; bit >= 0; bit--)
		if (common & 1 << bit)
			return 1 << bit;
	return 0;
}

/* What a responder without a common mode answers. */
static __always_inline __u8 responder_modes(void)
{
	struct plait_negotiate_settings *config = get_settings();

	return own_modes() | (config && config->required ? PLAIT_MODE_REQUIRED : 0);
}

static __always_inline void set_flags(struct bpf_sock_ops *ctx, int set, int clear)
{
	bpf_sock_ops_cb_flags_set(ctx, (ctx->bpf_sock_ops_cb_flags & ~clear) | set);
}

static __always_inline struct mptcp_sock *mptcp_of(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? (struct mptcp_sock *)bpf_skc_to_mptcp_sock(sk) : NULL;
}

/* Stored with the socket that user space has: the MPTCP socket, or the TCP socket without MPTCP. */
static __always_inline struct plait_verdict *verdict_of(struct bpf_sock_ops *ctx, struct mptcp_sock *msk,
							__u64 flags)
{
	struct bpf_sock *sk = ctx->sk;

	if (msk)
		return bpf_sk_storage_get(&verdicts, msk, 0, flags);
	return sk ? bpf_sk_storage_get(&verdicts, sk, 0, flags) : NULL;
}

static __always_inline void report_outcome(struct bpf_sock_ops *ctx, struct mptcp_sock *msk, __u8 outcome)
{
	struct plait_negotiate_settings *config = get_settings();
	struct plait_outcome_event *event;

	/* Without the flag, the listening socket was not selected. */
	if (!config || !config->report_outcomes ||
	    !(ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG))
		return;
	event = bpf_ringbuf_reserve(&outcomes, sizeof(*event), 0);
	/* The reader is late; that does not affect the connection. */
	if (!event)
		return;
	__builtin_memset(event, 0, sizeof(*event));
	event->token = msk ? msk->token : 0;
	event->outcome = outcome;
	event->initiator = ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB;
	event->family = ctx->family;
	event->local_port = ctx->local_port;
	event->remote_port = bpf_ntohl(ctx->remote_port);
	for (int word = 0; word < 4; word++) {
		event->local[word] = ctx->local_ip6[word];
		event->remote[word] = ctx->remote_ip6[word];
	}
	if (ctx->family == AF_INET) {
		event->local[0] = ctx->local_ip4;
		event->remote[0] = ctx->remote_ip4;
	}
	bpf_ringbuf_submit(event, 0);
}

static __always_inline void conclude(struct bpf_sock_ops *ctx, struct mptcp_sock *msk, __u8 outcome,
				     __u8 mode, __u8 offered)
{
	struct plait_verdict *verdict = verdict_of(ctx, msk, BPF_SK_STORAGE_GET_F_CREATE);

	if (!verdict)
		return;
	if (msk) {
		verdict->local_key = msk->local_key;
		verdict->remote_key = msk->remote_key;
		verdict->token = msk->token;
	}
	verdict->mode = mode;
	verdict->offered = offered;
	verdict->outcome = outcome;
	report_outcome(ctx, msk, outcome);
}

/* An MPTCP socket starts to connect. A subflow that joins an established connection makes no offer. */
static __always_inline void begin_connect(struct bpf_sock_ops *ctx)
{
	struct mptcp_sock *msk = mptcp_of(ctx);

	if (msk && !verdict_of(ctx, msk, 0) && is_selected(msk, bpf_ntohl(ctx->remote_port)))
		set_flags(ctx, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, 0);
}

static __always_inline void begin_listen(struct bpf_sock_ops *ctx)
{
	struct mptcp_sock *msk = mptcp_of(ctx);
	int save = 1;

	if (!msk || !is_selected(msk, ctx->local_port))
		return;
	/* The offer must still be readable when the handshake ends and when a SYN-ACK is retransmitted. */
	if (bpf_setsockopt(ctx, SOL_TCP, TCP_SAVE_SYN, &save, sizeof(save)))
		return;
	set_flags(ctx, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, 0);
}

static __always_inline int writes_offer(struct bpf_sock_ops *ctx)
{
	return ctx->skb_tcp_flags & TCPHDR_SYN && !(ctx->skb_tcp_flags & TCPHDR_ACK) &&
	       ctx->total_retrans < MAX_OFFERS;
}

/* Modes derive their keys from MPTCP's, so an offer is valid only together with MP_CAPABLE. */
static __always_inline int load_offer(struct bpf_sock_ops *ctx, struct plait_option *offer)
{
	__u8 mptcp[40] = {TCPOPT_MPTCP};
	int length = bpf_load_hdr_opt(ctx, mptcp, sizeof(mptcp), BPF_LOAD_HDR_OPT_TCP_SYN);

	if (length < 0)
		return length;
	return load_option(ctx, offer, BPF_LOAD_HDR_OPT_TCP_SYN);
}

static __always_inline int writes_choice(struct bpf_sock_ops *ctx, struct plait_option *offer)
{
	return (ctx->skb_tcp_flags & (TCPHDR_SYN | TCPHDR_ACK)) == (TCPHDR_SYN | TCPHDR_ACK) &&
	       load_offer(ctx, offer) == 0;
}

/* What user space tells the peer with a reset; 0: nothing. */
static __always_inline __u8 own_reason(struct bpf_sock_ops *ctx)
{
	struct mptcp_sock *msk = mptcp_of(ctx);
	struct plait_close_reasons *reasons = NULL;
	struct bpf_sock *sk = ctx->sk;

	if (msk)
		reasons = bpf_sk_storage_get(&close_reasons, msk, 0, 0);
	else if (sk)
		reasons = bpf_sk_storage_get(&close_reasons, sk, 0, 0);
	return reasons ? reasons->own : 0;
}

/*
 * After the handshake: whether subflows can tell the peer why they are reset. Linux resets those of MPTCP before their state
 * changes, so that this program must see all that they send, and nearly always writes nothing.
 */
static __always_inline void watch_resets(struct bpf_sock_ops *ctx)
{
	struct plait_verdict *verdict = verdict_of(ctx, mptcp_of(ctx), 0);
	struct plait_negotiate_settings *config = get_settings();

	if (config && config->give_reasons && verdict && verdict->outcome > PLAIT_OUTCOME_PLAIN)
		set_flags(ctx, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, 0);
	else
		set_flags(ctx, 0, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

/* Until the responder's next packet. */
static __always_inline int is_confirming(struct bpf_sock_ops *ctx)
{
	return ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG;
}

static __always_inline void reserve(struct bpf_sock_ops *ctx)
{
	struct plait_option offer;

	if (ctx->skb_tcp_flags & TCPHDR_RST) {
		if (own_reason(ctx))
			bpf_reserve_hdr_opt(ctx, sizeof(struct plait_option), 0);
	} else if (ctx->skb_tcp_flags & TCPHDR_SYN) {
		if (writes_offer(ctx) || writes_choice(ctx, &offer))
			bpf_reserve_hdr_opt(ctx, sizeof(struct plait_option), 0);
	} else if (is_confirming(ctx)) {
		bpf_reserve_hdr_opt(ctx, sizeof(struct plait_confirmation), 0);
	}
}

static __always_inline void write_confirmation(struct bpf_sock_ops *ctx)
{
	struct mptcp_sock *msk = mptcp_of(ctx);
	struct plait_verdict *verdict = msk ? verdict_of(ctx, msk, 0) : NULL;
	struct plait_confirmation own;

	if (!verdict)
		return;
	own = confirmation(verdict->offered, verdict->mode);
	bpf_store_hdr_opt(ctx, &own, sizeof(own), 0);
}

static __always_inline void write(struct bpf_sock_ops *ctx)
{
	struct plait_option offer;

	if (ctx->skb_tcp_flags & TCPHDR_RST) {
		struct plait_option own = option(own_reason(ctx));

		bpf_store_hdr_opt(ctx, &own, sizeof(own), 0);
	} else if (writes_offer(ctx)) {
		struct plait_option own = option(own_modes());

		bpf_store_hdr_opt(ctx, &own, sizeof(own), 0);
	} else if (writes_choice(ctx, &offer)) {
		__u8 mode = common_mode(&offer);
		struct plait_option choice = option(mode ? mode : responder_modes());

		bpf_store_hdr_opt(ctx, &choice, sizeof(choice), 0);
	} else if (!(ctx->skb_tcp_flags & TCPHDR_SYN)) {
		write_confirmation(ctx);
	}
}

static __always_inline void initiator_established(struct bpf_sock_ops *ctx)
{
	struct mptcp_sock *msk = mptcp_of(ctx);
	struct plait_option choice;

	if (!msk || verdict_of(ctx, msk, 0))
		return;
	if (load_option(ctx, &choice, 0)) {
		conclude(ctx, msk, PLAIT_OUTCOME_PLAIN, 0, own_modes());
	} else if (choice.version != own_version()) {
		conclude(ctx, msk, PLAIT_OUTCOME_NO_COMMON_MODE, 0, own_modes());
	} else if (!(choice.modes & own_modes()) || choice.modes & (choice.modes - 1)) {
		conclude(ctx, msk, PLAIT_OUTCOME_NO_COMMON_MODE, choice.modes, own_modes());
	} else if (!msk->remote_key) {
		conclude(ctx, msk, PLAIT_OUTCOME_FALLBACK, choice.modes, own_modes());
	} else {
		conclude(ctx, msk, PLAIT_OUTCOME_NEGOTIATED, choice.modes, own_modes());
		/* Confirm until the responder's next packet. */
		set_flags(ctx, BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG, 0);
	}
}

static __always_inline int is_confirmed(struct bpf_sock_ops *ctx, __u8 offered, __u8 chosen)
{
	struct plait_confirmation found = confirmation(offered, chosen);

	return bpf_load_hdr_opt(ctx, &found, sizeof(found), 0) >= (int)sizeof(found);
}

/*
 * Reads offer and choice from the confirmation. Offers are sets of the bits of one mode, which are neighbors. The
 * helper that searches an option needs all of its bytes.
 */
static __always_inline int load_confirmed(struct bpf_sock_ops *ctx, __u8 *offered, __u8 *chosen)
{
	for (int pair = 0; pair < 8; pair += 2)
		for (int set = 1; set <= 3; set++)
			for (int bit = 1; bit <= 2; bit++) {
				*offered = set << pair;
				*chosen = bit << pair;
				if (set & bit && !(*offered & PLAIT_CONFIRMS_LOWER) &&
				    is_confirmed(ctx, *offered, *chosen))
					return 0;
			}
	return -1;
}

/*
 * The initiator confirms if and only if it received both the choice and MP_CAPABLE; anything else is refused. A flag of
 * MP_CAPABLE cannot confirm without it: if both are missing, the initiator may have sent them in a packet that was late.
 */
static __always_inline __u8 responder_outcome(int confirmed, int is_mptcp)
{
	if (confirmed && is_mptcp)
		return PLAIT_OUTCOME_NEGOTIATED;
	return confirmed || is_mptcp || is_by_flag() ? PLAIT_OUTCOME_UNCONFIRMED : PLAIT_OUTCOME_FALLBACK;
}

/* Whether any data of the peer has arrived. Before kernel 6.5, only the initial subflow knows. */
static __always_inline int has_received_data(struct mptcp_sock *msk)
{
	struct tcp_sock *first;

	if (bpf_core_field_exists(msk->bytes_received))
		return msk->bytes_received != 0;
	first = (struct tcp_sock *)bpf_skc_to_tcp_sock(msk->first);
	return !first || first->bytes_received;
}

/* The SYN was answered with a cookie, and not stored. Joins, and sockets that were not selected, are not of interest. */
static __always_inline void conclude_cookie(struct bpf_sock_ops *ctx, struct mptcp_sock *msk)
{
	struct plait_option offer = option(0);
	__u8 chosen = 0;

	/* The initiator did not offer, or did not receive the choice; or a path strips the confirmation. */
	if (load_confirmed(ctx, &offer.modes, &chosen))
		conclude(ctx, msk, PLAIT_OUTCOME_PLAIN, 0, 0);
	else if (chosen != common_mode(&offer))
		/* Somebody changed the choice, or another process made it. */
		conclude(ctx, msk, PLAIT_OUTCOME_UNCONFIRMED, 0, offer.modes);
	else
		conclude(ctx, msk, responder_outcome(1, msk && msk->remote_key), chosen, offer.modes);
}

static __always_inline int is_join(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct tcp_sock *tcp = sk ? (struct tcp_sock *)bpf_skc_to_tcp_sock(sk) : NULL;
	struct mptcp_subflow_context *subflow = tcp ? BPF_CORE_READ(tcp, inet_conn.icsk_ulp_data) : NULL;

	return subflow && BPF_CORE_READ_BITFIELD_PROBED(subflow, mp_join);
}

/* On another processor, this may be ahead of the initial subflow, whose program concludes the outcome. */
static __always_inline void note_join(struct bpf_sock_ops *ctx, struct mptcp_sock *msk)
{
	struct plait_verdict *verdict = verdict_of(ctx, msk, BPF_SK_STORAGE_GET_F_CREATE);

	if (!verdict)
		return;
	verdict->joined |= PLAIT_JOINED;
	if (!has_received_data(msk))
		verdict->joined |= PLAIT_JOINED_EARLY;
}

static __always_inline void conclude_accepted(struct bpf_sock_ops *ctx)
{
	struct mptcp_sock *msk = mptcp_of(ctx);
	struct plait_option offer;
	int missing;
	__u8 mode;

	if (msk && is_join(ctx)) {
		note_join(ctx, msk);
		return;
	}
	missing = load_offer(ctx, &offer);
	/* Without the flag, the listening socket was not selected, and stores no SYN. */
	if (missing == -ENOENT && ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG) {
		conclude_cookie(ctx, msk);
		return;
	}
	if (missing) {
		conclude(ctx, msk, PLAIT_OUTCOME_PLAIN, 0, 0);
		return;
	}
	mode = common_mode(&offer);
	if (!mode)
		conclude(ctx, msk, PLAIT_OUTCOME_NO_COMMON_MODE, 0,
			 offer.version == own_version() ? offer.modes : 0);
	else
		conclude(ctx, msk,
			 responder_outcome(is_confirmed(ctx, offer.modes, mode), msk && msk->remote_key),
			 mode, offer.modes);
}

static __always_inline void responder_established(struct bpf_sock_ops *ctx)
{
	conclude_accepted(ctx);
	watch_resets(ctx);
}

SEC("sockops")
int negotiate(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		begin_connect(ctx);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		begin_listen(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		reserve(ctx);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write(ctx);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		initiator_established(ctx);
		watch_resets(ctx);
		if (is_confirming(ctx))
			set_flags(ctx, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG, 0);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		responder_established(ctx);
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		set_flags(ctx, 0, BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
		watch_resets(ctx);
		break;
	}
	return 1;
}

SEC("cgroup_skb/ingress")
int read_close_reason(struct __sk_buff *skb)
{
	struct plait_close_reasons *reasons;
	struct bpf_sock *sk = skb->sk;
	struct mptcp_sock *msk;
	__u8 reason;

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	if (!sk || sk->type != SOCK_STREAM)
		return PASS;
	reason = reason_of_reset(skb);
	if (!reason)
		return PASS;
	msk = (struct mptcp_sock *)bpf_skc_to_mptcp_sock(sk);
	if (msk)
		reasons = bpf_sk_storage_get(&close_reasons, msk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	else
		reasons = bpf_sk_storage_get(&close_reasons, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (reasons)
		reasons->peer = reason;
	return PASS;
}

char _license[] SEC("license") = "Dual MIT/GPL";
