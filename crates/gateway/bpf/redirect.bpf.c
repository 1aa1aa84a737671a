// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Redirects the TCP connections of one program to the gateway's listeners on loopback, transparently to the
 * program.
 *
 * Attached to a cgroup that contains only the program, or for a whole host, to those of scope.h. Replaces the destination of connect() by the listener;
 * the original destination is stored in the socket's storage (for getpeername) and published under the
 * socket's local port (for the gateway). Where connections go to an exit, DNS is redirected as well, and other datagrams are those
 * of datagrams.h.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "client.h"
#include "constants.h"
#include "datagrams.h"
#include "intf.h"
#include "loopback.h"
#include "networks.h"
#include "redirect_settings.h"
#include "scope.h"

/* Kept until the socket is closed. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct plait_destination);
} destinations SEC(".maps");

/* Kept until the gateway accepts the connection; entries that it never accepts are evicted eventually. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct plait_client);
	__type(value, struct plait_destination);
} arrivals SEC(".maps");

/* Clients whose SYNs are dropped, until the gateway deletes them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct plait_client);
	__type(value, __u8);
} held_clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} held_syns SEC(".maps");

static __always_inline int is_stream(struct bpf_sock_addr *ctx)
{
	return ctx->type == SOCK_STREAM && (ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_MPTCP);
}

/* A connection to a resolver, or a query, that does not leave by itself. */
static __always_inline int is_redirected_dns(struct bpf_sock_addr *ctx, struct plait_redirect_settings config)
{
	return config.dns && ctx->user_port == bpf_htons(PORT_DNS) &&
	       (is_stream(ctx) || ctx->type == SOCK_DGRAM);
}

/*
 * A socket bound to an interface (SO_BINDTODEVICE) does not reach loopback. The binding is removed, and becomes one of
 * the gateway's connection. The kernel allows that to programs with CAP_NET_RAW.
 */
static __always_inline int unbind(struct bpf_sock_addr *ctx)
{
	char none[] = "";

	return bpf_setsockopt(ctx, SOL_SOCKET, SO_BINDTODEVICE, none, sizeof(none));
}

static __always_inline enum verdict store(struct bpf_sock_addr *ctx,
					  const struct plait_destination *destination)
{
	struct plait_destination *stored;

	stored = ctx->sk ? bpf_sk_storage_get(&destinations, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE) : NULL;
	if (!stored)
		return REFUSE;
	*stored = *destination;
	return ALLOW;
}

static __always_inline enum verdict store_destination(struct bpf_sock_addr *ctx,
						      struct plait_destination *destination)
{
	if (!ctx->sk)
		return REFUSE;
	destination->interface = ctx->sk->bound_dev_if;
	if (destination->interface && unbind(ctx))
		return REFUSE;
	return store(ctx, destination);
}

/* Sends a query, or a datagram socket's queries, to the gateway. */
static __always_inline enum verdict redirect_query_v4(struct bpf_sock_addr *ctx,
						      const struct plait_destination *destination, __u16 port)
{
	if (!port || store(ctx, destination) == REFUSE)
		return REFUSE;
	ctx->user_ip4 = bpf_htonl(0x7f000001);
	ctx->user_port = port;
	return ALLOW;
}

static __always_inline enum verdict redirect_query_v6(struct bpf_sock_addr *ctx,
						      const struct plait_destination *destination,
						      struct plait_redirect_settings config)
{
	int mapped = is_mapped(destination->address);
	__u16 port = mapped ? config.dns_v4 : config.dns_v6;

	if (!port || store(ctx, destination) == REFUSE)
		return REFUSE;
	ctx->user_ip6[0] = 0;
	ctx->user_ip6[1] = 0;
	ctx->user_ip6[2] = mapped ? MAPPED : 0;
	ctx->user_ip6[3] = mapped ? bpf_htonl(0x7f000001) : bpf_htonl(1);
	ctx->user_port = port;
	return ALLOW;
}

/* A socket that is connected again may have a new destination. */
static __always_inline enum verdict delete_destination(struct bpf_sock_addr *ctx)
{
	if (ctx->sk)
		bpf_sk_storage_delete(&destinations, ctx->sk);
	return ALLOW;
}

/*
 * Resolvers connect datagram sockets only to learn their source address: what a socket sends is judged. Its program is not known
 * then, and has to be judged here.
 */
