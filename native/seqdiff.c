// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "seqdiff.h"

#define MAX_RECORDS (1UL << 30)
/*
 * A part that is not solved after so many rounds is split at the best place seen, and the next part gets half as many rounds.
 * Traces of one workload rarely need this; it ends the search early in traces that differ much.
 */
#define MAX_ROUNDS 2048
#define MIN_ROUNDS 256

struct kcovdbg_diff {
	uint32_t *blocks;
	size_t count;
	size_t room;
	uint32_t offset; /* Where the current part begins, on both sides. */
	uint64_t budget;
	int32_t max_rounds;
	bool coarse;
	bool failed;   /* Out of memory. */
	uint8_t *seen; /* Scratch memory, zero between uses. */
	size_t seen_size;
};

/* Of one alignment: the sequences and, for each diagonal (x - y), the position that each search has reached. */
struct search {
	struct kcovdbg_diff *diff;
	const uint32_t *a, *b;
	uint8_t *a_changed, *b_changed;
	int32_t *forward, *backward; /* Shifted, so that all diagonals are valid indexes. */
};

struct split {
	int32_t x, y;
};

/*
 * Find a place on a shortest path from (x_low, y_low) to (x_high, y_high), searching from both ends until the searches meet.
 * The corner itself is never returned: parts get smaller. Returns false when the budget is spent.
 */
static bool find_split(struct search *s, int32_t x_low, int32_t x_high, int32_t y_low, int32_t y_high, struct split *split)
{
	const uint32_t *a = s->a, *b = s->b;
	int32_t *fw = s->forward, *bw = s->backward;
	int32_t d_min = x_low - y_high, d_max = x_high - y_low;
	int32_t f_mid = x_low - y_low, b_mid = x_high - y_high;
	int32_t f_min = f_mid, f_max = f_mid, b_min = b_mid, b_max = b_mid;
	bool odd = (f_mid - b_mid) & 1;
	int32_t round, d;

	fw[f_mid] = x_low;
	bw[b_mid] = x_high;
	for (round = 1;; round++) {
		uint64_t cost = 0;

		/* One more difference from the top; without diagonals outside of the box. */
		if (f_min > d_min)
			fw[--f_min - 1] = -1;
		else
			f_min++;
		if (f_max < d_max)
			fw[++f_max + 1] = -1;
		else
			f_max--;
		for (d = f_max; d >= f_min; d -= 2) {
			int32_t below = fw[d - 1], above = fw[d + 1];
			int32_t x = below < above ? above : below + 1;
			int32_t y = x - d;
			int32_t start = x;

			while (x < x_high && y < y_high && a[x] == b[y]) {
				x++;
				y++;
			}
			cost += 4 + (x - start);
			fw[d] = x;
			if (odd && b_min <= d && d <= b_max && bw[d] <= x) {
				split->x = x;
				split->y = y;
				return true;
			}
		}

		/* Do the same from the bottom. */
		if (b_min > d_min)
			bw[--b_min - 1] = INT32_MAX;
		else
			b_min++;
		if (b_max < d_max)
			bw[++b_max + 1] = INT32_MAX;
		else
			b_max--;
		for (d = b_max; d >= b_min; d -= 2) {
			int32_t below = bw[d - 1], above = bw[d + 1];
			int32_t x = below < above ? below : above - 1;
			int32_t y = x - d;
			int32_t start = x;

			while (x_low < x && y_low < y && a[x - 1] == b[y - 1]) {
				x--;
				y--;
			}
			cost += 4 + (start - x);
			bw[d] = x;
			if (!odd && f_min <= d && d <= f_max && x <= fw[d]) {
				split->x = x;
				split->y = y;
				return true;
			}
		}

		if (s->diff->budget <= cost) {
			s->diff->budget = 0;
			return false;
		}
		s->diff->budget -= cost;

		if (round >= s->diff->max_rounds) {
			int64_t best_f = -1, best_b = INT64_MAX;
			struct split top = { 0, 0 }, bottom = { 0, 0 };

			s->diff->coarse = true;
			if (s->diff->max_rounds > MIN_ROUNDS)
				s->diff->max_rounds /= 2;
			for (d = f_max; d >= f_min; d -= 2) {
				int32_t x = fw[d] < x_high ? fw[d] : x_high;
				int32_t y = x - d;

				if (y > y_high) {
					y = y_high;
					x = y + d;
				}
				if ((int64_t)x + y > best_f) {
					best_f = (int64_t)x + y;
					top.x = x;
					top.y = y;
				}
			}
			for (d = b_max; d >= b_min; d -= 2) {
				int32_t x = bw[d] > x_low ? bw[d] : x_low;
				int32_t y = x - d;

				if (y < y_low) {
					y = y_low;
					x = y + d;
				}
				if ((int64_t)x + y < best_b) {
					best_b = (int64_t)x + y;
					bottom.x = x;
					bottom.y = y;
				}
			}
			/* Take the search that got farther from its end. */
			*split = best_f - ((int64_t)x_low + y_low) > ((int64_t)x_high + y_high) - best_b ? top : bottom;
			return true;
		}
	}
}

