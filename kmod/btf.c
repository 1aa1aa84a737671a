// SPDX-License-Identifier: GPL-2.0
/*
 * Reads the kernel's type information (BTF) to find the offset of a structure's member. Every access is bounds-checked.
 */
#include <linux/btf.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <linux/overflow.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include "btf.h"

/* In sysfs. */
#define BTF_OF_KERNEL "kernel/btf/vmlinux"

/* Maximum nesting of anonymous structures. */
#define MAX_NESTED 4

/* Bytes that follow a type's header; -1: unknown kind. */
static long trailing_bytes(const struct btf_type *type)
{
	u32 count = BTF_INFO_VLEN(type->info);

	switch (BTF_INFO_KIND(type->info)) {
	case BTF_KIND_INT:
		return sizeof(u32);
	case BTF_KIND_ARRAY:
		return sizeof(struct btf_array);
	case BTF_KIND_STRUCT:
	case BTF_KIND_UNION:
		return count * sizeof(struct btf_member);
	case BTF_KIND_ENUM:
		return count * sizeof(struct btf_enum);
	case BTF_KIND_ENUM64:
		return count * sizeof(struct btf_enum64);
	case BTF_KIND_FUNC_PROTO:
		return count * sizeof(struct btf_param);
	case BTF_KIND_VAR:
		return sizeof(struct btf_var);
	case BTF_KIND_DATASEC:
		return count * sizeof(struct btf_var_secinfo);
	case BTF_KIND_DECL_TAG:
		return sizeof(struct btf_decl_tag);
	case BTF_KIND_PTR:
	case BTF_KIND_FWD:
	case BTF_KIND_TYPEDEF:
	case BTF_KIND_VOLATILE:
	case BTF_KIND_CONST:
	case BTF_KIND_RESTRICT:
	case BTF_KIND_FUNC:
	case BTF_KIND_FLOAT:
	case BTF_KIND_TYPE_TAG:
		return 0;
	default:
		return -1;
	}
}

/* The type at @at if it is complete; NULL at the end, or at a type that cannot be parsed. */
static const struct btf_type *type_at(const void *at, const void *end, const void **next)
{
	const struct btf_type *type = at;
	long more;

	if (end - at < (long)sizeof(*type))
		return NULL;
	more = trailing_bytes(type);
	if (more < 0 || end - at < (long)sizeof(*type) + more)
		return NULL;
	*next = at + sizeof(*type) + more;
	return type;
}

static int index_types(struct plait_btf *btf, const void *types, u32 len)
{
	const void *end = types + len, *at, *next;
	const struct btf_type *type;
	u32 count = 1;

	for (at = types; type_at(at, end, &next); at = next)
		count++;
	btf->types = vzalloc(array_size(count, sizeof(*btf->types)));
	if (!btf->types)
		return -ENOMEM;
	/* Id 0 is void, and not in the file. */
	btf->count = 1;
	for (at = types; (type = type_at(at, end, &next)); at = next)
		btf->types[btf->count++] = type;
	return 0;
}

static int read_all(struct file *file, void *bytes, loff_t size)
{
	loff_t position = 0;

	while (position < size) {
		ssize_t count = kernel_read(file, bytes + position, size - position, &position);

		if (count <= 0)
			return count ? : -EIO;
	}
	return 0;
}

/*
 * Opens a file in a mount of sysfs that nobody else has: whatever the mount namespace or root directory of the program
 * that loads the module shows at /sys, the file is the kernel's. The open file keeps the mount.
 */
static struct file *open_in_sysfs(const char *path)
{
	struct file_system_type *sysfs = get_fs_type("sysfs");
	struct vfsmount *mount;
	struct file *file;

	if (!sysfs)
		return ERR_PTR(-ENODEV);
	mount = kern_mount(sysfs);
	if (IS_ERR(mount))
		return ERR_CAST(mount);
	file = file_open_root_mnt(mount, path, O_RDONLY, 0);
	kern_unmount(mount);
	return file;
}

/*
 * Returns the size, or an error. Not kernel_read_file(), which asks security modules: it is for code and policies, of
 * kinds that they know.
 */
static ssize_t read_file(const char *path, void **bytes)
{
	struct file *file = open_in_sysfs(path);
	ssize_t size;
	int err;

	if (IS_ERR(file))
		return PTR_ERR(file);
	size = i_size_read(file_inode(file));
	*bytes = vmalloc(size);
	err = *bytes ? read_all(file, *bytes, size) : -ENOMEM;
	filp_close(file, NULL);
	if (!err)
		return size;
	vfree(*bytes);
	*bytes = NULL;
	return err;
}

