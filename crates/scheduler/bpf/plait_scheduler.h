/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The header of a scheduler of one's own, which `plait sched load FILE.bpf.c` compiles and loads:
 *
 *	#include "plait_scheduler.h"
 *
 *	PLAIT_SCHEDULER(question)
 *	{
 *		return question->mine.rtt_min < 50000 ? PLAIT_OPEN : PLAIT_CLOSED;
 *	}
 *
 * It is asked with the acknowledgments that a subflow receives, at most once a millisecond, while another subflow of the
 * connection is usable. `question` is a struct plait_question (intf.h). It returns PLAIT_OPEN, PLAIT_CLOSED, or a
 * limit in bytes per second. A closed subflow is asked once a second. Subflows of which no other one is usable are open.
 */
#ifndef PLAIT_SCHEDULER_H
#define PLAIT_SCHEDULER_H

#define PLAIT_HAS_CUSTOM_DECISION 1

#include "scheduler.bpf.c"

#define PLAIT_OPEN PLAIT_UNLIMITED
#define PLAIT_CLOSED 0u

#define PLAIT_SCHEDULER(question)                                                                            \
	static __attribute__((always_inline)) inline __u32 decide_by_file(                                   \
	    const struct plait_question *question)

#endif