static void mark_all(struct search *s, int32_t x_low, int32_t x_high, int32_t y_low, int32_t y_high)
{
	memset(s->a_changed + x_low, 1, x_high - x_low);
	memset(s->b_changed + y_low, 1, y_high - y_low);
}

static void compare(struct search *s, int32_t x_low, int32_t x_high, int32_t y_low, int32_t y_high)
{
	struct split split;

	for (;;) {
		while (x_low < x_high && y_low < y_high && s->a[x_low] == s->b[y_low]) {
			x_low++;
			y_low++;
		}
		while (x_low < x_high && y_low < y_high && s->a[x_high - 1] == s->b[y_high - 1]) {
			x_high--;
			y_high--;
		}
		if (x_low == x_high || y_low == y_high) {
			mark_all(s, x_low, x_high, y_low, y_high);
			return;
		}
		if (!s->diff->budget || !find_split(s, x_low, x_high, y_low, y_high, &split)) {
			s->diff->coarse = true;
			mark_all(s, x_low, x_high, y_low, y_high);
			return;
		}
		/* Recursion for the smaller part only, which bounds the stack; the larger one here. */
		if ((int64_t)split.x + split.y - x_low - y_low < (int64_t)x_high + y_high - split.x - split.y) {
			compare(s, x_low, split.x, y_low, split.y);
			x_low = split.x;
			y_low = split.y;
		} else {
			compare(s, split.x, x_high, split.y, y_high);
			x_high = split.x;
			y_high = split.y;
		}
	}
}

static uint8_t *need_seen(struct kcovdbg_diff *diff, size_t id_count)
{
	if (!diff->seen || diff->seen_size < id_count) {
		free(diff->seen);
		diff->seen = calloc(id_count + 1, 1);
		diff->seen_size = diff->seen ? id_count : 0;
	}
	return diff->seen;
}

/*
 * Mark the differences of two sequences of IDs below id_count. IDs that the other sequence lacks are removed before the search:
 * they are differences in any case, and each would cost a round.
 */
static int mark_changed(struct kcovdbg_diff *diff, const uint32_t *left, size_t left_count, const uint32_t *right,
			size_t right_count, size_t id_count, uint8_t *left_changed, uint8_t *right_changed)
{
	uint8_t *seen = need_seen(diff, id_count);
	uint32_t *a = malloc((left_count + 1) * sizeof(*a)), *b = malloc((right_count + 1) * sizeof(*b));
	uint32_t *a_index = malloc((left_count + 1) * sizeof(*a_index));
	uint32_t *b_index = malloc((right_count + 1) * sizeof(*b_index));
	uint8_t *a_changed = calloc(left_count + 1, 1), *b_changed = calloc(right_count + 1, 1);
	size_t n = 0, m = 0, i;
	int32_t *diagonals = NULL;
	int result = -1;

	if (!seen || !a || !b || !a_index || !b_index || !a_changed || !b_changed)
		goto out;
	for (i = 0; i < left_count; i++)
		seen[left[i]] |= 1;
	for (i = 0; i < right_count; i++)
		seen[right[i]] |= 2;
	for (i = 0; i < left_count; i++) {
		left_changed[i] = seen[left[i]] != 3;
		if (!left_changed[i]) {
			a[n] = left[i];
			a_index[n++] = i;
		}
	}
	for (i = 0; i < right_count; i++) {
		right_changed[i] = seen[right[i]] != 3;
		if (!right_changed[i]) {
			b[m] = right[i];
			b_index[m++] = i;
		}
	}
	for (i = 0; i < left_count; i++)
		seen[left[i]] = 0;
	for (i = 0; i < right_count; i++)
		seen[right[i]] = 0;
	/* Diagonals from -m to n, and one more on each side. */
	diagonals = malloc(2 * (n + m + 3) * sizeof(*diagonals));
	if (diagonals) {
		struct search search = {
			.diff = diff,
			.a = a,
			.b = b,
			.a_changed = a_changed,
			.b_changed = b_changed,
			.forward = diagonals + m + 1,
			.backward = diagonals + (n + m + 3) + m + 1,
		};

		compare(&search, 0, n, 0, m);
		for (i = 0; i < n; i++)
			left_changed[a_index[i]] = a_changed[i];
		for (i = 0; i < m; i++)
			right_changed[b_index[i]] = b_changed[i];
		result = 0;
	}
out:
	free(a);
	free(b);
	free(a_index);
	free(b_index);
	free(a_changed);
	free(b_changed);
	free(diagonals);
	return result;
}

