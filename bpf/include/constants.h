/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Constants that several BPF programs use and that Linux's exported headers either lack or spread. */
#ifndef PLAIT_CONSTANTS_H
#define PLAIT_CONSTANTS_H

#include <asm/socket.h> /* SOL_SOCKET, SO_* */
#include <linux/in.h>	/* IPPROTO_* */
#include <linux/tcp.h>	/* TCP_CONGESTION, TCP_SAVE_SYN, TCP_CA_* */

/* socket(2) */
#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define SOCK_RAW 3
#define SOL_TCP 6

/* An option of bpf_setsockopt(), since Linux 6.12. */
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008

/* TCP flags as in the header's byte 13. */
#define TCPHDR_SYN 0x02
#define TCPHDR_RST 0x04
#define TCPHDR_ACK 0x10

enum plait_tcp_option {
	TCPOPT_END = 0,
	TCPOPT_NOP = 1,
	TCPOPT_MSS = 2,
	TCPOPT_WINDOW_SCALE = 3,
	TCPOPT_TIMESTAMP = 8,
	TCPOPT_MPTCP = 30,
};

#endif
