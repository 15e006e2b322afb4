// SPDX-License-Identifier: LGPL-2.1-or-later
#include "chains.h"
#include "table_rows.h"

static int is_before(const struct kcovdbg_points *one, const struct kcovdbg_points *other)
{
	return *one->pcs < *other->pcs || (*one->pcs == *other->pcs && one->kind < other->kind);
}

void kcovdbg_merge_points(struct kcovdbg_points *columns, size_t column_count, uint64_t *pcs, uint8_t *kinds)
{
	for (size_t row = 0;; row++) {
		struct kcovdbg_points *least = NULL;

		for (size_t i = 0; i < column_count; i++)
			if (columns[i].count && (!least || is_before(&columns[i], least)))
				least = &columns[i];
		if (!least)
			return;
		pcs[row] = *least->pcs++;
		kinds[row] = least->kind;
		least->count--;
	}
}

void kcovdbg_make_rows(const uint64_t *pcs, const uint8_t *kinds, const uint32_t *chains, size_t count, uint64_t base,
		       const uint32_t *chain_ends, size_t chain_count, int shift, uint32_t *offsets, uint64_t *rows,
		       uint32_t *buckets)
{
	size_t bucket = 0, i;

	for (i = 0; i < count; i++) {
		uint32_t chain = chains[i] < chain_count ? chains[i] : 0, start = chain ? chain_ends[chain - 1] : 0;
		uint32_t length = chain_count ? chain_ends[chain] - start : 0;

		if (length > KCOVDBG_CHAIN_MAX_LENGTH)
			length = KCOVDBG_CHAIN_MAX_LENGTH;
		offsets[i] = pcs[i] - base;
		rows[i] = (uint64_t)start << KCOVDBG_CHAIN_START_SHIFT | (uint64_t)length << KCOVDBG_CHAIN_LENGTH_SHIFT |
			  kinds[i];
		while (bucket <= offsets[i] >> shift)
			buckets[bucket++] = i;
	}
	buckets[bucket] = count;
}
