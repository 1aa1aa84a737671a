/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What redirect.bpf.c and datagrams.h are told. */
#ifndef PLAIT_GATEWAY_REDIRECT_SETTINGS_H
#define PLAIT_GATEWAY_REDIRECT_SETTINGS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "intf.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plait_redirect_settings);
} settings SEC(".maps");

static __always_inline struct plait_redirect_settings read_settings(void)
{
	struct plait_redirect_settings *config, none = {};
	__u32 zero = 0;

	config = bpf_map_lookup_elem(&settings, &zero);
	return config ? *config : none;
}

#endif
