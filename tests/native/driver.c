// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Random work for the hot loops, to be compiled with sanitizers: results are checked against the plainest code there is.
 * Usage: driver SEED ROUNDS
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chains.h"
#include "pctext.h"
#include "seqdiff.h"

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			abort(); \
		} \
	} while (0)

static uint64_t state;

static uint64_t random_word(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static size_t below(size_t limit)
{
	return random_word() % limit;
}

static int compare_words(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

static uint64_t random_pc(uint64_t base, uint64_t size)
{
	switch (below(6)) {
	case 0:
		return random_word();
	case 1:
		return base - 2 + below(4);
	case 2:
		return base + size - 2 + below(4);
	default:
		return base + (size ? below(size) : 0);
	}
}

static void try_text(void)
{
	uint64_t base = random_word(), size = below(2) ? below(1 << 16) : below(200);
	struct kcovdbg_text *text = kcovdbg_text_new(base, size);
	int round;

	CHECK(text);
	for (round = 0; round < 4; round++) {
		size_t count = below(50) ? below(300) : (1 << 17) + below(100), distinct = 0, i;
		unsigned int word_size = below(2) ? 8 : 4;
		unsigned char *buffer = malloc(count * word_size + 1);
		/* Misaligned at times. */
		unsigned char *words = buffer + below(2);
		uint64_t *pcs = malloc((count + 1) * sizeof(*pcs)), *sorted = malloc((count + 1) * sizeof(*sorted));
		uint64_t *got, *counts;
		uint32_t *ids = malloc((count + 1) * sizeof(*ids));

		CHECK(buffer && pcs && sorted && ids);
		for (i = 0; i < count; i++) {
			uint64_t pc = random_pc(base, size);
			uint32_t half = pc;

			pcs[i] = word_size == 8 ? pc : half;
			/* The last word ends where its buffer does. */
			if (word_size == 8)
				memcpy(words + i * word_size, &pc, sizeof(pc));
			else
				memcpy(words + i * word_size, &half, sizeof(half));
		}
		memcpy(sorted, pcs, count * sizeof(*pcs));
		qsort(sorted, count, sizeof(*sorted), compare_words);
		for (i = 0; i < count; i++) {
			if (!i || sorted[i] != sorted[i - 1])
				sorted[distinct++] = sorted[i];
		}
		kcovdbg_text_reset(text);
		CHECK(!kcovdbg_text_add(text, words, count, word_size));
		CHECK(kcovdbg_text_number(text) == (ptrdiff_t)distinct);
		got = malloc((distinct + 1) * sizeof(*got));
		counts = calloc(distinct + 1, sizeof(*counts));
		CHECK(got && counts);
		kcovdbg_text_pcs(text, got);
		CHECK(!memcmp(got, sorted, distinct * sizeof(*got)));
		kcovdbg_text_ids(text, words, count, word_size, ids);
		kcovdbg_text_count(text, words, count, word_size, counts);
		for (i = 0; i < count; i++) {
			CHECK(ids[i] < distinct && got[ids[i]] == pcs[i]);
			counts[ids[i]]--;
		}
		for (i = 0; i < distinct; i++)
			CHECK(!counts[i]);
		free(buffer);
		free(pcs);
		free(sorted);
		free(ids);
		free(got);
		free(counts);
	}
	kcovdbg_text_free(text);
}

static size_t longest_common(const uint32_t *a, size_t n, const uint32_t *b, size_t m)
{
	size_t *row = calloc(m + 1, sizeof(*row)), i, j, result;

	CHECK(row);
	for (i = 0; i < n; i++) {
		size_t diagonal = 0;

		for (j = 0; j < m; j++) {
			size_t above = row[j + 1];

			if (a[i] == b[j])
				row[j + 1] = diagonal + 1;
			else if (row[j] > above)
				row[j + 1] = row[j];
			diagonal = above;
		}
	}
	result = row[m];
	free(row);
	return result;
}

static void try_diff(void)
{
	size_t n = below(60), m = below(60), symbols = 1 + below(12), i, common = 0;
	uint32_t *a, *b, groups[12], *blocks;
	uint64_t budget = below(3) ? 1ULL << 40 : below(3000);
	struct kcovdbg_diff *diff;
	bool grouped = below(2);

	if (!below(20)) {
		n = below(6000);
		m = below(6000);
		grouped = true;
	}
	a = malloc((n + !n) * sizeof(*a));
	b = malloc((m + !m) * sizeof(*b));
	CHECK(a && b);
	for (i = 0; i < 12; i++)
		groups[i] = below(4);
	for (i = 0; i < n; i++)
		a[i] = below(symbols);
	for (i = 0; i < m; i++)
		b[i] = i < n && below(8) ? a[i] : below(symbols);
	diff = kcovdbg_diff_new(a, n, b, m, grouped ? groups : NULL, grouped ? 12 : 0, budget);
	CHECK(diff);
	blocks = malloc((3 * kcovdbg_diff_count(diff) + 1) * sizeof(*blocks));
	CHECK(blocks);
	kcovdbg_diff_blocks(diff, blocks);
	for (i = 0; i < kcovdbg_diff_count(diff); i++) {
		uint32_t *block = blocks + 3 * i, *last = block - 3;

		CHECK(block[2]);
		CHECK(!i || (block[0] >= last[0] + last[2] && block[1] >= last[1] + last[2]));
		CHECK(block[0] + block[2] <= n && block[1] + block[2] <= m);
		CHECK(!memcmp(a + block[0], b + block[1], block[2] * sizeof(*a)));
		common += block[2];
	}
	if (!grouped && !kcovdbg_diff_is_coarse(diff))
		CHECK(common == longest_common(a, n, b, m));
	kcovdbg_diff_free(diff);
	free(blocks);
	free(a);
	free(b);
}

/* Numbers beyond the ends of columns are skipped; rows are found as by looking at each. */
static void try_chains(void)
{
	enum { FRAMES = 20, LINES = 9 };
	size_t frame_count = below(FRAMES), row_count = below(40), count = below(40), i, j, missing = 0, found;
	uint32_t *frames = malloc((frame_count + 1) * sizeof(*frames)), *offsets = malloc((row_count + 1) * sizeof(*offsets));
	uint64_t *rows = malloc((row_count + 1) * sizeof(*rows)), *pcs = malloc((count + 1) * sizeof(*pcs));
	uint64_t *chains = malloc((count + 1) * sizeof(*chains)), base = random_word();
	uint32_t *rest = malloc((count + 1) * sizeof(*rest)), *ends = malloc((count + 1) * sizeof(*ends));
	uint8_t *seen = calloc(row_count + 1, 1), *flags = calloc(count + 1, 1), of_frame[FRAMES] = { 1, 2, 4 };
	uint64_t hits[LINES] = { 0 }, sum = 0;
	uint32_t points[LINES] = { 0 }, covered[LINES] = { 0 };
	struct kcovdbg_chains in = { frames, frame_count };

	CHECK(frames && offsets && rows && pcs && chains && rest && ends && seen && flags);
	for (i = 0; i < frame_count; i++)
		frames[i] = below(8) ? below(FRAMES) : (uint32_t)random_word();
	for (i = 0; i < row_count; i++) {
		offsets[i] = (i ? offsets[i - 1] : 0) + 1 + below(3);
		rows[i] = (below(8) ? below(FRAMES + 2) : random_word()) << 16 | below(5) << 3 | below(6);
	}
	for (i = 0; i < count; i++)
		pcs[i] = base + below(100);
	qsort(pcs, count, sizeof(*pcs), compare_words);
	found = kcovdbg_chains_find(pcs, count, base, offsets, rows, row_count, chains, rest, seen);
	for (i = 0; i < count; i++) {
		for (j = 0; j < row_count && base + offsets[j] != pcs[i]; j++)
			;
		CHECK(j == row_count || seen[j]);
		CHECK(chains[i] == (j < row_count && rows[j] >> 3 & 0x1fff ? rows[j] : 0) || pcs[i] < base);
		if (!chains[i])
			CHECK(missing < found && rest[missing++] == i);
	}
	CHECK(missing == found);
	kcovdbg_chains_ends(in, chains, count, below(2), ends);
	kcovdbg_chains_flags(in, chains, count, of_frame, FRAMES, flags);
	CHECK(!kcovdbg_chains_add(in, chains, pcs, count, ends, count < FRAMES ? count : FRAMES, LINES, hits, points, covered));
	CHECK(!kcovdbg_chains_add(in, chains, NULL, count, ends, count < FRAMES ? count : FRAMES, LINES, hits, points,
				  covered));
	for (i = 0; i < LINES; i++)
		CHECK(points[i] == 2 * covered[i]);
	kcovdbg_gather(ends, count, frames, frame_count, 7, rest);
	if (count) {
		uint64_t *repeats = calloc(count, sizeof(*repeats)), *records = calloc(count, sizeof(*records));
		uint64_t *repeated = calloc(count, sizeof(*repeated));
		uint32_t *pcs_of = calloc(count, sizeof(*pcs_of)), *hottest = calloc(count, sizeof(*hottest));

		CHECK(repeats && records && repeated && pcs_of && hottest);
		for (i = 0; i < count; i++)
			ends[i] = below(count + 1);
		CHECK(!kcovdbg_count_repeats(ends, count, rest, count, repeats));
		kcovdbg_sum_groups(ends, pcs, repeats, count, count, records, pcs_of, hottest, repeated);
		for (i = 0; i < count; i++)
			sum += pcs_of[i];
		for (i = 0; i < count; i++)
			sum += ends[i] >= count;
		CHECK(sum == count);
		free(repeats);
		free(records);
		free(repeated);
		free(pcs_of);
		free(hottest);
	}
	free(frames);
	free(offsets);
	free(rows);
	free(pcs);
	free(chains);
	free(rest);
	free(ends);
	free(seen);
	free(flags);
}

int main(int argc, char **argv)
{
	long rounds;

	if (argc != 3)
		return 2;
	state = strtoull(argv[1], NULL, 0) * 2 + 1;
	for (rounds = strtol(argv[2], NULL, 0); rounds > 0; rounds--) {
		try_text();
		try_chains();
		try_diff();
		try_diff();
	}
	return 0;
}
