// SPDX-License-Identifier: GPL-2.0
/*
 * Which connections are protected, and how. A rule is a line of words; it applies to the network namespace in which it
 * was written, and to sockets created after it. The first rule that matches wins.
 *
 *	mode=xor64-key|xor64-hmac|stream	use this mode, without negotiation
 *	verdicts=N				as negotiated: BPF map N has the outcome
 *	cgroup=PATH				sockets created in that control group or below it
 *	port=N[-M][,...]			the service's port
 *	mark=N[/MASK]				sockets with that SO_MARK
 *	require					refuse what cannot be protected, rather than carry it plain
 *	hold					one subflow, until a user-space path manager creates more
 *
 * Exactly one of mode and verdicts must be given. What is omitted matches everything. The line "clear" removes the
 * rules of the namespace, "clear verdicts=N" those with that map.
 */
#include <linux/cgroup.h>
#include <linux/kstrtox.h>
#include <linux/list.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <net/net_namespace.h>

#include "plait.h"

#define MAX_PORTS PLAIT_MAX_PORTS

/* Argument of "clear". */
#define CLEARED " verdicts="

struct ports {
	u16 first, last;
};

struct rule {
	struct list_head node;
	/* The namespace's cookie: unlike a pointer it needs no reference and is never reused. */
	u64 net;
	struct cgroup *cgroup;
	u32 mark, mask;
	struct ports ports[MAX_PORTS];
	int ports_len;
	struct plait_rule_action action;
};

static LIST_HEAD(rules);
static DEFINE_RWLOCK(lock);

static const struct {
	const char *name;
	u8 mode;
} modes[] = {
	{ "xor64-key", PLAIT_MODE_XOR64_KEY },
	{ "xor64-hmac", PLAIT_MODE_XOR64_HMAC },
	{ "stream", PLAIT_MODE_STREAM_KEYS },
};

static bool matches_scope(const struct rule *rule, const struct sock *sk)
{
	return rule->net == sock_net(sk)->net_cookie &&
	       (!rule->cgroup ||
		cgroup_is_descendant(sock_cgroup_ptr(&((struct sock *)sk)->sk_cgrp_data), rule->cgroup));
}

static bool matches_port(const struct rule *rule, u16 port)
{
	int i;

	for (i = 0; i < rule->ports_len; i++)
		if (port >= rule->ports[i].first && port <= rule->ports[i].last)
			return true;
	return !rule->ports_len;
}

bool plait_rules_may_match(const struct sock *sk)
{
	const struct rule *rule;
	bool found = false;

	read_lock(&lock);
	list_for_each_entry(rule, &rules, node) {
		found = matches_scope(rule, sk);
		if (found)
			break;
	}
	read_unlock(&lock);
	return found;
}

bool plait_rules_match(const struct sock *sk, u16 port, struct plait_rule_action *action)
{
	const struct rule *rule;
	bool found = false;

	read_lock(&lock);
	list_for_each_entry(rule, &rules, node) {
		found = matches_scope(rule, sk) && matches_port(rule, port) &&
			(READ_ONCE(sk->sk_mark) & rule->mask) == rule->mark;
		if (found) {
			*action = rule->action;
			break;
		}
	}
	read_unlock(&lock);
	return found;
}

static void free_rule(struct rule *rule)
{
	if (rule->cgroup)
		cgroup_put(rule->cgroup);
	kfree(rule);
}

/* Those with the map @verdicts; 0: all. */
static void clear_namespace(u64 net, u32 verdicts)
{
	struct rule *rule, *next;
	LIST_HEAD(cleared);

	write_lock(&lock);
	list_for_each_entry_safe(rule, next, &rules, node)
		if (rule->net == net && (!verdicts || rule->action.verdicts == verdicts))
			list_move(&rule->node, &cleared);
	write_unlock(&lock);
	list_for_each_entry_safe(rule, next, &cleared, node)
		free_rule(rule);
}

/* Rules are removed with their namespace. */
static void __net_exit forget_namespace(struct net *net)
{
	clear_namespace(net->net_cookie, 0);
}

static struct pernet_operations operations = {
	.exit = forget_namespace,
};

int plait_rules_start(void)
{
	return register_pernet_subsys(&operations);
}

/* Removes the rules of every namespace. */
void plait_rules_stop(void)
{
	unregister_pernet_subsys(&operations);
}

static int parse_mode(struct rule *rule, const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(modes); i++)
		if (!strcmp(name, modes[i].name))
			rule->action.mode = modes[i].mode;
	return rule->action.mode ? 0 : -EINVAL;
}

