/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Coverage of lines and functions, counted over the arrays of a location table.
 *
 * A PC has a chain of frames, in a word: from the lowest bit its kind (3 bits), the length (13), and where its frames begin in an
 * array of numbers of frames, innermost first. Numbers beyond an array's end, which only a damaged table has, are skipped.
 */
#ifndef KCOVDBG_CHAINS_H
#define KCOVDBG_CHAINS_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
/* Numbers of frames, which chains point into. */
struct kcovdbg_chains {
	const uint32_t *frames;
	size_t count;
};

/*
 * Find the chains of PCs in a table; both ascending. Of each row that is found, seen is set to 1. The indexes of PCs that are not
 * in the table, or have no frames there, are stored in rest; return how many. Their chains are 0.
 */
size_t kcovdbg_chains_find(const uint64_t *pcs, size_t count, uint64_t base, const uint32_t *offsets, const uint64_t *rows,
			   size_t row_count, uint64_t *chains, uint32_t *rest, uint8_t *seen);
/* The innermost or the outermost frame of each chain, UINT32_MAX for an empty one. */
void kcovdbg_chains_ends(struct kcovdbg_chains in, const uint64_t *chains, size_t count, int outermost, uint32_t *frames);
/* The flags of all frames of each chain, combined by "or". */
void kcovdbg_chains_flags(struct kcovdbg_chains in, const uint64_t *chains, size_t count, const uint8_t *flags,
			  size_t frame_count, uint8_t *combined);
/* The length of each chain, and the frames of all, up to room; return how many these are. */
size_t kcovdbg_chains_flatten(struct kcovdbg_chains in, const uint64_t *chains, size_t count, uint32_t *lengths,
			      uint32_t *frames, size_t room);
/*
 * Add chains to the lines of their frames, to each line once. line has the number of each frame's line, or UINT32_MAX; hits of a
 * chain are 0 where there is no array of them. -1 when out of memory.
 */
int kcovdbg_chains_add(struct kcovdbg_chains in, const uint64_t *chains, const uint64_t *chain_hits, size_t count,
		       const uint32_t *line, size_t frame_count, size_t line_count, uint64_t *hits, uint32_t *points,
		       uint32_t *covered);

/* values[index] for each index; missing for one beyond the end. */
void kcovdbg_gather(const uint32_t *indexes, size_t count, const uint32_t *values, size_t value_count, uint32_t missing,
		    uint32_t *gathered);
/* Return how many bytes hold each of some words of 4 or 8 bytes: 1, 2, 4 or 8. */
size_t kcovdbg_width(const void *words, size_t count, size_t size);
/* Put words of 4 or 8 bytes as words of so many bytes. */
void kcovdbg_narrow(const void *words, size_t count, size_t size, void *narrowed, size_t width);
/*
 * Count the records that repeat a PC of the same run, a run being consecutive records whose PCs have one group. ids and groups are
 * of PCs, of which there are pc_count. -1 when out of memory.
 */
int kcovdbg_count_repeats(const uint32_t *ids, size_t count, const uint32_t *groups, size_t pc_count, uint64_t *repeats);
/* Sum up groups: records, number of PCs, the index of the first of the PCs with the most records, and repeats. */
void kcovdbg_sum_groups(const uint32_t *groups, const uint64_t *counts, const uint64_t *repeats, size_t count,
			size_t group_count, uint64_t *records, uint32_t *points, uint32_t *hottest, uint64_t *repeated);
/* cdef end */

/* In the word of a chain: its kind, where the length and the beginning are, and the greatest length. */
#define KCOVDBG_CHAIN_KIND_MASK 7
#define KCOVDBG_CHAIN_LENGTH_SHIFT 3
#define KCOVDBG_CHAIN_START_SHIFT 16
#define KCOVDBG_CHAIN_MAX_LENGTH 0x1fff

#endif
