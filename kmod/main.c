// SPDX-License-Identifier: GPL-2.0
/*
 * plait.ko: the gateway's transforms in the kernel, for unmodified programs and without a proxy. A program's bytes are
 * copied, transformed and passed to MPTCP, and the other way round; they are never modified in place.
 *
 * Loading locates everything that is needed and fails with a reason if something is missing: the layout of a kernel's
 * structures is never guessed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>

#include "plait.h"

static int __init plait_init(void)
{
	int err;

	err = plait_layout_find();
	if (err)
		return err;
	err = plait_protos_find();
	if (err)
		return err;
	err = plait_rules_start();
	if (err)
		return err;
	err = plait_status_start();
	if (err) {
		plait_rules_stop();
		return err;
	}
	plait_protos_hook();
	return 0;
}

/* No hooked socket is left: each held a reference to the module. */
static void __exit plait_exit(void)
{
	plait_protos_unhook();
	plait_status_stop();
	plait_rules_stop();
}

module_init(plait_init);
module_exit(plait_exit);
MODULE_DESCRIPTION("Protects the byte streams of Multipath TCP connections");
MODULE_VERSION("0.1.0");
MODULE_LICENSE("GPL");