static __always_inline enum verdict connect_datagram(struct bpf_sock_addr *ctx,
						     struct plait_redirect_settings config)
{
	delete_destination(ctx);
	if (config.mark && is_udp(ctx) && !is_dhcp(0, ctx->user_port) && ensure_mark(ctx, config.mark))
		return ALLOW;
	return read_scope().by_program ? judge_destination_port(config, ctx->user_port) : ALLOW;
}

SEC("cgroup/connect4")
int redirect_connect4(struct bpf_sock_addr *ctx)
{
	struct plait_destination destination = {
	    .address = {ctx->user_ip4},
	    .port = ctx->user_port,
	    .family = AF_INET,
	};
	struct plait_redirect_settings config = read_settings();

	if (!is_in_scope(ctx))
		return ALLOW;
	if (is_redirected_dns(ctx, config)) {
		if (!is_stream(ctx))
			return redirect_query_v4(ctx, &destination, config.dns_v4);
	} else if (is_loopback_v4(ctx->user_ip4) || is_excluded_v4(ctx->user_ip4)) {
		return delete_destination(ctx);
	}
	if (!is_stream(ctx))
		return connect_datagram(ctx, config);
	if (!config.listener_v4)
		return config.require ? REFUSE : ALLOW;
	if (store_destination(ctx, &destination) == REFUSE)
		return REFUSE;
	ctx->user_ip4 = bpf_htonl(0x7f000001);
	ctx->user_port = config.listener_v4;
	return ALLOW;
}

SEC("cgroup/connect6")
int redirect_connect6(struct bpf_sock_addr *ctx)
{
	struct plait_destination destination = {
	    .address = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]},
	    .port = ctx->user_port,
	    .family = AF_INET6,
	};
	struct plait_redirect_settings config = read_settings();
	int mapped = is_mapped(destination.address);
	__u16 listener = mapped ? config.listener_v4 : config.listener_v6;

	if (!is_in_scope(ctx))
		return ALLOW;
	if (is_redirected_dns(ctx, config)) {
		if (!is_stream(ctx))
			return redirect_query_v6(ctx, &destination, config);
	} else if (is_loopback_v6(destination.address) || is_excluded_v6(destination.address)) {
		return delete_destination(ctx);
	}
	if (!is_stream(ctx))
		return connect_datagram(ctx, config);
	if (!listener)
		return config.require ? REFUSE : ALLOW;
	if (store_destination(ctx, &destination) == REFUSE)
		return REFUSE;
	ctx->user_ip6[0] = 0;
	ctx->user_ip6[1] = 0;
	ctx->user_ip6[2] = mapped ? MAPPED : 0;
	ctx->user_ip6[3] = mapped ? bpf_htonl(0x7f000001) : bpf_htonl(1);
	ctx->user_port = listener;
	return ALLOW;
}

SEC("cgroup/sendmsg4")
int redirect_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct plait_destination destination = {
	    .address = {ctx->user_ip4},
	    .port = ctx->user_port,
	    .family = AF_INET,
	};
	struct plait_redirect_settings config = read_settings();

	if (!is_in_scope(ctx))
		return ALLOW;
	if (is_redirected_dns(ctx, config))
		return redirect_query_v4(ctx, &destination, config.dns_v4);
	return is_loopback_v4(ctx->user_ip4) || is_excluded_v4(ctx->user_ip4) ? ALLOW
									      : judge_datagram(ctx, config);
}

SEC("cgroup/sendmsg6")
int redirect_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct plait_destination destination = {
	    .address = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]},
	    .port = ctx->user_port,
	    .family = AF_INET6,
	};
	struct plait_redirect_settings config = read_settings();

	if (!is_in_scope(ctx))
		return ALLOW;
	if (is_redirected_dns(ctx, config))
		return redirect_query_v6(ctx, &destination, config);
	return is_loopback_v6(destination.address) || is_excluded_v6(destination.address)
		   ? ALLOW
		   : judge_datagram(ctx, config);
}

