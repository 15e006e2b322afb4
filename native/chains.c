// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdlib.h>

#include "chains.h"

#define NO_ID UINT32_MAX

struct span {
	const uint32_t *begin;
	const uint32_t *end;
};

static inline size_t length_of(uint64_t chain)
{
	return chain >> KCOVDBG_CHAIN_LENGTH_SHIFT & KCOVDBG_CHAIN_MAX_LENGTH;
}

static inline struct span frames_of(struct kcovdbg_chains in, uint64_t chain)
{
	size_t first = chain >> KCOVDBG_CHAIN_START_SHIFT, length = length_of(chain);

	if (first > in.count)
		first = in.count;
	if (length > in.count - first)
		length = in.count - first;
	return (struct span){ in.frames + first, in.frames + first + length };
}

/*
 * Return the first row, from a given one on, whose offset is at least a given one. Steps double, as it is mostly the next row.
 */
static size_t find_row(const uint32_t *offsets, size_t row_count, size_t row, uint64_t offset)
{
	size_t step = 1, end;

	while (row < row_count && offsets[row] < offset && row_count - row > step && offsets[row + step] < offset) {
		row += step;
		step *= 2;
	}
	end = row_count - row > step ? row + step : row_count;
	while (row < end) {
		size_t middle = row + (end - row) / 2;

		if (offsets[middle] < offset)
			row = middle + 1;
		else
			end = middle;
	}
	return row;
}

size_t kcovdbg_chains_find(const uint64_t *pcs, size_t count, uint64_t base, const uint32_t *offsets, const uint64_t *rows,
			   size_t row_count, uint64_t *chains, uint32_t *rest, uint8_t *seen)
{
	size_t i, row = 0, missing = 0;

	for (i = 0; i < count; i++) {
		uint64_t offset = pcs[i] - base;

		chains[i] = 0;
		if (pcs[i] >= base && offset <= UINT32_MAX) {
			row = find_row(offsets, row_count, row, offset);
			if (row < row_count && offsets[row] == offset) {
				seen[row] = 1;
				if (length_of(rows[row]))
					chains[i] = rows[row];
			}
		}
		if (!chains[i])
			rest[missing++] = i;
	}
	return missing;
}

void kcovdbg_chains_ends(struct kcovdbg_chains in, const uint64_t *chains, size_t count, int outermost, uint32_t *frames)
{
	size_t i;

	for (i = 0; i < count; i++) {
		struct span span = frames_of(in, chains[i]);

		frames[i] = span.begin == span.end ? NO_ID : outermost ? span.end[-1] : *span.begin;
	}
}

void kcovdbg_chains_flags(struct kcovdbg_chains in, const uint64_t *chains, size_t count, const uint8_t *flags,
			  size_t frame_count, uint8_t *combined)
{
	size_t i;

	for (i = 0; i < count; i++) {
		struct span span = frames_of(in, chains[i]);
		const uint32_t *frame;

		combined[i] = 0;
		for (frame = span.begin; frame < span.end; frame++)
			combined[i] |= *frame < frame_count ? flags[*frame] : 0;
	}
}

size_t kcovdbg_chains_flatten(struct kcovdbg_chains in, const uint64_t *chains, size_t count, uint32_t *lengths,
			      uint32_t *frames, size_t room)
{
	size_t i, total = 0;

	for (i = 0; i < count; i++) {
		struct span span = frames_of(in, chains[i]);
		const uint32_t *frame;

		lengths[i] = span.end - span.begin;
		for (frame = span.begin; frame < span.end; frame++, total++)
			if (total < room)
				frames[total] = *frame;
	}
	return total;
}

int kcovdbg_chains_add(struct kcovdbg_chains in, const uint64_t *chains, const uint64_t *chain_hits, size_t count,
		       const uint32_t *line, size_t frame_count, size_t line_count, uint64_t *hits, uint32_t *points,
		       uint32_t *covered)
{
	/* The last chain, counted from 1, that was added to each line. */
	uint32_t *added = calloc(line_count + 1, sizeof(*added));
	size_t i;

	if (!added)
		return -1;
	for (i = 0; i < count; i++) {
		struct span span = frames_of(in, chains[i]);
		uint64_t more = chain_hits ? chain_hits[i] : 0;
		const uint32_t *frame;

		for (frame = span.begin; frame < span.end; frame++) {
			uint32_t at = *frame < frame_count ? line[*frame] : NO_ID;

			if (at >= line_count || added[at] == i + 1)
				continue;
			added[at] = i + 1;
			hits[at] += more;
			points[at]++;
			covered[at] += more > 0;
		}
	}
	free(added);
	return 0;
}

void kcovdbg_gather(const uint32_t *indexes, size_t count, const uint32_t *values, size_t value_count, uint32_t missing,
		    uint32_t *gathered)
{
	size_t i;

	for (i = 0; i < count; i++)
		gathered[i] = indexes[i] < value_count ? values[indexes[i]] : missing;
}

static uint64_t word_at(const void *words, size_t index, size_t size)
{
	return size == sizeof(uint64_t) ? ((const uint64_t *)words)[index] : ((const uint32_t *)words)[index];
}

size_t kcovdbg_width(const void *words, size_t count, size_t size)
{
	uint64_t bits = 0;
	size_t i;

	for (i = 0; i < count; i++)
		bits |= word_at(words, i, size);
	if (bits > UINT32_MAX)
		return 8;
	if (bits > UINT16_MAX)
		return 4;
	return bits > UINT8_MAX ? 2 : 1;
}

void kcovdbg_narrow(const void *words, size_t count, size_t size, void *narrowed, size_t width)
{
	size_t i;

	for (i = 0; i < count; i++) {
		uint64_t word = word_at(words, i, size);

		if (width == 8)
			((uint64_t *)narrowed)[i] = word;
		else if (width == 4)
			((uint32_t *)narrowed)[i] = word;
		else if (width == 2)
			((uint16_t *)narrowed)[i] = word;
		else
			((uint8_t *)narrowed)[i] = word;
	}
}

int kcovdbg_count_repeats(const uint32_t *ids, size_t count, const uint32_t *groups, size_t pc_count, uint64_t *repeats)
{
	/* The last run, counted from 1, that had each PC. */
	uint32_t *had = calloc(pc_count + 1, sizeof(*had));
	uint32_t run = 1, group = 0;
	size_t i;

	if (!had)
		return -1;
	for (i = 0; i < count; i++) {
		uint32_t id = ids[i];

		if (id >= pc_count)
			continue;
		if (groups[id] != group) {
			group = groups[id];
			run++;
		}
		repeats[id] += had[id] == run;
		had[id] = run;
	}
	free(had);
	return 0;
}

void kcovdbg_sum_groups(const uint32_t *groups, const uint64_t *counts, const uint64_t *repeats, size_t count,
			size_t group_count, uint64_t *records, uint32_t *points, uint32_t *hottest, uint64_t *repeated)
{
	size_t i;

	for (i = 0; i < count; i++) {
		uint32_t group = groups[i];

		if (group >= group_count)
			continue;
		if (!points[group]++ || counts[i] > counts[hottest[group]])
			hottest[group] = i;
		records[group] += counts[i];
		repeated[group] += repeats[i];
	}
}
