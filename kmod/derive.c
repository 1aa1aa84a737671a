// SPDX-License-Identifier: GPL-2.0
/* HMAC-SHA256 (RFC 2104), used to derive all seeds and keys. */
#include <crypto/hash.h>
#include <linux/err.h>

#include "plait.h"

int plait_hmac_sha256(const u8 *key, size_t key_len, const u8 *message, size_t message_len,
		      u8 result[PLAIT_HASH_SIZE])
{
	struct crypto_shash *hmac = crypto_alloc_shash("hmac(sha256)", 0, 0);
	int err;

	if (IS_ERR(hmac))
		return PTR_ERR(hmac);
	err = crypto_shash_setkey(hmac, key, key_len);
	if (!err)
		err = crypto_shash_tfm_digest(hmac, message, message_len, result);
	crypto_free_shash(hmac);
	return err;
}
