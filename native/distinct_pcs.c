// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "distinct_pcs.h"

#define NO_ID UINT32_MAX

struct kcovdbg_pcs {
	struct hash_key key;
	uint64_t base;
	uint64_t size;
	size_t words; /* Words of the bitmap. */
	uint64_t *bitmap;
	uint64_t *in_use; /* One bit per word of the bitmap. */
	uint32_t *rank;	  /* For each word of the bitmap that is not 0: the ID of its lowest PC. */

	uint64_t *outside;    /* Open addressing; a slot is free if its ID is 0. */
	uint32_t *outside_id; /* The ID + 1, once the PC has a number. */
	size_t outside_slots; /* A power of two, or 0. */
	size_t outside_count;

	uint64_t *pcs;
	size_t pcs_count;
	size_t pcs_room;
};

static inline unsigned int count_bits(uint64_t word)
{
#if defined(__POPCNT__) || !defined(__x86_64__)
	return __builtin_popcountll(word);
#else
	/* Not every x86-64 has this instruction. Without it, gcc calls a function that looks bytes up in a table. */
	word -= (word >> 1) & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + ((word >> 2) & 0x3333333333333333ULL);
	word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return (word * 0x0101010101010101ULL) >> 56;
#endif
}

static inline uint64_t load(const unsigned char *at, unsigned int word_size)
{
	uint64_t wide;
	uint32_t narrow;

	if (word_size == 8) {
		memcpy(&wide, at, sizeof(wide));
		return wide;
	}
	memcpy(&narrow, at, sizeof(narrow));
	return narrow;
}

/* The loops below are compiled once for each word size. */
#define FOR_EACH_PC(function, words, count, word_size, ...) \
	((word_size) == 8 ? function(words, count, 8, __VA_ARGS__) : function(words, count, 4, __VA_ARGS__))

struct kcovdbg_pcs *kcovdbg_pcs_new(uint64_t base, uint64_t size)
{
	struct kcovdbg_pcs *text = calloc(1, sizeof(*text));

	if (!text)
		return NULL;
	text->key = new_hash_key();
	text->base = base;
	/* The range ends at the last address: if it wrapped around, low PCs would get numbers after those of the text. */
	text->size = base && size > -base ? -base : size;
	text->words = size / 64 + 1;
	text->bitmap = calloc(text->words, sizeof(*text->bitmap));
	text->in_use = calloc(text->words / 64 + 1, sizeof(*text->in_use));
	text->rank = malloc(text->words * sizeof(*text->rank));
	if (!text->bitmap || !text->in_use || !text->rank) {
		kcovdbg_pcs_free(text);
		return NULL;
	}
	return text;
}

void kcovdbg_pcs_free(struct kcovdbg_pcs *text)
{
	if (!text)
		return;
	free(text->bitmap);
	free(text->in_use);
	free(text->rank);
	free(text->outside);
	free(text->outside_id);
	free(text->pcs);
	free(text);
}

void kcovdbg_pcs_reset(struct kcovdbg_pcs *text)
{
	size_t i;

	for (i = 0; i <= text->words / 64; i++) {
		uint64_t bits = text->in_use[i];

		for (; bits; bits &= bits - 1)
			text->bitmap[i * 64 + __builtin_ctzll(bits)] = 0;
		text->in_use[i] = 0;
	}
	if (text->outside_count)
		memset(text->outside_id, 0, text->outside_slots * sizeof(*text->outside_id));
	text->outside_count = 0;
	text->pcs_count = 0;
}

/* Return the slot of a PC, or the free slot in which it belongs. */
static inline size_t find_outside(const struct kcovdbg_pcs *text, uint64_t pc)
{
	size_t mask = text->outside_slots - 1;
	size_t slot = mix(text->key, text->key.start, pc) & mask;

	while (text->outside_id[slot] && text->outside[slot] != pc)
		slot = (slot + 1) & mask;
	return slot;
}

static int grow_outside(struct kcovdbg_pcs *text)
{
	struct kcovdbg_pcs old = *text;
	size_t slots = old.outside_slots ? old.outside_slots * 4 : 256;
	size_t i;

	text->outside = malloc(slots * sizeof(*text->outside));
	text->outside_id = calloc(slots, sizeof(*text->outside_id));
	if (!text->outside || !text->outside_id) {
		free(text->outside);
		free(text->outside_id);
		text->outside = old.outside;
		text->outside_id = old.outside_id;
		return -1;
	}
	text->outside_slots = slots;
	for (i = 0; i < old.outside_slots; i++) {
		if (old.outside_id[i]) {
			size_t slot = find_outside(text, old.outside[i]);

			text->outside[slot] = old.outside[i];
			text->outside_id[slot] = 1;
		}
	}
	free(old.outside);
	free(old.outside_id);
	return 0;
}

static int add_outside(struct kcovdbg_pcs *text, uint64_t pc)
{
	size_t slot;

	if (text->outside_count * 2 >= text->outside_slots && grow_outside(text))
		return -1;
	slot = find_outside(text, pc);
	if (!text->outside_id[slot]) {
		text->outside[slot] = pc;
		text->outside_id[slot] = 1;
		text->outside_count++;
	}
	return 0;
}

static inline __attribute__((always_inline)) int mark(const void *words, size_t count, unsigned int word_size,
						      struct kcovdbg_pcs *text)
{
	const unsigned char *at = words;
	uint64_t base = text->base, size = text->size;
	uint64_t *bitmap = text->bitmap, *in_use = text->in_use;
	size_t i;

