// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Random work for the C code that reads what others wrote, to be compiled with sanitizers: results are checked against the plainest
 * code there is, and damaged input must not lead outside of what was given.
 * Usage: driver TARGET SEED SECONDS [FILE...]
 * The target "dwarf" takes files of sections, each with its length before it as in struct kcovdbg_sections. What is being read is in
 * the file "last", for a case that ends the process.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "block_states.h"
#include "blocks.h"
#include "calls.h"
#include "branches.h"
#include "chains.h"
#include "dwarf.h"
#include "given.h"
#include "distinct_pcs.h"
#include "seqdiff.h"
#include "source_lines.h"
#include "table_rows.h"
#include "x86_decoder.h"

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
	struct kcovdbg_pcs *text = kcovdbg_pcs_new(base, size);
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
		kcovdbg_pcs_reset(text);
		CHECK(!kcovdbg_pcs_add(text, words, count, word_size));
		CHECK(kcovdbg_pcs_number(text) == (ptrdiff_t)distinct);
		got = malloc((distinct + 1) * sizeof(*got));
		counts = calloc(distinct + 1, sizeof(*counts));
		CHECK(got && counts);
		kcovdbg_pcs_copy(text, got, distinct);
		CHECK(!memcmp(got, sorted, distinct * sizeof(*got)));
		kcovdbg_pcs_ids(text, words, count, word_size, ids);
		kcovdbg_pcs_count(text, words, count, word_size, counts, distinct);
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
	kcovdbg_pcs_free(text);
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
	uint32_t points[LINES] = { 0 }, covered[LINES] = { 0 }, file_ends[FRAMES];
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
		CHECK(points[i] == 2 * covered[i] && !hits[i] == !covered[i]);
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
	for (i = 0; i < count; i++) {
		pcs[i] = random_word() >> below(64);
		rest[i] = below(FRAMES + 2);
		ends[i] = below(4) ? below(5) : (uint32_t)random_word();
	}
	found = kcovdbg_width(pcs, count, sizeof(*pcs));
	kcovdbg_narrow(pcs, count, sizeof(*pcs), chains, found);
	for (i = 0; i < count; i++)
		CHECK(!memcmp((uint8_t *)chains + i * found, &pcs[i], found) && (found == 8 || !(pcs[i] >> 8 * found)));
	found = kcovdbg_number_lines(rest, ends, count, FRAMES, (uint32_t *)chains, file_ends, (uint32_t *)pcs);
	CHECK(file_ends[FRAMES - 1] == found);
	for (i = 0; i < count; i++) {
		uint32_t at = ((uint32_t *)pcs)[i], file = rest[i];

		if (file && file <= FRAMES && ends[i])
			CHECK(((uint32_t *)chains)[at] == ends[i] && at < file_ends[file - 1] &&
			      (file == 1 || at >= file_ends[file - 2]));
		else
			CHECK(at == UINT32_MAX);
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

/* A number for a column whose items should be below a limit: now and then it is not. */
static uint32_t hostile(size_t limit)
{
	switch (below(40)) {
	case 0:
		return limit;
	case 1:
		return UINT32_MAX - below(2);
	case 2:
		return random_word();
	default:
		return limit ? below(limit) : 0;
	}
}

static uint32_t *hostile_column(size_t count, size_t limit, bool must_ascend)
{
	uint32_t *column = malloc(count * sizeof(*column)), last = 0;
	size_t i;

	CHECK(column || !count);
	for (i = 0; i < count; i++) {
		last = must_ascend && below(50) ? last + below(limit / (count + 1) + 2) : hostile(limit);
		column[i] = last;
	}
	return column;
}

static char *strings(size_t *size)
{
	char *text = malloc(*size = below(30)), *at;

	CHECK(text || !*size);
	for (at = text; at < text + *size; at++)
		*at = below(4) ? 'a' + below(3) : 0;
	return text;
}

static void check_locations(const struct kcovdbg_locations *locations)
{
	struct kcovdbg_location_arrays arrays;
	size_t i, count = 0;

	kcovdbg_locations_arrays(locations, &arrays);
	for (i = 0; i < arrays.text_size; i++)
		count += !arrays.text[i];
	CHECK(!arrays.text_size || !arrays.text[arrays.text_size - 1]);
	for (i = 0; i < arrays.frame_count; i++)
		CHECK(arrays.frames[4 * i] <= count && arrays.frames[4 * i + 1] <= count);
	for (i = 0; i < arrays.chain_count; i++)
		CHECK(arrays.chain_ends[i] <= arrays.chain_frame_count &&
		      (!i || arrays.chain_ends[i - 1] <= arrays.chain_ends[i]));
	for (i = 0; i < arrays.chain_frame_count; i++)
		CHECK(arrays.chain_frames[i] < arrays.frame_count);
}

static void try_locations(void)
{
	struct kcovdbg_locations *locations = kcovdbg_locations_new();
	int round;

	CHECK(locations);
	for (round = 0; round < 4; round++) {
		struct kcovdbg_location_arrays more = { .frame_count = below(6), .chain_count = below(6) };
		size_t i, string_count = 0;
		uint32_t *frames, *ends, *numbers, *chains, common;
		int status;

		more.text = strings(&more.text_size);
		for (i = 0; i < more.text_size; i++)
			string_count += !more.text[i];
		more.chain_frame_count = below(12);
		more.frames = frames = hostile_column(4 * more.frame_count, string_count + 1, false);
		more.chain_ends = ends = hostile_column(more.chain_count, more.chain_frame_count + 1, true);
		more.chain_frames = numbers = hostile_column(more.chain_frame_count, more.frame_count, false);
		chains = malloc(more.chain_count * sizeof(*chains));
		CHECK(chains || !more.chain_count);
		status = kcovdbg_locations_add(locations, &more, below(2), chains);
		CHECK(status == 0 || status == -2);
		check_locations(locations);
		if (!status) {
			struct kcovdbg_location_arrays all;

			kcovdbg_locations_arrays(locations, &all);
			for (i = 0; i < more.chain_count; i++)
				CHECK(chains[i] < all.chain_count);
			CHECK(!kcovdbg_locations_common(locations, chains, more.chain_count, &common));
			check_locations(locations);
			if (more.chain_count) {
				chains[0] = all.chain_count + 2 + below(9);
				CHECK(kcovdbg_locations_common(locations, chains, more.chain_count, &common) == -2);
			}
		}
		free((char *)more.text);
		free(frames);
		free(ends);
		free(numbers);
		free(chains);
	}
	kcovdbg_locations_free(locations);
}

/* What is found does not depend on how much room there is at a time, or on where the search is cut in two. */
static void try_branches(void)
{
	static const struct kcovdbg_form forms[] = {
		{ 0xff, 0xe8, 1, 5, 0, 1, { { 8, 32, 0, 1 } } },
		{ 0xf0ff, 0x800f, 2, 6, 0, 1, { { 16, 32, 0, 1 } } },
		{ 0xf0, 0x70, 4, 2, 0, 1, { { 8, 8, 0, 1 } } },
		{ 0xfffff00000fff, 0x1400ff000ff, 2, 8, 4, 2, { { 12, 20, 12, 1 }, { 52, 12, 0, 1 } } },
		{ 0xffff, 0xd0ff, 0, 2, 0, 0, { { 0 } } },
		{ 0xff, 0xff, 8, 7, 0, 0, { { 0 } } },
		{ 0xff, 0x14, 8, 4, 0, 0, { { 0 } } },
	};
	struct kcovdbg_architecture architecture = {
		forms, sizeof(forms) / sizeof(*forms), 1 << below(3), below(2), below(2), 0
	};
	static const unsigned char likely[] = { 0xe8, 0xe9, 0x0f, 0x84, 0xeb, 0x74, 0xff, 0xd0,
						0xe0, 0x94, 0x14, 0xd6, 0x1f, 0,    1,	  0xff };
	enum { ROOM = 200 };
	size_t size = below(ROOM), i, stop = below(4) ? SIZE_MAX : below(size + 9), cut = below(size + 1) & -4;
	unsigned char *text = malloc(size);
	uint64_t address = below(8) ? random_word() : UINT64_MAX - below(300), targets[8];
	struct kcovdbg_search whole[2], halves[2];
	struct kcovdbg_targets *wanted;

	CHECK(text || !size);
	for (i = 0; i < size; i++)
		text[i] = below(3) ? likely[below(sizeof(likely))] : random_word();
	for (i = 0; i < 8; i++)
		targets[i] = below(200) ? address + below(2 * ROOM) - ROOM / 2 : random_word();
	wanted = kcovdbg_targets_new(targets, below(9));
	CHECK(wanted);
	for (i = 0; i < 2; i++) {
		whole[i] = (struct kcovdbg_search){ .kinds = below(16), .targets = below(4) ? wanted : NULL };
		halves[i] = whole[i];
	}
	CHECK(!kcovdbg_branches(&architecture, text, size, address, 0, stop, whole, 2));
	CHECK(!kcovdbg_branches(&architecture, text, size, address, 0, cut < stop ? cut : stop, halves, 2));
	CHECK(!kcovdbg_branches(&architecture, text, size, address, cut, stop, halves, 2));
	for (i = 0; i < 2; i++) {
		size_t bytes = whole[i].count * sizeof(*whole[i].backs);

		CHECK(whole[i].count <= size && whole[i].count == halves[i].count);
		CHECK(!bytes ||
		      (!memcmp(whole[i].backs, halves[i].backs, bytes) && !memcmp(whole[i].led, halves[i].led, bytes)));
	}
	kcovdbg_searches_free(whole, 2);
	kcovdbg_searches_free(halves, 2);
	kcovdbg_targets_free(wanted);
	free(text);
}

/* What is made from PCs that ascend is a table; damaged ones are refused, or lead nowhere else. */
static void try_rows(void)
{
	struct kcovdbg_points columns[3];
	struct kcovdbg_table table = { .base = below(2) ? random_word() : below(100), .kind_count = 6 };
	size_t count = 0, i, ends_count = 1 + below(6), at = 0;
	uint64_t *pcs, *given, *rows;
	uint32_t *chains, *ends, *offsets, *frames, *frame_strings, *functions, *ranges, last = 0;
	uint8_t *kinds;
	char *text;
	bool is_whole;
	int status;

	for (i = 0; i < 3; i++)
		count += columns[i].count = below(12);
	given = malloc(count * sizeof(*given));
	pcs = malloc(count * sizeof(*pcs));
	kinds = malloc(count);
	CHECK((given && pcs && kinds) || !count);
	for (i = 0; i < count; i++)
		given[i] = table.base + below(300);
	for (i = 0; i < 3; i++) {
		qsort(given + at, columns[i].count, sizeof(*given), compare_words);
		columns[i].pcs = given + at;
		columns[i].kind = i;
		at += columns[i].count;
	}
	CHECK(!kcovdbg_merge_points(columns, 3, pcs, kinds, count));
	qsort(given, count, sizeof(*given), compare_words);
	is_whole = !count || pcs[count - 1] >= pcs[0];
	if (is_whole)
		CHECK(!memcmp(given, pcs, count * sizeof(*pcs)));
	if (!below(4) && count)
		pcs[below(count)] = random_word();
	chains = hostile_column(count, ends_count, false);
	ends = hostile_column(ends_count, 8, true);
	table.bucket_count = 1 + below(8);
	table.bucket = malloc(table.bucket_count * sizeof(*table.bucket));
	offsets = malloc(count * sizeof(*offsets));
	rows = malloc(count * sizeof(*rows));
	CHECK(table.bucket && ((offsets && rows) || !count));
	status = kcovdbg_make_rows(pcs, kinds, chains, count, table.base, ends, ends_count, 6, offsets, rows,
				   (uint32_t *)table.bucket, table.bucket_count);
	CHECK(status == 0 || status == -1);
	table.offset = offsets;
	table.chain = rows;
	table.point_count = count;
	table.chain_frame_count = below(3) ? 8 : below(9);
	table.frame_count = below(5);
	table.function_count = below(5);
	table.range_size = 3 * below(3);
	table.string = (uint8_t *)(text = strings(&table.string_size));
	table.chain_frame = frames = hostile_column(table.chain_frame_count, table.frame_count, false);
	table.frame_function = table.frame_file = frame_strings = hostile_column(table.frame_count, 2, false);
	table.function_start = functions = hostile_column(table.function_count, 100, true);
	table.function_size = table.function_name = table.function_alias = table.function_unit = frame_strings;
	if (table.function_count > table.frame_count)
		table.function_count = table.frame_count;
	table.range = ranges = hostile_column(table.range_size, 2, false);
	if (!status && !kcovdbg_check_table(&table)) {
		size_t total = kcovdbg_chains_flatten((struct kcovdbg_chains){ frames, table.chain_frame_count }, rows, count,
						      chains, NULL, 0);

		for (i = 0; i < count; i++) {
			CHECK(table.base + offsets[i] == pcs[i] && (rows[i] & 7) == kinds[i]);
			last += chains[i];
			CHECK(chains[i] == (rows[i] >> 3 & 0x1fff));
		}
		CHECK(last == total);
		for (i = 0; i < table.chain_frame_count; i++)
			CHECK(frames[i] < table.frame_count);
	}
	free(given);
	free(pcs);
	free(kinds);
	free(chains);
	free(ends);
	free((uint32_t *)table.bucket);
	free(offsets);
	free(rows);
	free(text);
	free(frames);
	free(frame_strings);
	free(functions);
	free(ranges);
}

/* A copy that ends where its memory does. */
static struct kcovdbg_bytes take_section(const unsigned char **at, const unsigned char *end)
{
	uint32_t size = 0;
	void *copy;

	if (end - *at >= 4) {
		memcpy(&size, *at, sizeof(size));
		*at += sizeof(size);
	}
	size = size < end - *at ? size : end - *at;
	copy = malloc(size);
	CHECK(copy || !size);
	if (size)
		memcpy(copy, *at, size);
	*at += size;
	return (struct kcovdbg_bytes){ copy, size };
}

enum { SECTIONS = 9, ADDRESSES = 4096 };

enum { MAX_MEMBER_NAME = 4096 };

/* Look for structures of the first names that there are. */
static void check_structures(const struct kcovdbg_dwarf *dwarf, const struct kcovdbg_sections *sections)
{
	struct kcovdbg_member members[8];
	const char *at = sections->str.data, *end = at + sections->str.size;
	uint64_t addresses[8], size;
	size_t count, i, tries;

	for (tries = 0; tries < 8 && at < end && memchr(at, 0, end - at); tries++, at += strlen(at) + 1) {
		count = kcovdbg_dwarf_structure(dwarf, at, &size, members, 8);
		CHECK(count <= 8);
		for (i = 0; i < count; i++)
			CHECK(strlen(members[i].name) < MAX_MEMBER_NAME);
	}
	kcovdbg_dwarf_no_returns(dwarf, addresses, 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint64_t addresses[ADDRESSES], sorted[ADDRESSES];
	static uint32_t units[ADDRESSES], chains[ADDRESSES], added[ADDRESSES], used[ADDRESSES];
	static size_t ends[ADDRESSES];
	const uint8_t *at = data, *end = data + size;
	struct kcovdbg_sections sections = { .must_swap = 0 };
	struct kcovdbg_bytes *parts = (struct kcovdbg_bytes *)&sections;
	struct kcovdbg_dwarf *dwarf;
	struct kcovdbg_locations *locations = kcovdbg_locations_new(), *others = kcovdbg_locations_new();
	struct kcovdbg_locations *row_files = kcovdbg_locations_new();
	struct kcovdbg_contents contents = { 0 };
	struct kcovdbg_found_rows rows = { 0 };
	struct kcovdbg_location_arrays arrays;
	size_t count = 0, used_count = 0, total = 0, i, j, unit;
	uint64_t ranges[2 * 64];
	uint32_t common;
	size_t range_count;
	bool is_shared = false, everything = true;
	int status;

	if (at < end) {
		is_shared = *at & 2;
		everything = !(*at & 4);
		sections.must_swap = *at++ & 1;
	}
	for (i = 0; i < SECTIONS; i++)
		parts[i] = take_section(&at, end);
	/* The rest of each is of the file of shared entries. */
	sections.shared_info = is_shared ? sections.info.size / 2 : UINT64_MAX;
	sections.shared_abbrev = is_shared ? sections.abbrev.size / 2 : UINT64_MAX;
	sections.shared_line = is_shared ? sections.line.size / 2 : UINT64_MAX;
	sections.shared_str = is_shared ? sections.str.size / 2 : UINT64_MAX;
	dwarf = kcovdbg_dwarf_new(&sections);
	CHECK(dwarf && locations && others && row_files);
	for (unit = 0; unit < kcovdbg_dwarf_unit_count(dwarf); unit++) {
		const struct kcovdbg_unit *shown = &kcovdbg_dwarf_units(dwarf)[unit];

		CHECK((!shown->name || strlen(shown->name) < size) && (!shown->directory || strlen(shown->directory) < size));
		range_count = kcovdbg_dwarf_ranges(dwarf, unit, ranges, 64);
		CHECK(range_count <= 64);
		for (i = 0; i < range_count; i++)
			for (j = 0; j < 40 && count < ADDRESSES; j++)
				addresses[count++] = ranges[2 * i] + (ranges[2 * i + 1] - ranges[2 * i]) * j / 40;
	}
	qsort(addresses, count, sizeof(*addresses), compare_words);
	CHECK(!kcovdbg_dwarf_find_units(dwarf, addresses, count, units));
	for (unit = 0; unit < kcovdbg_dwarf_unit_count(dwarf) && used_count < ADDRESSES; unit++) {
		for (i = 0; i < count; i++)
			if (units[i] == unit)
				sorted[total++] = addresses[i];
		used[used_count] = unit;
		ends[used_count++] = total;
	}
	contents.locations = locations;
	if (everything)
		contents = (struct kcovdbg_contents){ locations, &rows, row_files, others };
	CHECK(kcovdbg_dwarf_read(dwarf, used, ends, used_count, sorted, total, &contents, chains) >= 0);
	check_locations(others);
	check_locations(row_files);
	kcovdbg_locations_arrays(row_files, &arrays);
	for (i = 0; i < rows.count; i++)
		CHECK(rows.files[i] == UINT32_MAX || rows.files[i] <= arrays.text_size);
	check_locations(locations);
	kcovdbg_locations_arrays(locations, &arrays);
	status = arrays.chain_count <= ADDRESSES ? kcovdbg_locations_add(others, &arrays, below(2), added) : 0;
	CHECK(!status);
	for (i = 0; i < total; i++)
		CHECK(chains[i] == UINT32_MAX || chains[i] < arrays.chain_count);
	for (i = 0; i + 3 <= total; i += 3)
		CHECK(kcovdbg_locations_common(locations, chains + i, 3, &common) >= -2);
	check_locations(locations);
	check_structures(dwarf, &sections);
	kcovdbg_dwarf_free(dwarf);
	kcovdbg_locations_free(locations);
	kcovdbg_locations_free(others);
	kcovdbg_locations_free(row_files);
	kcovdbg_rows_free(&rows);
	for (i = 0; i < SECTIONS; i++)
		free((void *)parts[i].data);
	return 0;
}

#ifndef LIBFUZZER
struct file {
	unsigned char *data;
	size_t size;
};

static struct file *files;
static size_t file_count;
static unsigned char *kept;

enum { KEPT = 4 << 20 };

static void read_file(const char *path)
{
	FILE *stream = fopen(path, "rb");
	struct file *file;

	files = realloc(files, (file_count + 1) * sizeof(*files));
	CHECK(stream && files);
	file = &files[file_count++];
	file->data = malloc(KEPT);
	CHECK(file->data);
	file->size = fread(file->data, 1, KEPT / 2, stream);
	CHECK(file->size && feof(stream));
	fclose(stream);
}

static void try_dwarf(void)
{
	static const uint64_t extremes[] = {
		0, 1, 0x7f, 0x80, 0xff, 0x7fffffff, 0xfffffff0, UINT32_MAX, INT64_MAX, UINT64_MAX
	};
	const struct file *file = &files[below(file_count)];
	unsigned char *data = kept + sizeof(size_t);
	size_t size = file->size, length, from, to;
	int changes = below(4) ? 1 + below(4) : below(60);

	memcpy(data, file->data, size);
	while (changes-- > 0) {
		to = below(size);
		length = 1 + below(below(4) ? 8 : 64);
		length = length < size - to ? length : size - to;
		from = below(size - length + 1);
		switch (below(6)) {
		case 0:
			data[to] ^= 1 << below(8);
			break;
		case 1:
			data[to] = random_word();
			break;
		case 2:
			memcpy(data + to, &extremes[below(10)], length < 8 ? length : 8);
			break;
		case 3:
			memmove(data + to, data + from, length);
			break;
		case 4:
			memmove(data + to, data + to + length, size - to - length);
			size -= length < size ? length : 0;
			break;
		default:
			if (size + length < KEPT / 2) {
				memmove(data + to + length, data + to, size - to);
				size += length;
			}
		}
	}
	memcpy(kept, &size, sizeof(size));
	LLVMFuzzerTestOneInput(data, size);
}

/* Random bytes, with many zeros and small numbers, as what is read of a process has. */
static void try_given(void (*try)(const uint8_t *data, size_t size))
{
	size_t size = 1 + below(below(2) ? 80 : 2000), i;
	uint8_t *data = malloc(size);

	CHECK(data);
	for (i = 0; i < size; i++)
		data[i] = below(3) ? below(16) : random_word();
	try(data, size);
	free(data);
}

static void try_follow_input(void)
{
	try_given(try_follow);
}

static void try_inject_input(void)
{
	try_given(try_inject);
}

/* Random bytes, whose end is the end of the memory that they are in. */
static void try_decoder(void)
{
	size_t size = 1 + below(below(2) ? 40 : 4000), count, i, at = 0;
	uint8_t *text = malloc(size), *lengths = malloc(size), *flows = malloc(size);
	uint32_t *offsets = malloc(size * sizeof(*offsets));
	int64_t *displacements = malloc(size * sizeof(*displacements));

	CHECK(text && lengths && flows && offsets && displacements);
	for (i = 0; i < size; i++)
		text[i] = below(4) ? random_word() : (uint64_t)"\x66\xf2\x0f\xc4\x62\x48\xff\xe8"[below(8)];
	count = kcovdbg_x86_decode_all(text, size, offsets, lengths, flows, displacements);
	CHECK(count && count <= size);
	for (i = 0; i < count; at += lengths[i++])
		CHECK(offsets[i] == at && lengths[i] >= 1 && lengths[i] <= 15 && flows[i] <= KCOVDBG_FLOW_BAD);
	CHECK(at == size);
	free(text);
	free(lengths);
	free(flows);
	free(offsets);
	free(displacements);
}

#define BASE 0x1000
#define PARTS 12
#define INLINED 20
#define FACTS 20

static int compare_halves(const void *left, const void *right)
{
	uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;

	return (a > b) - (a < b);
}

static void read_branches(const struct kcovdbg_states *states, size_t count)
{
	uint32_t *columns = malloc(3 * count * sizeof(*columns) + 1);
	uint8_t *found = malloc(count + 1);
	uint64_t *hits = malloc(2 * count * sizeof(*hits) + 1);
	size_t i;

	CHECK(columns && found && hits);
	kcovdbg_states_branches(states, columns, columns + count, columns + 2 * count, found, hits);
	for (i = 0; i < count; i++)
		CHECK(found[i] == KCOVDBG_BRANCH_EXECUTED ||
		      (found[i] <= KCOVDBG_BRANCH_EXECUTED && !hits[2 * i] && !hits[2 * i + 1]));
	free(columns);
	free(found);
	free(hits);
}

static void read_states(const struct kcovdbg_encoded *encoded, uint32_t end)
{
	uint32_t points[64], records[64], stack[4], positions[4], functions[4], listed[16], starts[8];
	uint64_t chains[64], counts[64];
	struct kcovdbg_trace trace = { points,	  chains,   0,	       1,	  records,
				       counts,	  0,	    below(64), stack,	  below(4),
				       positions, below(4), listed,    below(17), below(2) ? UINT64_MAX : below(end) };
	struct kcovdbg_state_totals totals;
	struct kcovdbg_function_blocks blocks;
	struct kcovdbg_states *states;
	uint32_t *files, *lines, entry_files[PARTS], entry_lines[PARTS];
	uint8_t *found, entry_states[PARTS];
	uint64_t *hits, entry_hits[PARTS];
	size_t i;

	for (i = 0; i < 64; i++) {
		points[i] = below(end + 64);
		chains[i] = below(8) ? 0 : random_word();
		counts[i] = below(5) ? below(4) : random_word();
	}
	qsort(points, 64, sizeof(*points), compare_halves);
	trace.point_count = below(65);
	for (i = 0; i < trace.point_count; i++)
		if (below(2))
			records[trace.record_count++] = points[i];
	for (i = 0; i < 4; i++) {
		stack[i] = below(end);
		positions[i] = below(end);
		functions[i] = below(PARTS + 1);
	}
	qsort(stack, 4, sizeof(*stack), compare_halves);
	qsort(positions, 4, sizeof(*positions), compare_halves);
	for (i = 0; i < 16; i++)
		listed[i] = below(end);
	qsort(listed, 16, sizeof(*listed), compare_halves);
	CHECK(kcovdbg_block_starts(encoded, starts, 8) != SIZE_MAX);
	states = below(2) ? kcovdbg_states_new(encoded, &trace, NULL, 0, 0)
			  : kcovdbg_states_new(encoded, &trace, functions, 1 + below(4), below(2));
	CHECK(states);
	kcovdbg_states_totals(states, &totals);
	files = malloc(totals.lines * sizeof(*files) + 1);
	lines = malloc(totals.lines * sizeof(*lines) + 1);
	hits = malloc(totals.lines * sizeof(*hits) + 1);
	found = malloc(totals.lines + 1);
	CHECK(files && lines && hits && found);
	kcovdbg_states_lines(states, files, lines, found, hits);
	for (i = 0; i < totals.lines; i++)
		CHECK(found[i] > KCOVDBG_LINE_NO_CODE && found[i] <= KCOVDBG_LINE_OUTSIDE && lines[i] <= KCOVDBG_MAX_LINE);
	kcovdbg_states_functions(states, entry_states, entry_hits, entry_files, entry_lines);
	for (i = 0; i < encoded->part_count; i++)
		CHECK(entry_states[i] <= KCOVDBG_FUNCTION_OUTSIDE && entry_lines[i] <= KCOVDBG_MAX_LINE);
	read_branches(states, totals.branches);
	CHECK(!kcovdbg_states_blocks(states, functions[0], &blocks));
	for (i = 0; i < blocks.edge_count; i++)
		CHECK(blocks.edges[i] < blocks.block_count);
	for (i = 0; i < blocks.block_count; i++)
		CHECK(blocks.states[i] <= KCOVDBG_STATE_STOPPED);
	free(files);
	free(lines);
	free(hits);
	free(found);
	kcovdbg_states_free(states);
}

static void check_calls(const struct kcovdbg_image *image)
{
	struct kcovdbg_calls *calls = kcovdbg_calls_new(image);
	size_t i, start = 0;

	CHECK(calls);
	for (i = 0; i < image->function_count; i++) {
		CHECK(calls->ends[i] >= start && calls->ends[i] <= calls->count);
		start = calls->ends[i];
	}
	CHECK(start == calls->count);
	for (i = 0; i < calls->count; i++)
		CHECK(calls->kinds[i] >= KCOVDBG_CALL_DIRECT && calls->kinds[i] <= KCOVDBG_CALL_IN_DATA);
	kcovdbg_calls_free(calls);
}

/* Blocks of random code with random tables, then their states, also of damaged ones. */
/* Code of arm64 with many jumps by tables, in which registers are set in the right order, or nearly. */
static void make_switches(uint8_t *text, size_t size)
{
	static const uint32_t words[] = { 0x90000001, 0x91000021, 0x38604820, 0x10000002, 0x8b208840, 0xd61f0000,
					  0x14000000, 0x54000000, 0xa9400400, 0xf8408c20, 0xd503201f, 0x94000000 };
	enum { SEQUENCE = 6, COUNT = sizeof(words) / sizeof(*words) };
	size_t at, next = 0;

	for (at = 0; at + sizeof(*words) <= size; at += sizeof(*words)) {
		uint32_t word = words[below(4) ? next++ % SEQUENCE : below(COUNT)];

		/* Displacements of adrp, adr and branches are small. */
		if (!below(3))
			word ^= below(16) << 5;
		if (!below(20))
			word ^= 1u << below(32);
		memcpy(text + at, &word, sizeof(word));
	}
}

static void try_blocks(void)
{
	static const struct kcovdbg_form forms[] = {
		{ 0xfc000000, 0x94000000, 1, 4, 0, 1, { { 0, 26, 2, 1 } } },
		{ 0xfc000000, 0x14000000, 2, 4, 0, 1, { { 0, 26, 2, 1 } } },
		{ 0xff000010, 0x54000000, 4, 4, 0, 1, { { 5, 19, 2, 1 } } },
		{ 0xfffffc1f, 0xd61f0000, 16, 4, 0, 0, { { 0 } } },
	};
	static const struct kcovdbg_architecture arm64 = { forms, sizeof(forms) / sizeof(*forms), 4, 0, 0, 1 };
	size_t size = 200 + below(3000), part_count = 1 + below(PARTS), i, at = 0;
	uint8_t *text = malloc(size), *stub = malloc(70), *data = malloc(67), *damaged, flags[PARTS];
	uint64_t starts[PARTS], pointers[4], places[4] = { 0 }, ends[PARTS], row_addresses[40], ordered_addresses[80];
	uint32_t row_files[40], row_lines[40], ordered_files[80], ordered_lines[80];
	uint32_t part_start[PARTS], part_size[PARTS], part_function[PARTS];
	struct kcovdbg_part parts[PARTS];
	struct kcovdbg_fact facts[FACTS];
	struct kcovdbg_called called[3] = { { BASE + 7, 1 + below(5) },
					    { BASE + 90, 1 + below(5) },
					    { BASE + 5000, 1 + below(5) } };
	struct kcovdbg_area areas[3] = { { BASE, text, size }, { BASE + 8000, stub, 70 }, { BASE + 9000, data, 67 } };
	struct kcovdbg_image image = {
		NULL,	&areas[0], 1,	  &areas[1],  1,	  &areas[2], 1,	    pointers, places, 4,
		starts, 0,	   parts, part_count, part_count, flags,     facts, FACTS,    called, 3
	};
	const uint32_t numbers[2] = { UINT32_MAX, 1 };
	struct kcovdbg_inlined found[INLINED], inlined[INLINED];
	struct kcovdbg_unit_rows rows[2] = { { row_addresses, row_files, row_lines, 30, numbers, 2, found, INLINED / 2 },
					     { row_addresses + 30, row_files + 30, row_lines + 30, 10, numbers, 2,
					       found + INLINED / 2, INLINED / 2 } };
	struct kcovdbg_rows ordered = { ordered_addresses, ordered_files, ordered_lines, 0, inlined, 0 };
	struct kcovdbg_bytes_out out = { 0 };
	struct kcovdbg_encoded encoded;
	struct kcovdbg_code *code;

	CHECK(text && stub && data);
	for (i = 0; i < size; i++)
		text[i] =
			below(3) ? "\x90\x90\x74\xeb\xe8\x00\x05\xc3\xcc\xff\x0f\x0b"[below(12)] & 0xff : random_word() & 0xff;
	if (below(3) == 0) {
		image.architecture = &arm64;
		make_switches(text, size);
	}
	for (i = 0; i < 70; i++)
		stub[i] = below(2) ? 0xeb : random_word();
	for (i = 0; i + 8 <= 67; i += 8) {
		uint64_t pointer = BASE + below(size);

		memcpy(data + i, &pointer, sizeof(pointer));
	}
	for (i = 0; i < part_count; i++) {
		at += below(20);
		starts[i] = parts[i].start = BASE + at;
		at += 1 + below(size / part_count > 22 ? size / part_count - 21 : 1);
		parts[i].end = BASE + at;
		parts[i].function = below(part_count);
		flags[i] = below(2) ? 0 : below(32);
		part_start[i] = parts[i].start - BASE;
		part_size[i] = parts[i].end - parts[i].start;
		part_function[i] = parts[i].function;
	}
	image.start_count = part_count;
	for (i = 0; i < FACTS; i++) {
		facts[i] = (struct kcovdbg_fact){ BASE + size * i / FACTS, BASE + below(size), 1 + below(6) };
		if (facts[i].kind == KCOVDBG_FACT_PATCHED)
			facts[i].value = facts[i].address + 1 + below(10);
	}
	for (i = 0; i < 4; i++)
		pointers[i] = BASE + below(size);
	for (i = 0; i < 40; i++) {
		row_addresses[i] = BASE + below(size);
		row_files[i] = below(6) ? below(3) : UINT32_MAX;
		row_lines[i] = below(50) | (below(2) ? KCOVDBG_ROW_STATEMENT : 0);
	}
	ordered.count = kcovdbg_rows_order(rows, 2, ordered_addresses, ordered_files, ordered_lines, below(2) ? 80 : below(81));
	CHECK(ordered.count <= 80);
	for (i = 1; i < ordered.count; i++)
		CHECK(ordered_addresses[i - 1] <= ordered_addresses[i]);
	for (i = 0; i < INLINED; i++) {
		uint64_t first = BASE + below(size);

		found[i] = (struct kcovdbg_inlined){ first, first + 1 + below(below(2) ? 20 : size), below(3), below(50), 0 };
	}
	ordered.inlined_count = kcovdbg_inlined_order(rows, 2, inlined);
	CHECK(ordered.inlined_count <= INLINED);
	for (i = 0; i < ordered.inlined_count; i++) {
		uint32_t outer = inlined[i].outer;

		CHECK(!i || inlined[i - 1].start <= inlined[i].start);
		CHECK(outer == UINT32_MAX || (outer < i && inlined[outer].end > inlined[i].start));
	}
	check_calls(&image);
	code = kcovdbg_code_new(&image);
	CHECK(code && !kcovdbg_code_encode(code, &ordered, 0, part_count, &out, ends));
	encoded = (struct kcovdbg_encoded){ out.data,	out.size,  ends,	  part_count,
					    part_start, part_size, part_function, part_count };
	read_states(&encoded, size);
	damaged = malloc(out.size + 1);
	CHECK(damaged);
	memcpy(damaged, out.data, out.size);
	encoded.code = damaged;
	for (i = below(6); out.size && i > 0; i--)
		damaged[below(out.size)] = random_word();
	if (!below(4))
		ends[below(part_count)] = below(2) ? random_word() : below(out.size + 1);
	read_states(&encoded, size);
	free(damaged);
	kcovdbg_bytes_free(&out);
	kcovdbg_code_free(code);
	free(text);
	free(stub);
	free(data);
}

static const struct {
	const char *name;
	void (*work)(void);
} targets[] = {
	{ "distinct_pcs", try_text },	{ "chains", try_chains },	{ "seqdiff", try_diff },
	{ "locations", try_locations }, { "branches", try_branches },	{ "table_rows", try_rows },
	{ "follow", try_follow_input }, { "inject", try_inject_input }, { "dwarf", try_dwarf },
	{ "x86_decoder", try_decoder }, { "blocks", try_blocks },
};

static int64_t milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	int64_t end;
	uint64_t seed;
	size_t i, rounds = 0;
	int last = open("last", O_RDWR | O_CREAT, 0600);

	if (argc < 4 || last < 0 || ftruncate(last, KEPT))
		return 2;
	kept = mmap(NULL, KEPT, PROT_READ | PROT_WRITE, MAP_SHARED, last, 0);
	CHECK(kept != MAP_FAILED);
	for (i = 4; i < (size_t)argc; i++)
		read_file(argv[i]);
	for (i = 0; i < sizeof(targets) / sizeof(*targets) && strcmp(argv[1], targets[i].name); i++)
		;
	if (i == sizeof(targets) / sizeof(*targets))
		return 2;
	end = milliseconds() + 1000 * strtol(argv[3], NULL, 0);
	for (seed = strtoull(argv[2], NULL, 0); milliseconds() < end; rounds++) {
		/* Of a processor: a round that takes longer hangs. */
		state = (seed + rounds) * 0x9e3779b97f4a7c15ULL | 1;
		random_word();
		alarm(30);
		targets[i].work();
	}
	printf("%s: %zu rounds from seed %s\n", argv[1], rounds, argv[2]);
	return 0;
}
#endif
