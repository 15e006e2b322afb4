/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The common records of two ordered traces.
 *
 * E. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), in linear space. Traces consist of runs of records of one
 * function, most of which recur: whole runs are aligned first, then the differences record by record. The work is bounded: a part
 * that exceeds its share is split at the best place seen so far, and when the whole budget is spent the rest counts as different.
 * The result is then correct but not the shortest, and marked so.
 */
#ifndef KCOVDBG_SEQDIFF_H
#define KCOVDBG_SEQDIFF_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
struct kcovdbg_diff;

/*
 * Align two sequences of IDs. groups has for each ID below group_count the group whose IDs form runs; NULL aligns records only.
 * budget bounds the steps of the search. NULL when out of memory, when a sequence has 2^30 records or
 * more, or when an ID is 2^31 or more or has no group.
 */
struct kcovdbg_diff *kcovdbg_diff_new(const uint32_t *left, size_t left_count, const uint32_t *right, size_t right_count,
				      const uint32_t *groups, size_t group_count, uint64_t budget);
void kcovdbg_diff_free(struct kcovdbg_diff *diff);
/* The number of blocks of equal records. */
size_t kcovdbg_diff_count(const struct kcovdbg_diff *diff);
/* For each block, ascending: index on the left, index on the right, length. */
void kcovdbg_diff_blocks(const struct kcovdbg_diff *diff, uint32_t *blocks);
/* Whether the search was cut short. */
int kcovdbg_diff_is_coarse(const struct kcovdbg_diff *diff);
/* cdef end */

#endif
