// SPDX-License-Identifier: GPL-2.0
/* The transform of one direction, in any mode. Lengths never change. */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "plait.h"

/* Space before a bounce buffer's bytes: 65 earlier bytes for xor64, and alignment of the cipher's blocks. */
#define HEADROOM 128

int plait_bounce_get(struct plait_bounce *bounce, size_t size)
{
	/* Memory whose size is a power of two is aligned to it. */
	bounce->size = roundup_pow_of_two(HEADROOM + PLAIT_CIPHER_BLOCK + size);
	bounce->memory = kvmalloc(bounce->size, GFP_KERNEL_ACCOUNT);
	return bounce->memory ? 0 : -ENOMEM;
}

void plait_bounce_put(struct plait_bounce *bounce)
{
	kvfree_sensitive(bounce->memory, bounce->size);
	bounce->memory = NULL;
}

void plait_bounce_align(struct plait_bounce *bounce, const struct plait_direction *direction)
{
	bounce->bytes = bounce->memory + HEADROOM;
	if (direction->mode == PLAIT_MODE_STREAM_KEYS)
		bounce->bytes += direction->keystream.position % PLAIT_CIPHER_BLOCK;
}

/* The seed is the last thing before the stream; before it are zeros. */
static int init_xor64(struct plait_xor64 *state, u8 mode, const struct plait_keys *keys)
{
	u8 *end = state->window + sizeof(state->window);

	memset(state, 0, sizeof(*state));
	if (mode == PLAIT_MODE_XOR64_KEY) {
		memcpy(end - PLAIT_KEY_SIZE, keys->sender, PLAIT_KEY_SIZE);
		return 0;
	}
	return plait_hmac_sha256(keys->sender, PLAIT_KEY_SIZE, keys->receiver, PLAIT_KEY_SIZE,
				 end - PLAIT_HASH_SIZE);
}

int plait_direction_init(struct plait_direction *direction, u8 mode, const struct plait_keys *keys)
{
	int err;

	switch (mode) {
	case PLAIT_MODE_XOR64_KEY:
	case PLAIT_MODE_XOR64_HMAC:
		err = init_xor64(&direction->xor64, mode, keys);
		break;
	case PLAIT_MODE_STREAM_KEYS:
		err = plait_keystream_init(&direction->keystream, keys);
		break;
	default:
		err = -EOPNOTSUPP;
	}
	if (!err)
		direction->mode = mode;
	return err;
}

void plait_direction_destroy(struct plait_direction *direction)
{
	if (direction->mode == PLAIT_MODE_STREAM_KEYS)
		plait_keystream_destroy(&direction->keystream);
	else
		memzero_explicit(&direction->xor64, sizeof(direction->xor64));
	direction->mode = 0;
}

int plait_encode(struct plait_direction *direction, struct plait_bounce *plain,
		 struct plait_bounce *wire, size_t len)
{
	if (direction->mode == PLAIT_MODE_STREAM_KEYS)
		return plait_keystream_apply(&direction->keystream, plain->bytes, wire->bytes, len);
	plait_xor64_encode(&direction->xor64, plain->bytes, wire->bytes, len);
	return 0;
}

int plait_decode(struct plait_direction *direction, struct plait_bounce *bytes, size_t len)
{
	if (direction->mode == PLAIT_MODE_STREAM_KEYS)
		return plait_keystream_apply(&direction->keystream, bytes->bytes, bytes->bytes, len);
	plait_xor64_decode(&direction->xor64, bytes->bytes, len);
	return 0;
}

void plait_advance(struct plait_direction *direction, const struct plait_bounce *plain, size_t len)
{
	if (direction->mode == PLAIT_MODE_STREAM_KEYS)
		direction->keystream.position += len;
	else
		plait_xor64_advance(&direction->xor64, plain->bytes, len);
}
