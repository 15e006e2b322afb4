/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What two ordered traces have in common.
 *
 * E. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), in linear space. Traces consist of runs of records of
 * one function, most of which recur; whole runs are aligned first, and only what differs is aligned record by record. Work is
 * bounded: where a part needs more than its share, it is split at the best place seen so far, and when all is spent the rest
 * is called different. Then the result is right but not the shortest, and says so.
 */
#ifndef KCOVDBG_SEQDIFF_H
#define KCOVDBG_SEQDIFF_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
struct kcovdbg_diff;

/*
 * Align two sequences of ids. groups, of all ids below group_count, tells which ids make a run together; NULL aligns records
 * only. budget bounds the steps of the search. NULL without memory, or when a sequence has 2^30 records or more.
 */
struct kcovdbg_diff *kcovdbg_diff_new(const uint32_t *left, size_t left_count, const uint32_t *right, size_t right_count,
				      const uint32_t *groups, size_t group_count, uint64_t budget);
void kcovdbg_diff_free(struct kcovdbg_diff *diff);
/* How many blocks of equal records there are. */
size_t kcovdbg_diff_count(const struct kcovdbg_diff *diff);
/* Of each block, ascending: index on the left, index on the right, length. */
void kcovdbg_diff_blocks(const struct kcovdbg_diff *diff, uint32_t *blocks);
/* Whether the search was cut short. */
int kcovdbg_diff_is_coarse(const struct kcovdbg_diff *diff);
/* cdef end */

#endif
