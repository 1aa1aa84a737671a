// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A congestion control algorithm that is the kernel's cubic, and that closes and opens its subflow for the kernel's
 * MPTCP scheduler.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "kernel.h"
#include "known_paths.h"
#include "repair.h"
#include "siblings.h"

/* enum plait_scheduler */
const volatile __u32 scheduler;

/* Every network namespace may select it, without privileges. */
#define TCP_CONG_NON_RESTRICTED 1
/* us; decisions are no more frequent. */
#define DECISION_INTERVAL 1000

extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

/* Asked about once a second: by the probes of a closed subflow. */
static __always_inline int is_trial_due(struct sock *sk, const struct plait_question *question)
{
	__u32 now = seconds((struct tcp_sock *)sk);

	if (scheduler != PLAIT_SCHEDULER_ECF || !is_busy(question) || ((struct tcp_sock *)sk)->packets_out)
		return 0;
	if (!question->mine.rate)
		return wait_for_trial(sk) > PLAIT_FIRST_TRIAL;
	return now - state_of(sk)->measured >= trial_interval(&question->mine);
}

static __always_inline void set_gate(struct sock *sk, const struct plait_question *question)
{
	struct subflow_state *state = state_of(sk);

	if (is_to_be_open(question)) {
		if (state->gate != GATE_OPEN)
			open_gate(sk);
		return;
	}
	if (state->gate != GATE_CLOSED)
		close_gate(sk, GATE_CLOSED);
	else if (is_trial_due(sk, question))
		start_trial(sk);
}

/* Whether the burst of a trial, or its first acknowledgments, are still to come. */
static __always_inline int is_being_tried(struct sock *sk)
{
	struct subflow_state *state = state_of(sk);

	return state->gate == GATE_TRIAL ||
	       (state->gate == GATE_MEASURING && !state->rate && ((struct tcp_sock *)sk)->packets_out);
}

static __always_inline void decide(struct sock *sk)
{
	struct mptcp_subflow_context *subflow = subflow_of(sk);
	struct plait_question question = {.scheduler = scheduler};
	struct tcp_sock *tcp = (struct tcp_sock *)sk;
	struct subflow_state *state = state_of(sk);
	__u32 now = tcp->tcp_mstamp;
	struct mptcp_sock *msk;

	/* Acknowledgments of the handshake may come before init(). */
	if (!state->measured || !subflow || !subflow->conn || now - state->decided < DECISION_INTERVAL)
		return;
	state->decided = now;
	if (!find_best(sk, subflow->conn, &question)) {
		if (state->gate != GATE_OPEN)
			open_gate(sk);
		return;
	}
	if (is_being_tried(sk))
		return;
	describe(tcp, rate_of_self(tcp, state), &question.mine);
	msk = AS(struct mptcp_sock, subflow->conn);
	question.queued = queued(msk);
	question.window = msk->wnd_end - msk->snd_una;
	question.is_open = state->gate == GATE_OPEN;
	set_gate(sk, &question);
}

SEC("struct_ops")
void BPF_PROG(init, struct sock *sk)
{
	cubictcp_init(sk);
	state_of(sk)->measured = seconds((struct tcp_sock *)sk);
	recall_path(sk);
	decide(sk);
}

SEC("struct_ops")
void BPF_PROG(cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
	if (event != bpf_core_enum_value(enum tcp_ca_event, CA_EVENT_TX_START))
		return;
	start_train(sk);
	if (state_of(sk)->gate == GATE_TRIAL)
		close_gate(sk, GATE_MEASURING);
}

/* Every acknowledgment, also those without news: of keepalive probes, and of data that other subflows carried. */
SEC("struct_ops")
void BPF_PROG(in_ack_event, struct sock *sk, __u32 flags)
{
	if (!((struct tcp_sock *)sk)->packets_out)
		decide(sk);
}

SEC("struct_ops")
void BPF_PROG(pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
	if (!((struct tcp_sock *)sk)->is_mptcp)
		return;
	if (measure_train(sk) >= MIN_KNOWN && !state_of(sk)->is_remembered)
		remember_path(sk);
	decide(sk);
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
void BPF_PROG(set_state, struct sock *sk, __u8 new_state)
{
	__u32 before = window_to_repair(sk, new_state, max_plausible_window(sk));

	/* Cubic's threshold after a loss: 717/1024 of the window. */
	if (before)
		((struct tcp_sock *)sk)->snd_ssthresh = before > 2 ? before * 717ull / 1024 : 2;
	cubictcp_state(sk, new_state);
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
	question->answer = is_to_be_open(&copy);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
