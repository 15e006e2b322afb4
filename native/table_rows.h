/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The rows of a location table that is being built: a kernel has more than a million. */
#ifndef KCOVDBG_TABLE_ROWS_H
#define KCOVDBG_TABLE_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
/* Ascending PCs of one kind. */
struct kcovdbg_points {
	const uint64_t *pcs;
	size_t count;
	uint8_t kind;
};

/* Merge columns of points, which are empty then; of equal PCs the lower kind is first. */
void kcovdbg_merge_points(struct kcovdbg_points *columns, size_t column_count, uint64_t *pcs, uint8_t *kinds);
/*
 * Make what a table has of each PC, all of which are less than 4 GiB after base: the offset; and the word of its chain, which
 * chains.h describes. Bucket i gets the index of the first row whose offset, shifted right by shift, is i or more, and the last
 * one, which is beyond all offsets, the number of rows.
 */
void kcovdbg_make_rows(const uint64_t *pcs, const uint8_t *kinds, const uint32_t *chains, size_t count, uint64_t base,
		       const uint32_t *chain_ends, size_t chain_count, int shift, uint32_t *offsets, uint64_t *rows,
		       uint32_t *buckets);
/* cdef end */

#endif
