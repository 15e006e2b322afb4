/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The distinct PCs of coverage buffers, by a bitmap over the kernel's text.
 *
 * A trace of a million words has some thousand PCs in a text of some MiB: a bitmap with one bit for each byte of text sorts and
 * removes duplicates in one pass. Coverage points can be 5 bytes apart, so no bit of a PC is dropped; PCs outside of the text are
 * in a hash table. A second bitmap has one bit for each word of the first, so that small traces do not scan the whole text.
 */
#ifndef KCOVDBG_PCTEXT_H
#define KCOVDBG_PCTEXT_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
struct kcovdbg_pcs;

/* size may be 0: then all PCs are outside of the text. NULL when out of memory. */
struct kcovdbg_pcs *kcovdbg_pcs_new(uint64_t base, uint64_t size);
void kcovdbg_pcs_free(struct kcovdbg_pcs *text);

/* Remove all PCs. */
void kcovdbg_pcs_reset(struct kcovdbg_pcs *text);
/* Add the PCs of a buffer: count words of word_size (4 or 8) bytes, which need not be aligned. What was numbered before is not any
   more. -1 when out of memory. */
int kcovdbg_pcs_add(struct kcovdbg_pcs *text, const void *words, size_t count, unsigned int word_size);
/* Number the PCs added since the reset in order of address. Return their count, or -1 when out of memory. */
ptrdiff_t kcovdbg_pcs_number(struct kcovdbg_pcs *text);
/* The numbered PCs, ascending, up to room. */
void kcovdbg_pcs_copy(const struct kcovdbg_pcs *text, uint64_t *pcs, size_t room);
/* The number of the PC in each word; UINT32_MAX for one without. */
void kcovdbg_pcs_ids(const struct kcovdbg_pcs *text, const void *words, size_t count, unsigned int word_size, uint32_t *ids);
/* Add the occurrences of each numbered PC to counts, of which there are room. */
void kcovdbg_pcs_count(const struct kcovdbg_pcs *text, const void *words, size_t count, unsigned int word_size,
		       uint64_t *counts, size_t room);
/* cdef end */

#endif
