// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A congestion control algorithm that is the kernel's cubic, and that closes and opens its subflow for the kernel's
 * MPTCP scheduler.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "fill.h"
#include "kernel.h"
#include "known_paths.h"
#include "probe.h"
#include "repair.h"
#include "send_buffer.h"
#include "siblings.h"

/* Every network namespace may select it, without privileges. */
#define TCP_CONG_NON_RESTRICTED 1
/* In 2^8 us: decisions are no more frequent. */
#define DECISION_INTERVAL 4
/* Those of `ecf` for an open subflow of a near path, which it hardly ever closes. */
#define NEAR_DECISION_INTERVAL 16

extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

/*
 * Whether the rate of a closed subflow is to be measured by data, or again. Asked about once a second: by the probes of
 * a closed subflow.
 */
static __always_inline int is_trial_due(struct sock *sk, const struct plait_question *question)
{
	__u16 now = mark((struct tcp_sock *)sk), elapsed = now - state_of(sk)->measured;

	if (scheduler != PLAIT_SCHEDULER_ECF || !is_busy(question) || ((struct tcp_sock *)sk)->packets_out)
		return 0;
	if (!question->mine.rate)
		return wait_for_trial(sk) > PLAIT_FIRST_TRIAL;
	return elapsed >= trial_interval(&question->mine);
}

/* At the first chance, as the rate of no further subflow is known. */
static __always_inline int is_first_probe_due(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);

	return scheduler == PLAIT_SCHEDULER_ECF && !state->rate && !state->is_probed;
}

/* Whether a closed subflow is to learn of a shorter round trip sooner than by a keepalive probe. */
static __always_inline int requests_acks(void)
{
	return scheduler == PLAIT_SCHEDULER_ECF || scheduler == PLAIT_SCHEDULER_ALL;
}

static __always_inline void stay_closed(struct sock *sk, const struct plait_question *question)
{
	if (is_first_probe_due(sk))
		send_probe(sk);
	else if (is_trial_due(sk, question)) {
		if (!send_probe(sk))
			start_trial(sk);
	} else if (requests_acks() && is_busy(question) && !((struct tcp_sock *)sk)->packets_out)
		request_ack(sk, question->mine.rtt);
}

/*
 * A subflow of the server that is closed when it begins decides again soon: the client's request to join was confirmed. The client's own is,
 * once it hears of the server.
 */
static __always_inline void start_closed(struct sock *sk)
{
	if (!requests_acks() || ((struct sock_common *)sk)->skc_state != BPF_TCP_SYN_RECV)
		return;
	if (is_first_probe_due(sk))
		send_probe(sk);
	else
		request_ack(sk, ((struct tcp_sock *)sk)->rtt_min.s[0].v);
}

/* A change of less than a sixteenth is none. */
static __always_inline int is_limited_to(struct sock *sk, __u32 rate, __u32 unsent)
{
	unsigned long now = sk->sk_max_pacing_rate;

	return state_of(sk)->gate == GATE_LIMITED && now - now / 16 <= rate && rate <= now + now / 16 &&
	       (!unsent || ((struct tcp_sock *)sk)->notsent_lowat == unsent);
}

/* Whether a subflow that is to be closed has data left to send: without a pacing rate it would send that at once, and overflow a short queue. */
static __always_inline int has_unsent(struct sock *sk, const struct plait_question *question)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;

	return scheduler == PLAIT_SCHEDULER_ECF && state_of(sk)->gate <= GATE_LIMITED &&
	       tcp->write_seq != tcp->snd_nxt && question->mine.rate && !is_near(&question->mine);
}

static __always_inline void set_gate(struct sock *sk, const struct plait_question *question, __u32 rate)
{
	__u32 unsent = scheduler == PLAIT_SCHEDULER_ECF && rate != PLAIT_UNLIMITED ? PLAIT_LATE_UNSENT : 0;
	struct subflow_state *state = state_of(sk);

	state->reason = question->reason;
	if (!rate && state->gate == GATE_CLOSED)
		return stay_closed(sk, question);
	if (!rate && has_unsent(sk, question)) {
		rate = limit_of(in_time_rate(&question->mine));
		unsent = PLAIT_CLOSED_UNSENT;
	} else if (!rate) {
		close_gate(sk, GATE_CLOSED);
		return start_closed(sk);
	}
	if (rate == PLAIT_UNLIMITED ? state->gate == GATE_OPEN : is_limited_to(sk, rate, unsent))
		return;
	open_gate(sk, rate, unsent);
}

