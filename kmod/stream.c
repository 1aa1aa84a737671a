// SPDX-License-Identifier: GPL-2.0
/*
 * Mode stream in the form without a handshake: AES-256 in counter mode, keyed by HKDF (RFC 5869, SHA-256) over both
 * MPTCP keys.
 *
 *	PRK                   = HKDF-Extract(salt = "plait stream keys 1", IKM = Ki || Kr)
 *	key(direction, epoch) = HKDF-Expand(PRK, info = direction || epoch, 32 bytes)
 *
 * Direction, epochs and counter are those of mode stream in docs/internals/protocol.md.
 *
 * Strength: an attacker who sees the handshake of the first subflow has both keys. One who sees only other subflows can
 * test guesses of each key against a hash of it, a token and data sequence numbers: two searches through 2^64 keys, not
 * one through 2^128. There is no integrity.
 */
#include <crypto/skcipher.h>
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>

#include "plait.h"

#define EPOCH_SHIFT 36
#define CIPHER_KEY 32

static const u8 salt[] = "plait stream keys 1";

/* 32 bytes are the first block of HKDF-Expand, whose counter is 1. */
struct expand_input {
	u8 direction;
	__be64 epoch;
	u8 counter;
} __packed;

static int enter_epoch(struct plait_keystream *keystream, u64 epoch)
{
	struct expand_input input = {
		.direction = keystream->direction,
		.epoch = cpu_to_be64(epoch),
		.counter = 1,
	};
	u8 key[CIPHER_KEY];
	int err;

	BUILD_BUG_ON(CIPHER_KEY != PLAIT_HASH_SIZE);
	err = plait_hmac_sha256(keystream->secret, sizeof(keystream->secret), (u8 *)&input,
				sizeof(input), key);
	if (!err)
		err = crypto_skcipher_setkey(keystream->cipher, key, sizeof(key));
	memzero_explicit(key, sizeof(key));
	if (!err)
		keystream->epoch = epoch;
	return err;
}

static int extract(struct plait_keystream *keystream, const struct plait_keys *keys)
{
	const u8 *initiator = keys->from_initiator ? keys->sender : keys->receiver;
	const u8 *responder = keys->from_initiator ? keys->receiver : keys->sender;
	u8 material[2 * PLAIT_KEY_SIZE];
	int err;

	memcpy(material, initiator, PLAIT_KEY_SIZE);
	memcpy(material + PLAIT_KEY_SIZE, responder, PLAIT_KEY_SIZE);
	err = plait_hmac_sha256(salt, sizeof(salt) - 1, material, sizeof(material), keystream->secret);
	memzero_explicit(material, sizeof(material));
	return err;
}

int plait_keystream_init(struct plait_keystream *keystream, const struct plait_keys *keys)
{
	int err;

	memset(keystream, 0, sizeof(*keystream));
	keystream->direction = keys->from_initiator ? 0 : 1;
	keystream->cipher = crypto_alloc_skcipher("ctr(aes)", 0, 0);
	if (IS_ERR(keystream->cipher)) {
		err = PTR_ERR(keystream->cipher);
		keystream->cipher = NULL;
		return err;
	}
	err = -ENOMEM;
	keystream->request = skcipher_request_alloc(keystream->cipher, GFP_KERNEL_ACCOUNT);
	if (keystream->request)
		err = extract(keystream, keys);
	if (!err)
		err = enter_epoch(keystream, 0);
	if (err)
		plait_keystream_destroy(keystream);
	return err;
}

void plait_keystream_destroy(struct plait_keystream *keystream)
{
	skcipher_request_free(keystream->request);
	crypto_free_skcipher(keystream->cipher);
	memzero_explicit(keystream, sizeof(*keystream));
}

static struct page *page_of(const void *address)
{
	return is_vmalloc_addr(address) ? vmalloc_to_page(address) : virt_to_page(address);
}

/* Whole blocks from @position on, within one page of each side. */
static int apply_within_page(struct plait_keystream *keystream, u64 position, u8 *from, u8 *to,
			     size_t len)
{
	struct skcipher_request *request = keystream->request;
	u64 block = (position & (BIT_ULL(EPOCH_SHIFT) - 1)) / PLAIT_CIPHER_BLOCK;
	struct scatterlist source, destination;
	u8 counter[PLAIT_CIPHER_BLOCK] = {};
	DECLARE_CRYPTO_WAIT(wait);

	put_unaligned_be64(block, counter + sizeof(u64));
	sg_init_table(&source, 1);
	sg_set_page(&source, page_of(from), len, offset_in_page(from));
	sg_init_table(&destination, 1);
	sg_set_page(&destination, page_of(to), len, offset_in_page(to));
	skcipher_request_set_callback(request, CRYPTO_TFM_REQ_MAY_SLEEP, crypto_req_done, &wait);
	skcipher_request_set_crypt(request, &source, &destination, len, counter);
	return crypto_wait_req(crypto_skcipher_encrypt(request), &wait);
}

int plait_keystream_apply(struct plait_keystream *keystream, u8 *from, u8 *to, size_t len)
{
	size_t lead = keystream->position % PLAIT_CIPHER_BLOCK;
	u64 position = keystream->position - lead;
	int err = 0;

	from -= lead;
	to -= lead;
	len += lead;
	while (len && !err) {
		u64 epoch = position >> EPOCH_SHIFT;
		u64 left = ((epoch + 1) << EPOCH_SHIFT) - position;
		size_t now = min3(len, PAGE_SIZE - offset_in_page(from),
				  PAGE_SIZE - offset_in_page(to));

		now = min_t(u64, now, left);
		if (epoch != keystream->epoch)
			err = enter_epoch(keystream, epoch);
		if (!err)
			err = apply_within_page(keystream, position, from, to, now);
		position += now;
		from += now;
		to += now;
		len -= now;
	}
	return err;
}
