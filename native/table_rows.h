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

/* Merge columns of points, which are empty then; of equal PCs the lower kind is first. room: points of all columns; -1 for another
   number. */
int kcovdbg_merge_points(struct kcovdbg_points *columns, size_t column_count, uint64_t *pcs, uint8_t *kinds, size_t room);
/*
 * Make what a table has of each PC, all of which are less than 4 GiB after base: the offset; and the word of its chain, which
 * chains.h describes. Bucket i gets the index of the first row whose offset, shifted right by shift, is i or more, and the last
 * one, which is beyond all offsets, the number of rows. -1 when PCs do not ascend or are beyond the buckets, or when there is no
 * such chain.
 */
int kcovdbg_make_rows(const uint64_t *pcs, const uint8_t *kinds, const uint32_t *chains, size_t count, uint64_t base,
		      const uint32_t *chain_ends, size_t chain_count, unsigned int shift, uint32_t *offsets, uint64_t *rows,
		      uint32_t *buckets, size_t bucket_count);

/* Put the values that have flags, each with a number added to it. Return how many these are. */
size_t kcovdbg_select32(const uint32_t *values, const uint8_t *flags, size_t count, uint32_t *selected);
size_t kcovdbg_select64(const uint64_t *values, const uint8_t *flags, size_t count, uint64_t added, uint64_t *selected);
/* Put the next number of one of two columns for each flag, which is 0 or 1. */
void kcovdbg_join32(const uint8_t *flags, size_t count, const uint32_t *unset, const uint32_t *set, uint32_t *joined);
/* Put the indexes of the values that equal a number; return how many these are. */
size_t kcovdbg_find_equal(const uint32_t *values, size_t count, uint32_t number, uint32_t *found);
/* Put the values that are not among others, both ascending; return how many these are. */
size_t kcovdbg_subtract(const uint64_t *values, size_t count, const uint64_t *others, size_t other_count, uint64_t *left);
/* Sort rows of three columns, and leave out those that there are more than once. Return how many are left; SIZE_MAX when out of memory. */
size_t kcovdbg_sort_rows(uint32_t *first, uint32_t *second, uint32_t *third, size_t count);
/* Put where runs of equal values begin, for which there is room for all values. Return how many these are. */
size_t kcovdbg_runs(const uint32_t *values, size_t count, uint32_t *starts);

/* The arrays of a location table, as kcovdbg/symbols/location_table.py describes them, and their items. */
struct kcovdbg_table {
	uint64_t base;
	unsigned int kind_count;
	const uint32_t *offset;
	const uint64_t *chain;
	size_t point_count;
	const uint32_t *bucket;
	size_t bucket_count;
	const uint32_t *chain_frame;
	size_t chain_frame_count;
	const uint32_t *frame_function, *frame_file, *frame_line;
	const uint16_t *frame_column;
	size_t frame_count;
	const uint8_t *string;
	size_t string_size;
	const uint32_t *range;
	size_t range_size;
	const uint32_t *function_start, *function_size, *function_name, *function_alias, *function_unit;
	size_t function_count;
	const uint32_t *definition_file, *definition_line, *definition_name;
	size_t definition_count;
	const uint32_t *part_start, *part_size, *part_function;
	size_t part_count;
	const uint64_t *block_end;
	size_t block_function_count;
	const uint8_t *block;
	size_t block_size;
	const uint32_t *block_file;
	size_t block_file_count;
};

/* Check every number that leads to an item of a column, or that is added to the base. -1 when one is out of range. */
int kcovdbg_check_table(const struct kcovdbg_table *table);
/* cdef end */

#endif