static void add_block(struct kcovdbg_diff *diff, uint32_t left, uint32_t right, uint32_t length)
{
	uint32_t *last = diff->count ? diff->blocks + 3 * (diff->count - 1) : NULL;

	if (!length || diff->failed)
		return;
	left += diff->offset;
	right += diff->offset;
	if (last && last[0] + last[2] == left && last[1] + last[2] == right) {
		last[2] += length;
		return;
	}
	if (diff->count == diff->room) {
		size_t room = diff->room ? diff->room * 2 : 256;
		uint32_t *blocks = realloc(diff->blocks, 3 * room * sizeof(*blocks));

		if (!blocks) {
			diff->failed = true;
			return;
		}
		diff->blocks = blocks;
		diff->room = room;
	}
	last = diff->blocks + 3 * diff->count++;
	last[0] = left;
	last[1] = right;
	last[2] = length;
}

static size_t count_ids(const uint32_t *left, size_t left_count, const uint32_t *right, size_t right_count)
{
	uint32_t most = 0;
	size_t i;

	for (i = 0; i < left_count; i++)
		most = left[i] > most ? left[i] : most;
	for (i = 0; i < right_count; i++)
		most = right[i] > most ? right[i] : most;
	return (size_t)most + 1;
}

/* Align two parts record by record and add their blocks. */
static void align_records(struct kcovdbg_diff *diff, const uint32_t *left, uint32_t left_at, uint32_t left_end,
			  const uint32_t *right, uint32_t right_at, uint32_t right_end, size_t id_count)
{
	size_t left_count = left_end - left_at, right_count = right_end - right_at;
	uint8_t *changed;
	size_t i = 0, j = 0;

	if (!left_count || !right_count || diff->failed)
		return;
	changed = malloc(left_count + right_count);
	if (!changed || mark_changed(diff, left + left_at, left_count, right + right_at, right_count, id_count, changed,
				     changed + left_count)) {
		diff->failed = true;
		free(changed);
		return;
	}
	while (i < left_count && j < right_count) {
		size_t start = i;

		while (i < left_count && changed[i])
			i++;
		while (j < right_count && changed[left_count + j])
			j++;
		for (start = i; i < left_count && j < right_count && !changed[i] && !changed[left_count + j]; i++)
			j++;
		add_block(diff, left_at + start, right_at + j - (i - start), i - start);
	}
	free(changed);
}

/* Runs of one group, each with an ID that equal runs share. */
struct runs {
	uint32_t *start; /* One more than there are runs. */
	uint32_t *id;
	size_t count;
};

static void free_runs(struct runs *runs)
{
	free(runs->start);
	free(runs->id);
}

static int find_runs(const uint32_t *ids, size_t count, const uint32_t *groups, struct runs *runs)
{
	uint32_t *smaller;
	size_t i;

	runs->count = 0;
	runs->id = NULL;
	runs->start = malloc((count + 1) * sizeof(*runs->start));
	if (!runs->start)
		return -1;
	for (i = 0; i < count; i++) {
		if (!i || groups[ids[i]] != groups[ids[i - 1]])
			runs->start[runs->count++] = i;
	}
	runs->start[runs->count] = count;
	smaller = realloc(runs->start, (runs->count + 1) * sizeof(*smaller));
	if (smaller)
		runs->start = smaller;
	runs->id = malloc((runs->count + 1) * sizeof(*runs->id));
	return runs->id ? 0 : -1;
}

struct run_table {
	struct hash_key key;
	const uint32_t **content;
	uint32_t *length;
	uint32_t *id;
	size_t slots;
	uint32_t count;
};

static void intern_runs(struct run_table *table, const uint32_t *ids, struct runs *runs)
{
	size_t i;

	for (i = 0; i < runs->count; i++) {
		const uint32_t *content = ids + runs->start[i];
		uint32_t length = runs->start[i + 1] - runs->start[i];
		size_t slot = hash_bytes(table->key, content, length * sizeof(*content)) & (table->slots - 1);

		while (table->content[slot] &&
		       (table->length[slot] != length || memcmp(table->content[slot], content, length * sizeof(*content))))
			slot = (slot + 1) & (table->slots - 1);
		if (!table->content[slot]) {
			table->content[slot] = content;
			table->length[slot] = length;
			table->id[slot] = table->count++;
		}
		runs->id[i] = table->id[slot];
	}
}

