/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The distinct PCs of coverage buffers, by a bitmap over the kernel's text.
 *
 * A trace of a million words holds some thousand PCs of a text of some MiB: one bit per byte of text sorts and removes
 * duplicates in one pass. No bit of a PC is dropped (two coverage points can lie 5 bytes apart); PCs outside the text go to a
 * hash table. A second bitmap has one bit per word of the first, so that small traces don't pay for the whole text.
 */
#ifndef KCOVDBG_PCTEXT_H
#define KCOVDBG_PCTEXT_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
struct kcovdbg_text;

/* How the words of a buffer read. */
struct kcovdbg_words {
	const void *words;
	size_t count;
	size_t stride;		/* Bytes from one word to the next. */
	uint64_t or_bits;	/* Set in each word: the half that a 32-bit buffer implies, the bits that a record type took. */
	uint8_t word_size;	/* 4 or 8. */
	uint8_t swap;		/* The other byte order than this machine's. */
};

/* size may be 0: then all PCs are outside. NULL without memory. */
struct kcovdbg_text *kcovdbg_text_new(uint64_t base, uint64_t size);
void kcovdbg_text_free(struct kcovdbg_text *text);

/* Forget all PCs. */
void kcovdbg_text_reset(struct kcovdbg_text *text);
/* Add the PCs of a buffer. -1 without memory. */
int kcovdbg_text_add(struct kcovdbg_text *text, const struct kcovdbg_words *words);
/* Number the PCs that were added since the reset, by address. Their count, or -1 without memory. */
ptrdiff_t kcovdbg_text_number(struct kcovdbg_text *text);
/* The numbered PCs, ascending. */
void kcovdbg_text_pcs(const struct kcovdbg_text *text, uint64_t *pcs);
/* The number of each word's PC; UINT32_MAX where it was never added. */
void kcovdbg_text_ids(const struct kcovdbg_text *text, const struct kcovdbg_words *words, uint32_t *ids);
/* Add how often each numbered PC occurs. */
void kcovdbg_text_count(const struct kcovdbg_text *text, const struct kcovdbg_words *words, uint64_t *counts);

/*
 * The place of each of some ascending PCs among the ascending known ones; UINT32_MAX where it isn't among them.
 * Returns how many aren't.
 */
size_t kcovdbg_ordinals(const uint64_t *pcs, size_t count, const uint64_t *known, size_t known_count, uint32_t *ordinals);
/* cdef end */

#endif