/* Whether the burst of a trial, or its first acknowledgments, are still to come. */
static __always_inline int is_being_tried(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);

	return state->gate == GATE_TRIAL ||
	       (state->gate == GATE_MEASURING && !state->rate && ((struct tcp_sock *)sk)->packets_out);
}

static __always_inline __u16 decision_interval(struct tcp_sock *tcp, const struct subflow_state *state)
{
	if (scheduler == PLAIT_SCHEDULER_ECF && state->gate == GATE_OPEN && has_near_path(tcp))
		return NEAR_DECISION_INTERVAL;
	return DECISION_INTERVAL;
}

static __always_inline int is_decision_due(struct sock *sk)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	__u16 now = tcp->tcp_mstamp >> 8, elapsed = now - state->decided;

	/* Acknowledgments of the handshake may come before init(). */
	if (!state->measured || elapsed < decision_interval(tcp, state))
		return 0;
	state->decided = now;
	return 1;
}

static __always_inline void set_targets(struct plait_question *question)
{
	const struct plait_targets *wanted = find_targets();

	if (!wanted)
		return;
	question->target_rate = wanted->rate;
	question->target_rtt = wanted->rtt;
}

/* `acked`: the bytes of a train by which the rate was measured, which is remembered if they are enough; 0: it was not. */
static __always_inline void decide(struct sock *sk, __u32 acked)
{
	struct mptcp_subflow_context *subflow = subflow_of(sk);
	struct subflow_state *state = state_of(sk);
	struct plait_path_options options = {};
	struct plait_question *question;
	struct comparison *comparison;
	struct mptcp_sock *msk;
	__u32 rate;
	int more;

	if (!subflow || !subflow->conn || !is_decision_due(sk))
		return;
	if (acked >= MIN_KNOWN && !state->is_remembered)
		remember_path(sk);
	comparison = start_comparison(sk);
	if (!comparison)
		return;
	question = &comparison->question;
	if (scheduler >= PLAIT_SCHEDULER_WEIGHTED)
		options = options_of(sk);
	if (!compare(sk, subflow->conn, &options, comparison)) {
		rate = open_by(question, PLAIT_REASON_ONLY);
	} else {
		if (is_being_tried(sk))
			return;
		describe((struct tcp_sock *)sk, rate_of_self((struct tcp_sock *)sk, state), &question->mine);
		correct_rtt(sk, &question->mine);
		consider_outstanding((struct tcp_sock *)sk, &question->mine);
		msk = AS(struct mptcp_sock, subflow->conn);
		more = has_more(subflow->conn);
		question->queued = queued(msk, more);
		question->window = msk->wnd_end - msk->snd_una;
		question->send_buffer = max_send_buffer(sk, subflow->conn);
		question->sent = msk->bytes_sent;
		question->is_open = state->gate <= GATE_LIMITED;
		question->window_trials = state->window_trials;
		/* A moment without data closes no near subflow: its requests for acknowledgments would be used up long before there is more. */
		if (!more && !(question->is_open && is_near(&question->mine)))
			question->busy_bytes = 0;
		question->start = start_time((struct tcp_sock *)sk, &question->mine);
		set_targets(question);
		rate = decide_for(question, scheduler);
		if (rate && question->reason == PLAIT_REASON_WINDOW)
			state->window_trials++;
	}
	set_gate(sk, question, options.max_rate && rate > options.max_rate ? options.max_rate : rate);
}

SEC("struct_ops")
void BPF_PROG(init, struct sock *sk)
{
	cubictcp_init(sk);
	state_of(sk)->measured = mark((struct tcp_sock *)sk);
	remember_options(sk);
	recall_path(sk);
	decide(sk, 0);
}