static int parse_cgroup(struct rule *rule, const char *path)
{
	struct cgroup *cgroup;

	if (rule->cgroup)
		return -EINVAL;
	cgroup = cgroup_get_from_path(path);
	if (IS_ERR(cgroup))
		return PTR_ERR(cgroup);
	rule->cgroup = cgroup;
	return 0;
}

static int parse_ports(struct rule *rule, char *list)
{
	char *first, *last;
	int err = 0;

	while (!err && (last = strsep(&list, ","))) {
		struct ports *ports = &rule->ports[rule->ports_len];

		if (rule->ports_len == MAX_PORTS)
			return -E2BIG;
		first = strsep(&last, "-");
		err = kstrtou16(first, 10, &ports->first);
		if (!err)
			err = kstrtou16(last ? : first, 10, &ports->last);
		if (!err && ports->first > ports->last)
			err = -EINVAL;
		rule->ports_len++;
	}
	return err;
}

static int parse_mark(struct rule *rule, char *value)
{
	char *mark = strsep(&value, "/");
	int err;

	rule->mask = U32_MAX;
	err = kstrtou32(mark, 0, &rule->mark);
	if (!err && value)
		err = kstrtou32(value, 0, &rule->mask);
	rule->mark &= rule->mask;
	return err;
}

static int parse_word(struct rule *rule, char *value)
{
	const char *name = strsep(&value, "=");

	if (!value && !strcmp(name, "require")) {
		rule->action.require = true;
		return 0;
	}
	if (!value && !strcmp(name, "hold")) {
		rule->action.hold = true;
		return 0;
	}
	if (!value)
		return -EINVAL;
	if (!strcmp(name, "mode"))
		return parse_mode(rule, value);
	if (!strcmp(name, "verdicts"))
		return kstrtou32(value, 10, &rule->action.verdicts);
	if (!strcmp(name, "cgroup"))
		return parse_cgroup(rule, value);
	if (!strcmp(name, "port"))
		return parse_ports(rule, value);
	if (!strcmp(name, "mark"))
		return parse_mark(rule, value);
	return -EINVAL;
}

static int clear(u64 net, const char *which)
{
	u32 verdicts = 0;
	int err = 0;

	if (*which)
		err = strstarts(which, CLEARED) ? kstrtou32(which + strlen(CLEARED), 10, &verdicts) : -EINVAL;
	if (!err)
		clear_namespace(net, verdicts);
	return err;
}

int plait_rules_write(char *line)
{
	u64 net = current->nsproxy->net_ns->net_cookie;
	struct rule *rule;
	char *word;
	int err = 0;

	if (strstarts(line, "clear"))
		return clear(net, line + strlen("clear"));
	rule = kzalloc(sizeof(*rule), GFP_KERNEL_ACCOUNT);
	if (!rule)
		return -ENOMEM;
	rule->net = net;
	while (!err && (word = strsep(&line, " \t")))
		if (*word)
			err = parse_word(rule, word);
	if (!err && !rule->action.mode == !rule->action.verdicts)
		err = -EINVAL;
	if (err) {
		free_rule(rule);
		return err;
	}
	write_lock(&lock);
	list_add_tail(&rule->node, &rules);
	write_unlock(&lock);
	return 0;
}

static void show_path(struct seq_file *file, struct cgroup *cgroup)
{
	char *buffer;
	size_t size = seq_get_buf(file, &buffer);
	int len = size ? cgroup_path(cgroup, buffer, size) : -1;

	/* Too long for the buffer: seq_file retries with a larger one. */
	seq_commit(file, len >= 0 && len < size ? len : -1);
}

static void show(struct seq_file *file, const struct rule *rule)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(modes); i++)
		if (modes[i].mode == rule->action.mode)
			seq_printf(file, "mode=%s", modes[i].name);
	if (rule->action.verdicts)
		seq_printf(file, "verdicts=%u", rule->action.verdicts);
	if (rule->cgroup) {
		seq_puts(file, " cgroup=");
		show_path(file, rule->cgroup);
	}
	for (i = 0; i < rule->ports_len; i++)
		seq_printf(file, "%s%u-%u", i ? "," : " port=", rule->ports[i].first,
			   rule->ports[i].last);
	if (rule->mask)
		seq_printf(file, " mark=%#x/%#x", rule->mark, rule->mask);
	if (rule->action.require)
		seq_puts(file, " require");
	if (rule->action.hold)
		seq_puts(file, " hold");
	seq_putc(file, '\n');
}

/* Those of the reader's namespace. */
void plait_rules_show(struct seq_file *file)
{
	u64 net = current->nsproxy->net_ns->net_cookie;
	const struct rule *rule;

	read_lock(&lock);
	list_for_each_entry(rule, &rules, node)
		if (rule->net == net)
			show(file, rule);
	read_unlock(&lock);
}