int plait_btf_open(struct plait_btf *btf)
{
	const struct btf_header *header;
	ssize_t size;
	u64 begin;
	int err;

	memset(btf, 0, sizeof(*btf));
	size = read_file(BTF_OF_KERNEL, &btf->file);
	if (size < 0)
		return size;
	header = btf->file;
	err = -EINVAL;
	if (size < sizeof(*header) || header->magic != BTF_MAGIC || header->version != BTF_VERSION)
		goto close;
	begin = header->hdr_len;
	if (begin + header->type_off + header->type_len > size ||
	    begin + header->str_off + header->str_len > size || !header->str_len)
		goto close;
	btf->strings = btf->file + begin + header->str_off;
	btf->strings_len = header->str_len;
	if (btf->strings[btf->strings_len - 1])
		goto close;
	err = index_types(btf, btf->file + begin + header->type_off, header->type_len);
	if (!err)
		return 0;
close:
	plait_btf_close(btf);
	return err;
}

void plait_btf_close(struct plait_btf *btf)
{
	vfree(btf->types);
	vfree(btf->file);
}

static const char *name_at(const struct plait_btf *btf, u32 offset)
{
	return offset < btf->strings_len ? btf->strings + offset : "";
}

/* Resolves typedefs and qualifiers; NULL: void, or invalid. */
static const struct btf_type *resolve_type(const struct plait_btf *btf, u32 id)
{
	int limit = 16;

	while (id && id < btf->count && limit--) {
		const struct btf_type *type = btf->types[id];

		switch (BTF_INFO_KIND(type->info)) {
		case BTF_KIND_TYPEDEF:
		case BTF_KIND_VOLATILE:
		case BTF_KIND_CONST:
		case BTF_KIND_RESTRICT:
		case BTF_KIND_TYPE_TAG:
			id = type->type;
			break;
		default:
			return type;
		}
	}
	return NULL;
}

static bool is_structure(const struct btf_type *type)
{
	u32 kind = type ? BTF_INFO_KIND(type->info) : 0;

	return kind == BTF_KIND_STRUCT || kind == BTF_KIND_UNION;
}

/* The member's type; adds its offset in bits to @bits. Searches anonymous members, too. */
static const struct btf_type *member(const struct plait_btf *btf, const struct btf_type *type,
				     const char *name, size_t len, u32 *bits, int nested)
{
	const struct btf_member *at = (const void *)(type + 1);
	const struct btf_member *end = at + BTF_INFO_VLEN(type->info);

	for (; at < end; at++) {
		u32 offset = BTF_INFO_KFLAG(type->info) ? BTF_MEMBER_BIT_OFFSET(at->offset) : at->offset;
		const struct btf_type *found = resolve_type(btf, at->type);
		const char *its = name_at(btf, at->name_off);

		if (!*its && is_structure(found) && nested < MAX_NESTED)
			found = member(btf, found, name, len, &offset, nested + 1);
		else if (strlen(its) != len || strncmp(its, name, len))
			found = NULL;
		if (found) {
			*bits += offset;
			return found;
		}
	}
	return NULL;
}

static const struct btf_type *structure(const struct plait_btf *btf, const char *name)
{
	u32 id;

	for (id = 1; id < btf->count; id++) {
		const struct btf_type *type = btf->types[id];

		if (BTF_INFO_KIND(type->info) == BTF_KIND_STRUCT &&
		    !strcmp(name_at(btf, type->name_off), name))
			return type;
	}
	return NULL;
}

static size_t size_of(const struct btf_type *type)
{
	switch (BTF_INFO_KIND(type->info)) {
	case BTF_KIND_PTR:
		return sizeof(void *);
	case BTF_KIND_INT:
	case BTF_KIND_ENUM:
	case BTF_KIND_STRUCT:
	case BTF_KIND_UNION:
		return type->size;
	default:
		return 0;
	}
}

int plait_btf_offset(const struct plait_btf *btf, const char *name, const char *path, size_t size)
{
	const struct btf_type *outer = structure(btf, name), *type = outer;
	u32 bits = 0;

	while (is_structure(type)) {
		size_t len = strcspn(path, ".");

		type = member(btf, type, path, len, &bits, 0);
		path += len;
		if (!*path)
			break;
		path++;
	}
	if (!type || *path || bits % BITS_PER_BYTE || size_of(type) != size ||
	    bits / BITS_PER_BYTE + size > outer->size)
		return -ENOENT;
	return bits / BITS_PER_BYTE;
}
