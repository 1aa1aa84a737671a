/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The addresses of a socket as records for user space have them: 16 bytes, of which AF_INET uses 4. */
#ifndef PLAIT_ADDRESSES_H
#define PLAIT_ADDRESSES_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "constants.h"
#include "kernel.h"

static __always_inline void read_addresses(struct sock_common *socket, __u8 local[16], __u8 remote[16])
{
	if (socket->skc_family == AF_INET6) {
		bpf_core_read(local, 16, &socket->skc_v6_rcv_saddr);
		bpf_core_read(remote, 16, &socket->skc_v6_daddr);
	} else {
		__builtin_memcpy(local, (__be32[]){socket->skc_rcv_saddr}, 4);
		__builtin_memcpy(remote, (__be32[]){socket->skc_daddr}, 4);
	}
}

#endif
