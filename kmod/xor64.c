// SPDX-License-Identifier: GPL-2.0
/*
 * xor64: every byte is sent XORed with the 64 before it (docs/internals/protocol.md). Obfuscation, not encryption.
 *
 * With b the plaintext and B the wire form, B[i] = b[i] ^ ... ^ b[i-64]. The difference of two neighbours leaves only
 * the ends:
 *
 *	B[i] ^ B[i-1] = b[i] ^ b[i-65]
 *
 * so eight bytes are decoded at once, and eight are encoded as a running sum within a word. Before the first byte of
 * a call stand b[-65] = 0 and B[-1] = the sum of the window: b[-65] is in that sum, too, so any value will do.
 */
#include <linux/string.h>

#include "plait.h"

#define WINDOW sizeof_field(struct plait_xor64, window)

/* Copies the window before the bytes; returns its sum. */
static u8 prepend_window(const struct plait_xor64 *state, u8 *bytes)
{
	u64 sum = 0;
	size_t i;

	memcpy(bytes - WINDOW, state->window, WINDOW);
	*(bytes - WINDOW - 1) = 0;
	for (i = 0; i < WINDOW; i += sizeof(sum))
		sum ^= get_unaligned_le64(state->window + i);
	sum ^= sum >> 32;
	sum ^= sum >> 16;
	sum ^= sum >> 8;
	return sum;
}

void plait_xor64_encode(const struct plait_xor64 *state, u8 *plain, u8 *wire, size_t len)
{
	u8 last = prepend_window(state, plain);
	const u8 *leaving = plain - WINDOW - 1;
	size_t i;

	for (i = 0; i + sizeof(u64) <= len; i += sizeof(u64)) {
		u64 sums = get_unaligned_le64(plain + i) ^ get_unaligned_le64(leaving + i);

		/* Every byte becomes the sum of itself and those before it in the word. */
		sums ^= sums << 8;
		sums ^= sums << 16;
		sums ^= sums << 32;
		sums ^= last * 0x0101010101010101ULL;
		put_unaligned_le64(sums, wire + i);
		last = sums >> 56;
	}
	for (; i < len; i++) {
		last ^= plain[i] ^ leaving[i];
		wire[i] = last;
	}
}

void plait_xor64_decode(const struct plait_xor64 *state, u8 *bytes, size_t len)
{
	u64 last = prepend_window(state, bytes);
	const u8 *leaving = bytes - WINDOW - 1;
	size_t i;

	for (i = 0; i + sizeof(u64) <= len; i += sizeof(u64)) {
		u64 wire = get_unaligned_le64(bytes + i);
		u64 plain = wire ^ (wire << 8 | last) ^ get_unaligned_le64(leaving + i);

		put_unaligned_le64(plain, bytes + i);
		last = wire >> 56;
	}
	for (; i < len; i++) {
		u8 wire = bytes[i];

		bytes[i] = wire ^ last ^ leaving[i];
		last = wire;
	}
}

/* The previous window is still before @plain, which matters if there are fewer bytes than it has. */
void plait_xor64_advance(struct plait_xor64 *state, const u8 *plain, size_t len)
{
	memcpy(state->window, plain + len - WINDOW, WINDOW);
}
