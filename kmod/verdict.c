// SPDX-License-Identifier: GPL-2.0
/*
 * The outcome of the negotiation, stored in the socket's local storage by the gateway's BPF program (negotiate.bpf.c).
 * It is looked up by the map's id: those who may create such maps decide which one is trusted.
 */
#include <linux/bpf_local_storage.h>
#include <linux/rculist.h>
#include <net/sock.h>

#include "plait.h"

bool plait_verdict_read(struct sock *sk, u32 map, struct plait_verdict *verdict)
{
	struct bpf_local_storage_elem *element;
	struct bpf_local_storage *storage;
	bool found = false;

	rcu_read_lock();
	storage = rcu_dereference(sk->sk_bpf_storage);
	if (!storage)
		goto unlock;
	hlist_for_each_entry_rcu(element, &storage->list, snode) {
		const struct bpf_local_storage_map *owner = rcu_dereference(SDATA(element)->smap);

		found = owner && owner->map.id == map && owner->map.value_size == sizeof(*verdict);
		if (found) {
			memcpy(verdict, SDATA(element)->data, sizeof(*verdict));
			break;
		}
	}
unlock:
	rcu_read_unlock();
	return found;
}
