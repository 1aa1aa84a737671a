// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* An example: subflows whose round trips take more than 50 ms are used after the first megabyte of a transfer. */
#include "plait_scheduler.h"

PLAIT_SCHEDULER(question)
{
	if (question->mine.rtt_min <= 50000)
		return PLAIT_OPEN;
	return question->sent > 1000000 ? PLAIT_OPEN : PLAIT_CLOSED;
}