SEC("struct_ops")
void BPF_PROG(cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
	if (event != bpf_core_enum_value(enum tcp_ca_event, CA_EVENT_TX_START))
		return;
	start_train(sk);
	if (scheduler != PLAIT_SCHEDULER_WEIGHTED)
		state_of(sk)->busy_start = ((struct tcp_sock *)sk)->bytes_acked >> 10;
	set_threshold(sk);
	set_first_window(sk);
	restore_unsent_limit(sk);
	if (state_of(sk)->gate == GATE_TRIAL)
		close_gate(sk, GATE_MEASURING);
}

/* Every acknowledgment, also those without news: of keepalive probes, and of data that other subflows carried. */
SEC("struct_ops")
void BPF_PROG(in_ack_event, struct sock *sk, __u32 flags)
{
	/* Of a closed subflow each counts: no further one may follow. */
	if (measure_probe(sk) || state_of(sk)->gate == GATE_CLOSED)
		state_of(sk)->decided -= decision_interval((struct tcp_sock *)sk, state_of(sk));
	if (!((struct tcp_sock *)sk)->packets_out)
		decide(sk, 0);
}

SEC("struct_ops")
void BPF_PROG(pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
	if (((struct tcp_sock *)sk)->is_mptcp)
		decide(sk, measure_train(sk));
}

static __always_inline __u32 max_plausible_window(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);

	return state->window > state->window_at_loss ? state->window : state->window_at_loss;
}

SEC("struct_ops")
void BPF_PROG(cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	repair_window(sk, max_plausible_window(sk));
	cubictcp_cong_avoid(sk, ack, acked);
	state_of(sk)->window = ((struct tcp_sock *)sk)->snd_cwnd;
	end_pacing(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(ssthresh, struct sock *sk)
{
	repair_window(sk, max_plausible_window(sk));
	state_of(sk)->window_at_loss = ((struct tcp_sock *)sk)->snd_cwnd;
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(sndbuf_expand, struct sock *sk)
{
	return scheduler == PLAIT_SCHEDULER_OFF ? SEND_BUFFER_WINDOWS : send_buffer_windows(sk);
}

SEC("struct_ops")
void BPF_PROG(set_state, struct sock *sk, __u8 new_state)
{
	__u32 before = window_to_repair(sk, new_state, max_plausible_window(sk));

	/* Cubic's threshold after a loss: 717/1024 of the window. */
	if (before)
		((struct tcp_sock *)sk)->snd_ssthresh = before > 2 ? before * 717ull / 1024 : 2;
	cubictcp_state(sk, new_state);
	if (scheduler == PLAIT_SCHEDULER_OFF || !((struct tcp_sock *)sk)->is_mptcp)
		return;
	/* The kernel ends a subflow that the program has closed by the number of its retransmissions. */
	if (new_state == TCP_CA_Loss && !SOCK_FLAG(sk, SOCK_DEAD))
		limit_backoff(sk);
	else if (BPF_CORE_READ_BITFIELD((struct inet_connection_sock *)sk, icsk_ca_state) == TCP_CA_Loss)
		restore_backoff(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops algorithm = {
    .init = (void *)init,
    .ssthresh = (void *)ssthresh,
    .cong_avoid = (void *)cong_avoid,
    .set_state = (void *)set_state,
    .cwnd_event = (void *)cwnd_event,
    .in_ack_event = (void *)in_ack_event,
    .pkts_acked = (void *)pkts_acked,
    .undo_cwnd = (void *)undo_cwnd,
    .sndbuf_expand = (void *)sndbuf_expand,
    .flags = TCP_CONG_NON_RESTRICTED,
    .name = "plait_scheduler",
};

/* Answers a question; only tests run it. */
SEC("syscall")
int answer(struct plait_question *question)
{
	struct plait_question copy;

	/* The verifier allows reads of a program's argument only at constant offsets. */
	__builtin_memcpy(&copy, question, sizeof(copy));
	question->rate = decide_for(&copy, copy.scheduler);
	question->reason = copy.reason;
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
