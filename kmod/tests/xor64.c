// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The module's xor64 in a program: against the definition and the protocol's example, in random cuts of which only a
 * part is taken; and what a byte costs, in ticks of the time stamp counter.
 *
 *	cc -O2 -mgeneral-regs-only -include kernel.h -o xor64 xor64.c ../xor64.c
 */
#include <stdio.h>
#include <stdlib.h>

#define TOTAL 100000
#define ROOM 65

static u8 text[TOTAL], expected[TOTAL];

/* B[i] = b[i] ^ b[i-1] ^ ... ^ b[i-64], with the window before b[0]. */
static void define(const struct plait_xor64 *seed)
{
	for (int i = 0; i < TOTAL; i++) {
		expected[i] = text[i];
		for (int back = 1; back <= 64; back++)
			expected[i] ^= i >= back ? text[i - back] : seed->window[64 + i - back];
	}
}

static void fail(const char *what, size_t where)
{
	fprintf(stderr, "FAILED: %s at %zu\n", what, where);
	exit(1);
}

static void example(void)
{
	static const u8 plain[] = "not every, not any";
	static const u8 known[] = {0x66, 0x09, 0x7d, 0x5d, 0x38, 0x4e, 0x2b, 0x59, 0x20,
				   0x0c, 0x2c, 0x42, 0x2d, 0x59, 0x79, 0x18, 0x76, 0x0f};
	struct plait_xor64 state = {};
	u8 buffer[ROOM + sizeof(plain)], wire[sizeof(known)];

	for (int i = 0; i < 8; i++)
		state.window[56 + i] = i + 1;
	memcpy(buffer + ROOM, plain, sizeof(plain));
	plait_xor64_encode(&state, buffer + ROOM, wire, sizeof(known));
	if (memcmp(wire, known, sizeof(known)))
		fail("the protocol's example", 0);
}

static void cuts(void)
{
	struct plait_xor64 seed, out, in;
	static u8 plain[ROOM + 4096], wire[4096], back[ROOM + 4096];
	size_t at, size, taken;

	for (int i = 0; i < 64; i++)
		seed.window[i] = rand();
	out = in = seed;
	define(&seed);
	for (at = 0; at < TOTAL; at += taken) {
		size = 1 + rand() % (rand() % 2 ? 20 : 4096);
		if (size > TOTAL - at)
			size = TOTAL - at;
		taken = 1 + rand() % size;
		memcpy(plain + ROOM, text + at, size);
		plait_xor64_encode(&out, plain + ROOM, wire, size);
		if (memcmp(wire, expected + at, size))
			fail("encoding", at);
		memcpy(back + ROOM, wire, size);
		plait_xor64_decode(&in, back + ROOM, size);
		if (memcmp(back + ROOM, text + at, size))
			fail("decoding", at);
		plait_xor64_advance(&out, plain + ROOM, taken);
		plait_xor64_advance(&in, back + ROOM, taken);
	}
}

static void cost(void)
{
	static u8 plain[ROOM + 16128], wire[16128];
	struct plait_xor64 state = {};
	u64 best_encode = ~0, best_decode = ~0;

	for (int round = 0; round < 2000; round++) {
		u64 start = __builtin_ia32_rdtsc(), middle;

		plait_xor64_encode(&state, plain + ROOM, wire, sizeof(wire));
		middle = __builtin_ia32_rdtsc();
		if (middle - start < best_encode)
			best_encode = middle - start;
		start = __builtin_ia32_rdtsc();
		plait_xor64_decode(&state, plain + ROOM, sizeof(wire));
		middle = __builtin_ia32_rdtsc();
		if (middle - start < best_decode)
			best_decode = middle - start;
	}
	printf("ticks per 1000 bytes: encode %zu, decode %zu\n", (size_t)(best_encode * 1000 / sizeof(wire)),
	       (size_t)(best_decode * 1000 / sizeof(wire)));
}

int main(void)
{
	for (int i = 0; i < TOTAL; i++)
		text[i] = rand();
	example();
	for (int round = 0; round < 20; round++)
		cuts();
	cost();
	return 0;
}
