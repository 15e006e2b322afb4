// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "chains.h"
#include "table_rows.h"

static int is_before(const struct kcovdbg_points *one, const struct kcovdbg_points *other)
{
	return *one->pcs < *other->pcs || (*one->pcs == *other->pcs && one->kind < other->kind);
}

int kcovdbg_merge_points(struct kcovdbg_points *columns, size_t column_count, uint64_t *pcs, uint8_t *kinds, size_t room)
{
	for (size_t row = 0;; row++) {
		struct kcovdbg_points *least = NULL;

		for (size_t i = 0; i < column_count; i++)
			if (columns[i].count && (!least || is_before(&columns[i], least)))
				least = &columns[i];
		if (!least)
			return row == room ? 0 : -1;
		if (row >= room)
			return -1;
		pcs[row] = *least->pcs++;
		kinds[row] = least->kind;
		least->count--;
	}
}

int kcovdbg_make_rows(const uint64_t *pcs, const uint8_t *kinds, const uint32_t *chains, size_t count, uint64_t base,
		      const uint32_t *chain_ends, size_t chain_count, unsigned int shift, uint32_t *offsets, uint64_t *rows,
		      uint32_t *buckets, size_t bucket_count)
{
	size_t bucket = 0, i;

	if (shift > 31 || !bucket_count)
		return -1;
	for (i = 0; i < count; i++) {
		uint32_t chain = chains[i], start, length;

		if (chain >= chain_count || pcs[i] < base || pcs[i] - base > UINT32_MAX || (i && pcs[i] < pcs[i - 1]) ||
		    (pcs[i] - base) >> shift >= bucket_count - 1)
			return -1;
		start = chain ? chain_ends[chain - 1] : 0;
		if (chain_ends[chain] < start)
			return -1;
		length = chain_ends[chain] - start;
		if (length > KCOVDBG_CHAIN_MAX_LENGTH)
			length = KCOVDBG_CHAIN_MAX_LENGTH;
		offsets[i] = pcs[i] - base;
		rows[i] = (uint64_t)start << KCOVDBG_CHAIN_START_SHIFT | (uint64_t)length << KCOVDBG_CHAIN_LENGTH_SHIFT |
			  kinds[i];
		while (bucket <= offsets[i] >> shift)
			buckets[bucket++] = i;
	}
	while (bucket < bucket_count)
		buckets[bucket++] = count;
	return 0;
}

size_t kcovdbg_select32(const uint32_t *values, const uint8_t *flags, size_t count, uint32_t *selected)
{
	size_t i, found = 0;

	for (i = 0; i < count; i++)
		if (flags[i])
			selected[found++] = values[i];
	return found;
}

size_t kcovdbg_select64(const uint64_t *values, const uint8_t *flags, size_t count, uint64_t added, uint64_t *selected)
{
	size_t i, found = 0;

	for (i = 0; i < count; i++)
		if (flags[i])
			selected[found++] = values[i] + added;
	return found;
}

void kcovdbg_join32(const uint8_t *flags, size_t count, const uint32_t *unset, const uint32_t *set, uint32_t *joined)
{
	size_t i;

	for (i = 0; i < count; i++)
		joined[i] = flags[i] ? *set++ : *unset++;
}

size_t kcovdbg_find_equal(const uint32_t *values, size_t count, uint32_t number, uint32_t *found)
{
	size_t i, total = 0;

	for (i = 0; i < count; i++)
		if (values[i] == number)
			found[total++] = i;
	return total;
}

size_t kcovdbg_subtract(const uint64_t *values, size_t count, const uint64_t *others, size_t other_count, uint64_t *left)
{
	size_t i, total = 0, at = 0;

	for (i = 0; i < count; i++) {
		while (at < other_count && others[at] < values[i])
			at++;
		if (at == other_count || others[at] != values[i])
			left[total++] = values[i];
	}
	return total;
}

