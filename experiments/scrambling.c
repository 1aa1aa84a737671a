/*
 * The papers' two forms of their scrambling, in C as they describe them, and how long each takes for a message.
 *
 * Prints JSON: the milliseconds of a message of 1280 bytes, in the straightforward form and in the revised one, and their ratio.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#define BUFFER 64
#define MESSAGE 1280
#define MESSAGES 2000

static unsigned char buffer[BUFFER];
static unsigned int oldest;
static unsigned char running;

/* A byte is combined with the exclusive OR of all bytes of the buffer, into which it is shifted. */
static void straightforward(unsigned char *message)
{
	for (int i = 0; i < MESSAGE; i++) {
		unsigned char plain = message[i], all = 0;

		for (int k = 0; k < BUFFER; k++)
			all ^= buffer[k];
		message[i] = plain ^ all;
		for (int k = 0; k < BUFFER - 1; k++)
			buffer[k] = buffer[k + 1];
		buffer[BUFFER - 1] = plain;
	}
}

/* The buffer is a ring, and the exclusive OR of its bytes is kept up to date. */
static void revised(unsigned char *message)
{
	for (int i = 0; i < MESSAGE; i++) {
		unsigned char plain = message[i];

		message[i] = plain ^ running;
		running ^= buffer[oldest] ^ plain;
		buffer[oldest] = plain;
		oldest = (oldest + 1) % BUFFER;
	}
}

static double milliseconds(void (*scramble)(unsigned char *), unsigned char *digest)
{
	unsigned char message[MESSAGE];
	struct timespec began, ended;

	for (int i = 0; i < BUFFER; i++)
		buffer[i] = (unsigned char)(i * 7);
	oldest = 0;
	running = 0;
	for (int i = 0; i < BUFFER; i++)
		running ^= buffer[i];
	for (int i = 0; i < MESSAGE; i++)
		message[i] = (unsigned char)i;
	clock_gettime(CLOCK_MONOTONIC, &began);
	for (int i = 0; i < MESSAGES; i++)
		scramble(message);
	clock_gettime(CLOCK_MONOTONIC, &ended);
	memcpy(digest, message, MESSAGE);
	return ((ended.tv_sec - began.tv_sec) * 1e3 + (ended.tv_nsec - began.tv_nsec) / 1e6) / MESSAGES;
}

int main(void)
{
	unsigned char one[MESSAGE], other[MESSAGE];
	double slow = milliseconds(straightforward, one), fast = milliseconds(revised, other);

	if (memcmp(one, other, MESSAGE)) {
		fputs("the two forms differ\n", stderr);
		return 1;
	}
	printf("{\"straightforward_ms\": %g, \"revised_ms\": %g, \"ratio\": %g}\n", slow, fast, slow / fast);
	return 0;
}
