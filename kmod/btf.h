/* SPDX-License-Identifier: GPL-2.0 */
/* Offsets of structure members in the running kernel. */
#ifndef PLAIT_BTF_H
#define PLAIT_BTF_H

#include <linux/types.h>

struct btf_type;

struct plait_btf {
	void *file;
	/* By type id; id 0 is void. */
	const struct btf_type **types;
	u32 count;
	const char *strings;
	u32 strings_len;
};

int plait_btf_open(struct plait_btf *btf);
void plait_btf_close(struct plait_btf *btf);

/*
 * The offset in bytes, in structure @name, of the member at @path ("a.b": b of a), which must have @size bytes;
 * -ENOENT: there is no such member.
 */
int plait_btf_offset(const struct plait_btf *btf, const char *name, const char *path, size_t size);

#endif
