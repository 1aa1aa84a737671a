// SPDX-License-Identifier: GPL-2.0
/*
 * /proc/plait/rules: which connections are protected; see rules.c.
 * /proc/plait/counters: a name and a number on each line, since the module was loaded.
 */
#include <linux/capability.h>
#include <linux/percpu.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/user_namespace.h>

#include "plait.h"

static const char *const names[PLAIT_COUNTERS] = {
	[PLAIT_COUNT_HOOKED] = "sockets_taken",
	[PLAIT_COUNT_OPENED] = "sockets_used",
	[PLAIT_COUNT_CLOSED] = "sockets_ended",
	[PLAIT_COUNT_PROTECTED] = "connections_protected",
	[PLAIT_COUNT_PLAIN] = "connections_plain",
	[PLAIT_COUNT_REFUSED] = "connections_refused",
	[PLAIT_BYTES_SENT] = "bytes_sent",
	[PLAIT_BYTES_RECEIVED] = "bytes_received",
	[PLAIT_FAULTS] = "faults",
	[PLAIT_ERRORS] = "errors",
};

static DEFINE_PER_CPU(u64 [PLAIT_COUNTERS], counts);

static struct proc_dir_entry *directory;

void plait_count(enum plait_counter counter, u64 amount)
{
	this_cpu_add(counts[counter], amount);
}

static int show_counters(struct seq_file *file, void *unused)
{
	int i, cpu;

	for (i = 0; i < PLAIT_COUNTERS; i++) {
		u64 sum = 0;

		for_each_possible_cpu(cpu)
			sum += per_cpu(counts[i], cpu);
		seq_printf(file, "%s %llu\n", names[i], sum);
	}
	return 0;
}

static int show_rules(struct seq_file *file, void *unused)
{
	plait_rules_show(file);
	return 0;
}

static int open_rules(struct inode *inode, struct file *file)
{
	return single_open(file, show_rules, NULL);
}

/* One line for each write. */
static ssize_t write_rules(struct file *file, const char __user *bytes, size_t len, loff_t *position)
{
	char *line;
	int err;

	/* As netlink: the file may have been passed to a program with more rights, or with fewer. */
	if (!file_ns_capable(file, &init_user_ns, CAP_NET_ADMIN) || !capable(CAP_NET_ADMIN))
		return -EPERM;
	if (len >= PAGE_SIZE)
		return -E2BIG;
	line = memdup_user_nul(bytes, len);
	if (IS_ERR(line))
		return PTR_ERR(line);
	err = plait_rules_write(strim(line));
	kfree(line);
	return err ? : len;
}

static const struct proc_ops rules_ops = {
	.proc_open = open_rules,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
	.proc_write = write_rules,
};

int plait_status_start(void)
{
	directory = proc_mkdir("plait", NULL);
	if (directory && proc_create("rules", 0600, directory, &rules_ops) &&
	    proc_create_single("counters", 0444, directory, show_counters))
		return 0;
	plait_status_stop();
	return -ENOMEM;
}

void plait_status_stop(void)
{
	proc_remove(directory);
}