/* Answers seem to come from where the query was sent to. */
SEC("cgroup/recvmsg4")
int redirect_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct plait_redirect_settings config = read_settings();
	struct plait_destination *stored;

	if (!config.dns_v4 || ctx->user_port != config.dns_v4 || ctx->user_ip4 != bpf_htonl(0x7f000001))
		return ALLOW;
	stored = ctx->sk ? bpf_sk_storage_get(&destinations, ctx->sk, 0, 0) : NULL;
	if (stored) {
		ctx->user_ip4 = stored->address[0];
		ctx->user_port = stored->port;
	}
	return ALLOW;
}

SEC("cgroup/recvmsg6")
int redirect_recvmsg6(struct bpf_sock_addr *ctx)
{
	__u32 address[4] = {ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3]};
	struct plait_redirect_settings config = read_settings();
	__u16 port = is_mapped(address) ? config.dns_v4 : config.dns_v6;
	struct plait_destination *stored;
	int is_v4;

	if (!port || ctx->user_port != port || !is_loopback_v6(address))
		return ALLOW;
	stored = ctx->sk ? bpf_sk_storage_get(&destinations, ctx->sk, 0, 0) : NULL;
	if (stored) {
		/* Datagrams to a mapped address pass the hook of IPv4. */
		is_v4 = stored->family == AF_INET;
		ctx->user_ip6[0] = is_v4 ? 0 : stored->address[0];
		ctx->user_ip6[1] = is_v4 ? 0 : stored->address[1];
		ctx->user_ip6[2] = is_v4 ? MAPPED : stored->address[2];
		ctx->user_ip6[3] = is_v4 ? stored->address[0] : stored->address[3];
		ctx->user_port = stored->port;
	}
	return ALLOW;
}

/* Without one, as after the gateway was killed, the kernel must answer the SYN with a reset. */
static __always_inline int has_listener(struct __sk_buff *skb, const struct plait_client *client)
{
	struct plait_redirect_settings config = read_settings();
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *listener;
	__u32 size;

	if (client->ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, client->address, sizeof(tuple.ipv6.saddr));
		tuple.ipv6.daddr[3] = bpf_htonl(1);
		tuple.ipv6.sport = bpf_htons(client->port);
		tuple.ipv6.dport = config.listener_v6;
		size = sizeof(tuple.ipv6);
	} else {
		tuple.ipv4.saddr = client->address[0];
		tuple.ipv4.daddr = bpf_htonl(0x7f000001);
		tuple.ipv4.sport = bpf_htons(client->port);
		tuple.ipv4.dport = config.listener_v4;
		size = sizeof(tuple.ipv4);
	}
	listener = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!listener)
		return 0;
	bpf_sk_release(listener);
	return 1;
}

/*
 * Holds the SYN of a redirected connection: TCP takes it for lost. The gateway connects to the destination meanwhile,
 * and then sends it to its listener, or rejects it, so that the program's connect() succeeds or fails as without it.
 */
static __always_inline enum verdict judge_syn(struct __sk_buff *skb, struct bpf_sock *sk)
{
	struct plait_destination *destination;
	struct plait_client client = {};
	__u32 ip_length, length;
	struct plait_syn *syn;
	__u8 data_offset;
	__u8 held = 1;

	if (sk->state != BPF_TCP_SYN_SENT || !read_settings().hold)
		return ALLOW;
	destination = bpf_sk_storage_get(&destinations, sk, 0, 0);
	if (!destination)
		return ALLOW;
	ip_length = read_client(skb, IPPROTO_TCP, &client);
	if (!ip_length || !has_listener(skb, &client))
		return ALLOW;
	/* TCP sends it again. */
	if (destination->held)
		return bpf_map_lookup_elem(&held_clients, &client) ? REFUSE : ALLOW;
	if (bpf_skb_load_bytes(skb, ip_length + 12, &data_offset, sizeof(data_offset)))
		return ALLOW;
	length = ip_length + (data_offset >> 4) * 4;
	syn = bpf_ringbuf_reserve(&held_syns, sizeof(*syn), 0);
	if (!syn)
		return ALLOW;
	if (length < 40 || length > PLAIT_SYN_MAX_LEN || bpf_skb_load_bytes(skb, 0, syn->headers, length) ||
	    bpf_map_update_elem(&held_clients, &client, &held, BPF_ANY)) {
		bpf_ringbuf_discard(syn, 0);
		return ALLOW;
	}
	destination->held = 1;
	syn->client = client;
	syn->destination = *destination;
	syn->length = length;
	bpf_ringbuf_submit(syn, 0);
	return REFUSE;
}

