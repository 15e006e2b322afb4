// SPDX-License-Identifier: LGPL-2.1-or-later
#include "table_rows.h"

void kcovdbg_merge_points(const struct kcovdbg_points *columns, size_t column_count, uint64_t *pcs, uint8_t *kinds)
{
	size_t next[8] = { 0 }, i, row;

	if (column_count > sizeof(next) / sizeof(*next))
		column_count = sizeof(next) / sizeof(*next);
	for (row = 0;; row++) {
		size_t least = column_count;

		for (i = 0; i < column_count; i++) {
			const struct kcovdbg_points *column = &columns[i];
			uint64_t pc;

			if (next[i] == column->count)
				continue;
			pc = column->pcs[next[i]];
			if (least == column_count || pc < columns[least].pcs[next[least]] ||
			    (pc == columns[least].pcs[next[least]] && column->kind < columns[least].kind))
				least = i;
		}
		if (least == column_count)
			return;
		pcs[row] = columns[least].pcs[next[least]++];
		kinds[row] = columns[least].kind;
	}
}

void kcovdbg_make_rows(const uint64_t *pcs, const uint8_t *kinds, const uint32_t *chains, size_t count, uint64_t base,
		       const uint32_t *chain_ends, size_t chain_count, uint32_t max_depth, int shift, uint32_t *offsets,
		       uint64_t *rows, uint32_t *buckets)
{
	size_t bucket = 0, i;

	for (i = 0; i < count; i++) {
		uint32_t chain = chains[i] < chain_count ? chains[i] : 0, start = chain ? chain_ends[chain - 1] : 0;
		uint32_t depth = chain_count ? chain_ends[chain] - start : 0;

		offsets[i] = pcs[i] - base;
		rows[i] = (uint64_t)start << 16 | (uint64_t)(depth < max_depth ? depth : max_depth) << 3 | kinds[i];
		while (bucket <= offsets[i] >> shift)
			buckets[bucket++] = i;
	}
	buckets[bucket] = count;
}