	for (i = 0; i < count; i++, at += word_size) {
		uint64_t pc = load(at, word_size);
		uint64_t offset = pc - base, bits;

		if (__builtin_expect(offset >= size, 0)) {
			if (add_outside(text, pc))
				return -1;
			continue;
		}
		bits = bitmap[offset >> 6];
		bitmap[offset >> 6] = bits | 1ULL << (offset & 63);
		/*
		 * Write only for the first PC of a word of the bitmap: adjacent PCs share it, and each write would wait
		 * for the one before.
		 */
		if (__builtin_expect(!bits, 0))
			in_use[offset >> 12] |= 1ULL << (offset >> 6 & 63);
	}
	return 0;
}

int kcovdbg_pcs_add(struct kcovdbg_pcs *text, const void *words, size_t count, unsigned int word_size)
{
	text->pcs_count = 0;
	return FOR_EACH_PC(mark, words, count, word_size, text);
}

static int compare_pcs(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

static int need_room(struct kcovdbg_pcs *text, size_t more)
{
	size_t room = text->pcs_count + more;
	uint64_t *pcs;

	if (room <= text->pcs_room)
		return 0;
	room += room / 2 + 1024;
	pcs = realloc(text->pcs, room * sizeof(*pcs));
	if (!pcs)
		return -1;
	text->pcs = pcs;
	text->pcs_room = room;
	return 0;
}

static int number_text(struct kcovdbg_pcs *text)
{
	size_t i, j;

	for (i = 0; i <= text->words / 64; i++) {
		uint64_t used = text->in_use[i];

		for (; used; used &= used - 1) {
			uint64_t bits;
			uint64_t *pcs;

			j = i * 64 + __builtin_ctzll(used);
			if (need_room(text, 64))
				return -1;
			text->rank[j] = text->pcs_count;
			pcs = text->pcs + text->pcs_count;
			for (bits = text->bitmap[j]; bits; bits &= bits - 1)
				*pcs++ = text->base + j * 64 + __builtin_ctzll(bits);
			text->pcs_count = pcs - text->pcs;
		}
	}
	return 0;
}

ptrdiff_t kcovdbg_pcs_number(struct kcovdbg_pcs *text)
{
	uint64_t *outside = NULL;
	size_t i, n = 0, low = 0;

	text->pcs_count = 0;
	if (text->outside_count) {
		outside = malloc(text->outside_count * sizeof(*outside));
		if (!outside)
			return -1;
		for (i = 0; i < text->outside_slots; i++) {
			if (text->outside_id[i])
				outside[n++] = text->outside[i];
		}
		qsort(outside, n, sizeof(*outside), compare_pcs);
		while (low < n && outside[low] < text->base)
			low++;
		if (need_room(text, n)) {
			free(outside);
			return -1;
		}
		if (low)
			memcpy(text->pcs, outside, low * sizeof(*outside));
		text->pcs_count = low;
	}
	if (number_text(text) || need_room(text, n - low)) {
		free(outside);
		return -1;
	}
	for (i = low; i < n; i++)
		text->pcs[text->pcs_count++] = outside[i];
	for (i = 0; i < n; i++) {
		size_t id = i < low ? i : text->pcs_count - n + i;

		text->outside_id[find_outside(text, outside[i])] = id + 1;
	}
	free(outside);
	return text->pcs_count;
}

void kcovdbg_pcs_copy(const struct kcovdbg_pcs *text, uint64_t *pcs, size_t room)
{
	if (text->pcs_count && room)
		memcpy(pcs, text->pcs, (text->pcs_count < room ? text->pcs_count : room) * sizeof(*pcs));
}

static inline __attribute__((always_inline)) uint32_t find_id(const struct kcovdbg_pcs *text, uint64_t pc)
{
	uint64_t offset = pc - text->base;

	if (__builtin_expect(offset < text->size, 1)) {
		uint64_t bits = text->bitmap[offset >> 6];
		uint64_t bit = 1ULL << (offset & 63);

		if (__builtin_expect(!(bits & bit), 0))
			return NO_ID;
		return text->rank[offset >> 6] + count_bits(bits & (bit - 1));
	}
	/* A free slot has 0, which becomes NO_ID. */
	return text->outside_count ? text->outside_id[find_outside(text, pc)] - 1 : NO_ID;
}

static inline __attribute__((always_inline)) int put_ids(const void *words, size_t count, unsigned int word_size,
							 const struct kcovdbg_pcs *text, uint32_t *ids)
{
	const unsigned char *at = words;
	size_t i;

	if (!text->pcs_count) {
		memset(ids, 0xff, count * sizeof(*ids));
		return 0;
	}
	for (i = 0; i < count; i++, at += word_size)
		ids[i] = find_id(text, load(at, word_size));
	return 0;
}

void kcovdbg_pcs_ids(const struct kcovdbg_pcs *text, const void *words, size_t count, unsigned int word_size, uint32_t *ids)
{
	FOR_EACH_PC(put_ids, words, count, word_size, text, ids);
}

static inline __attribute__((always_inline)) int add_counts(const void *words, size_t count, unsigned int word_size,
							    const struct kcovdbg_pcs *text, uint64_t *counts, size_t room)
{
	const unsigned char *at = words;
	size_t i;

	for (i = 0; text->pcs_count && i < count; i++, at += word_size) {
		uint32_t id = find_id(text, load(at, word_size));

		if (id < room)
			counts[id]++;
	}
	return 0;
}

void kcovdbg_pcs_count(const struct kcovdbg_pcs *text, const void *words, size_t count, unsigned int word_size,
		       uint64_t *counts, size_t room)
{
	FOR_EACH_PC(add_counts, words, count, word_size, text, counts, room);
}