/* As is_in_scope, of a packet; its program is not known, and was judged before. */
static __always_inline int is_packet_in_scope(struct __sk_buff *skb)
{
	struct plait_scope scope = read_scope();

	if (!scope.namespace)
		return 1;
	return !scope.by_program && namespace_of(skb) == scope.namespace &&
	       bpf_skb_cgroup_id(skb) != scope.gateway && is_user_in_scope(scope, bpf_get_socket_uid(skb));
}

/* Other network namespaces have daemons of their own, whose mark is the same. */
static __always_inline int is_in_namespace(struct __sk_buff *skb)
{
	__u64 namespace = read_scope().namespace;

	return !namespace || namespace_of(skb) == namespace;
}

/* Datagrams of connected sockets, for which the hooks of sendmsg() are not called, and SYNs. */
SEC("cgroup_skb/egress")
int redirect_egress(struct __sk_buff *skb)
{
	struct plait_redirect_settings config = read_settings();
	struct bpf_sock *sk = skb->sk;
	int has_mark = config.mark && skb->mark == config.mark && is_in_namespace(skb);

	sk = sk ? bpf_sk_fullsock(sk) : NULL;
	if (!sk)
		return ALLOW;
	if (sk->type == SOCK_STREAM)
		return judge_syn(skb, sk);
	if (sk->type != SOCK_DGRAM)
		return ALLOW;
	if (skb->ifindex == LOOPBACK_INDEX) {
		if (has_mark)
			remember_client(skb);
		return ALLOW;
	}
	if (!refuses_datagrams(config) || !(has_mark || is_packet_in_scope(skb)))
		return ALLOW;
	return skb->protocol == bpf_htons(ETH_P_IPV6) ? judge_udp_v6(skb) : judge_udp_v4(skb);
}

SEC("cgroup/getpeername4")
int redirect_getpeername4(struct bpf_sock_addr *ctx)
{
	struct plait_destination *stored;

	stored = ctx->sk ? bpf_sk_storage_get(&destinations, ctx->sk, 0, 0) : NULL;
	if (stored) {
		ctx->user_ip4 = stored->address[0];
		ctx->user_port = stored->port;
	}
	return ALLOW;
}

SEC("cgroup/getpeername6")
int redirect_getpeername6(struct bpf_sock_addr *ctx)
{
	struct plait_destination *stored;

	stored = ctx->sk ? bpf_sk_storage_get(&destinations, ctx->sk, 0, 0) : NULL;
	if (stored) {
		ctx->user_ip6[0] = stored->address[0];
		ctx->user_ip6[1] = stored->address[1];
		ctx->user_ip6[2] = stored->address[2];
		ctx->user_ip6[3] = stored->address[3];
		ctx->user_port = stored->port;
	}
	return ALLOW;
}

/* The local port is chosen after the connect hook; at this point it is known and the SYN has not been sent. */
SEC("sockops")
int redirect_publish(struct bpf_sock_ops *ctx)
{
	struct plait_client client = {.port = ctx->local_port};
	struct plait_destination *stored, *mptcp_stored;
	struct bpf_sock *sk = ctx->sk;
	struct mptcp_sock *msk;

	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB || !sk)
		return 1;
	stored = bpf_sk_storage_get(&destinations, sk, 0, 0);
	if (!stored)
		return 1;
	client.ipv6 = stored->family == AF_INET6 && !is_mapped(stored->address);
	if (client.ipv6) {
		client.address[0] = ctx->local_ip6[0];
		client.address[1] = ctx->local_ip6[1];
		client.address[2] = ctx->local_ip6[2];
		client.address[3] = ctx->local_ip6[3];
	} else {
		client.address[0] = ctx->local_ip4;
	}
	bpf_map_update_elem(&arrivals, &client, stored, BPF_ANY);
	/* That of an earlier connection with this port. */
	bpf_map_delete_elem(&held_clients, &client);
	/* A program that uses MPTCP itself calls getpeername on its MPTCP socket, not on the connecting subflow. */
	msk = (struct mptcp_sock *)bpf_skc_to_mptcp_sock(sk);
	mptcp_stored = msk ? bpf_sk_storage_get(&destinations, msk, 0, BPF_SK_STORAGE_GET_F_CREATE) : NULL;
	if (mptcp_stored)
		*mptcp_stored = *stored;
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
