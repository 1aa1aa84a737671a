/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/* What xor64.c needs of the kernel and of plait.h, for a program: so the very code of the module can be tried in one. */
#ifndef PLAIT_H
#define PLAIT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint64_t u64;

#define sizeof_field(type, field) sizeof(((type *)0)->field)

struct plait_xor64 {
	u8 window[64];
};

void plait_xor64_encode(const struct plait_xor64 *state, u8 *plain, u8 *wire, size_t len);
void plait_xor64_decode(const struct plait_xor64 *state, u8 *bytes, size_t len);
void plait_xor64_advance(struct plait_xor64 *state, const u8 *plain, size_t len);

static inline u64 get_unaligned_le64(const void *bytes)
{
	u64 word;

	memcpy(&word, bytes, sizeof(word));
	return word;
}

static inline void put_unaligned_le64(u64 word, void *bytes)
{
	memcpy(bytes, &word, sizeof(word));
}

#endif
