/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* The records of tracked subflows, one map that all programs share. */
#ifndef PLAIT_FLOWS_MAP_H
#define PLAIT_FLOWS_MAP_H

#include "intf.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, PLAIT_FLOWS);
	__type(key, struct plait_flow_key);
	__type(value, struct plait_flow);
} flows SEC(".maps");

#endif