size_t kcovdbg_sort_rows(uint32_t *first, uint32_t *second, uint32_t *third, size_t count)
{
	/* The first two columns, and the third one. */
	struct keyed *rows = malloc((count + 1) * sizeof(*rows));
	size_t i, left = 0;

	if (!rows)
		return SIZE_MAX;
	for (i = 0; i < count; i++)
		rows[i] = (struct keyed){ (uint64_t)first[i] << 32 | second[i], third[i] };
	if (!sort_keyed(rows, count)) {
		free(rows);
		return SIZE_MAX;
	}
	for (i = 0; i < count; i++) {
		if (i && rows[i - 1].value == rows[i].value && rows[i - 1].number == rows[i].number)
			continue;
		first[left] = rows[i].value >> 32;
		second[left] = rows[i].value;
		third[left++] = rows[i].number;
	}
	free(rows);
	return left;
}

size_t kcovdbg_runs(const uint32_t *values, size_t count, uint32_t *starts)
{
	size_t i, found = 0;

	for (i = 0; i < count; i++)
		if (!i || values[i] != values[i - 1])
			starts[found++] = i;
	return found;
}

static bool is_below(const uint32_t *values, size_t count, size_t limit)
{
	size_t i;

	for (i = 0; i < count && values[i] < limit; i++)
		;
	return i == count;
}

static bool is_ascending(const uint32_t *values, size_t count)
{
	size_t i;

	for (i = 1; i < count && values[i - 1] <= values[i]; i++)
		;
	return i >= count;
}

int kcovdbg_check_table(const struct kcovdbg_table *table)
{
	/* The largest offset: no address is beyond the last one. */
	uint64_t room = UINT64_MAX - table->base;
	const uint8_t *at = table->string, *end = at + table->string_size;
	/* The first string stands for none. Zeros separate the others. */
	size_t strings = 2, i;

	while (at < end && (at = memchr(at, 0, end - at))) {
		at++;
		strings++;
	}
	if (!table->bucket_count || table->bucket[table->bucket_count - 1] != table->point_count ||
	    !is_ascending(table->bucket, table->bucket_count) || !is_ascending(table->offset, table->point_count) ||
	    (table->point_count && table->offset[table->point_count - 1] > room))
		return -1;
	for (i = 0; i < table->point_count; i++) {
		uint64_t chain = table->chain[i], start = chain >> KCOVDBG_CHAIN_START_SHIFT;

		if ((chain & KCOVDBG_CHAIN_KIND_MASK) >= table->kind_count || start > table->chain_frame_count ||
		    (chain >> KCOVDBG_CHAIN_LENGTH_SHIFT & KCOVDBG_CHAIN_MAX_LENGTH) > table->chain_frame_count - start)
			return -1;
	}
	for (i = 0; i < table->function_count; i++)
		if ((uint64_t)table->function_start[i] + table->function_size[i] > room)
			return -1;
	for (i = 0; i + 3 <= table->range_size; i += 3)
		if (table->range[i] > table->range[i + 1] || table->range[i + 1] > room || table->range[i + 2] >= strings)
			return -1;
	if (i < table->range_size || !is_below(table->chain_frame, table->chain_frame_count, table->frame_count) ||
	    !is_below(table->frame_function, table->frame_count, strings) ||
	    !is_below(table->frame_file, table->frame_count, strings) ||
	    !is_ascending(table->function_start, table->function_count) ||
	    !is_below(table->function_name, table->function_count, strings) ||
	    !is_below(table->function_alias, table->function_count, strings) ||
	    !is_below(table->function_unit, table->function_count, strings) ||
	    !is_below(table->definition_file, table->definition_count, strings) ||
	    !is_below(table->definition_name, table->definition_count, strings) ||
	    !is_ascending(table->part_start, table->part_count) ||
	    !is_below(table->part_function, table->part_count, table->block_function_count) ||
	    !is_below(table->block_file, table->block_file_count, strings))
		return -1;
	for (i = 0; i < table->part_count; i++)
		if ((uint64_t)table->part_start[i] + table->part_size[i] > room)
			return -1;
	return 0;
}
