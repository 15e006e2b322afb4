/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Hashes with a secret: whoever makes an input cannot choose what collides. */
#ifndef KCOVDBG_HASH_H
#define KCOVDBG_HASH_H

#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

struct hash_key {
	uint64_t start, factor;
};

static inline struct hash_key new_hash_key(void)
{
	struct hash_key key;
	struct timespec now;

	if (getrandom(&key, sizeof(key), GRND_NONBLOCK) != sizeof(key)) {
		/* Early at boot. Where things are in memory is no secret to rely on, but no input has it. */
		clock_gettime(CLOCK_MONOTONIC, &now);
		key.start = (uintptr_t)&key ^ (uint64_t)now.tv_nsec << 32;
		key.factor = (uintptr_t)new_hash_key * 0x9e3779b97f4a7c15ULL ^ now.tv_nsec;
	}
	key.factor |= 1;
	return key;
}

/*
 * Add a word to a hash that begins with the key's start. The products of words that ascend, as numbers of lines do, ascend by the same
 * difference, and with one key of thirty many of them have the same lowest bits: these take those of another product.
 */
static inline uint64_t mix(struct hash_key key, uint64_t hash, uint64_t word)
{
	unsigned __int128 product = (unsigned __int128)(hash ^ word) * key.factor;

	hash = (uint64_t)(product >> 64) ^ (uint64_t)product;
	hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32 ^ key.start;
}

static inline uint64_t hash_bytes(struct hash_key key, const void *data, size_t size)
{
	const unsigned char *at = data;
	uint64_t hash = mix(key, key.start, size), word;

	for (; size >= 8; size -= 8, at += 8) {
		memcpy(&word, at, 8);
		hash = mix(key, hash, word);
	}
	word = 0;
	if (size)
		memcpy(&word, at, size);
	return mix(key, hash, word);
}

#endif