static int number_runs(const uint32_t *left, struct runs *left_runs, const uint32_t *right, struct runs *right_runs)
{
	struct run_table table = { .key = new_hash_key(), .slots = 256 };
	int result = -1;

	while (table.slots < 2 * (left_runs->count + right_runs->count))
		table.slots *= 2;
	table.content = calloc(table.slots, sizeof(*table.content));
	table.length = malloc(table.slots * sizeof(*table.length));
	table.id = malloc(table.slots * sizeof(*table.id));
	if (table.content && table.length && table.id) {
		intern_runs(&table, left, left_runs);
		intern_runs(&table, right, right_runs);
		result = table.count;
	}
	free(table.content);
	free(table.length);
	free(table.id);
	return result;
}

static int align_runs(struct kcovdbg_diff *diff, const uint32_t *left, size_t left_count, const uint32_t *right,
		      size_t right_count, const uint32_t *groups, size_t id_count)
{
	struct runs a = { NULL }, b = { NULL };
	uint8_t *changed = NULL;
	size_t i = 0, j = 0;
	int run_ids;
	int result = -1;

	if (find_runs(left, left_count, groups, &a) || find_runs(right, right_count, groups, &b))
		goto out;
	run_ids = number_runs(left, &a, right, &b);
	changed = malloc(a.count + b.count + 1);
	if (run_ids < 0 || !changed || mark_changed(diff, a.id, a.count, b.id, b.count, run_ids, changed, changed + a.count))
		goto out;
	while (i < a.count || j < b.count) {
		size_t i_start = i, j_start = j;

		while (i < a.count && changed[i])
			i++;
		while (j < b.count && changed[a.count + j])
			j++;
		align_records(diff, left, a.start[i_start], a.start[i], right, b.start[j_start], b.start[j], id_count);
		for (; i < a.count && j < b.count && !changed[i] && !changed[a.count + j]; i++, j++)
			add_block(diff, a.start[i], b.start[j], a.start[i + 1] - a.start[i]);
	}
	result = 0;
out:
	free_runs(&a);
	free_runs(&b);
	free(changed);
	return result;
}

struct kcovdbg_diff *kcovdbg_diff_new(const uint32_t *left, size_t left_count, const uint32_t *right, size_t right_count,
				      const uint32_t *groups, size_t group_count, uint64_t budget)
{
	struct kcovdbg_diff *diff;
	size_t id_count, head = 0, tail = 0;

	if (left_count >= MAX_RECORDS || right_count >= MAX_RECORDS)
		return NULL;
	diff = calloc(1, sizeof(*diff));
	if (!diff)
		return NULL;
	diff->budget = budget;
	diff->max_rounds = MAX_ROUNDS;
	id_count = count_ids(left, left_count, right, right_count);
	if (id_count > 2 * MAX_RECORDS || (groups && id_count > group_count)) {
		free(diff);
		return NULL;
	}
	while (head < left_count && head < right_count && left[head] == right[head])
		head++;
	while (tail < left_count - head && tail < right_count - head &&
	       left[left_count - 1 - tail] == right[right_count - 1 - tail])
		tail++;
	add_block(diff, 0, 0, head);
	diff->offset = head;
	if (!groups)
		align_records(diff, left + head, 0, left_count - head - tail, right + head, 0, right_count - head - tail,
			      id_count);
	else if (align_runs(diff, left + head, left_count - head - tail, right + head, right_count - head - tail, groups,
			    id_count))
		diff->failed = true;
	diff->offset = 0;
	add_block(diff, left_count - tail, right_count - tail, tail);
	if (diff->failed) {
		kcovdbg_diff_free(diff);
		return NULL;
	}
	return diff;
}

void kcovdbg_diff_free(struct kcovdbg_diff *diff)
{
	if (!diff)
		return;
	free(diff->blocks);
	free(diff->seen);
	free(diff);
}

size_t kcovdbg_diff_count(const struct kcovdbg_diff *diff)
{
	return diff->count;
}

void kcovdbg_diff_blocks(const struct kcovdbg_diff *diff, uint32_t *blocks)
{
	if (diff->count)
		memcpy(blocks, diff->blocks, 3 * diff->count * sizeof(*blocks));
}

int kcovdbg_diff_is_coarse(const struct kcovdbg_diff *diff)
{
	return diff->coarse;
}
