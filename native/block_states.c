// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <string.h>

#include "array.h"
#include "block_states.h"
#include "chains.h"

#define NO_RECORDS UINT64_MAX
#define NO_PLACE UINT64_MAX
#define NONE UINT32_MAX
/* Limit for rounds of the search for detours: removing some makes detours of others, but rarely in compilers' code. */
#define MOST_LOOKS 8
/* Limit for the search of rule 6 in a function: steps along edges. */
#define MOST_STEPS (1 << 18)
/* No kernel has more files or lines. */
#define MAX_FILES (1 << 20)

/* What the blocks of a line are, as far as they were seen. */
enum {
	SEEN_EXECUTED = 1,
	SEEN_NOT_EXECUTED = 2,
	SEEN_UNKNOWN = 4,
	SEEN_VOID = 8,
	SEEN_OUTSIDE = 16, /* Some are in functions without points. */
	SEEN_CODE = SEEN_EXECUTED | SEEN_NOT_EXECUTED | SEEN_UNKNOWN | SEEN_VOID | SEEN_OUTSIDE,
	SEEN_BEGINNING = 32,	   /* A statement of it begins in code that was executed, */
	SEEN_OTHER_BEGINNING = 64, /* or in code that was not. */
};

/* What the blocks say that have code of a line, and how many records they have at most. */
struct seen {
	uint64_t hits;
	uint8_t flags;
};

struct line {
	struct seen own, called; /* Of its own code, and of what was inlined at it. */
};

struct file {
	struct line *lines;
	size_t room;
};

/* What is known of the function of a part. */
struct entry {
	uint64_t hits;
	uint32_t file, line;
	uint8_t state;
};

/* A block with two edges. */
struct branch {
	uint64_t hits[2];
	uint32_t function, file, line;
	uint8_t state;
};

/* Columns of blocks, which grow together. */
struct function {
	uint32_t flags;
	bool is_contradicted;
	bool has_flows, leaves; /* Whether rule 5 was applied, and whether each block that was executed was left. */
	size_t block_count, block_room;
	uint32_t *starts, *sizes, *edge_ends, *line_ends, *from_ends;
	uint8_t *block_flags, *states, *is_queued, *reached;
	uint64_t *records;
	uint32_t *
		stops; /* How often the task is at the end of each block: so much more often it entered the block than it left it. */
	uint32_t *live_in, *live_out, *queue;
	size_t queue_count;
	uint32_t *edges, *from; /* Successors, predecessors. */
	uint64_t *flows;	/* How often each edge was taken. */
	uint32_t *flow_of;	/* The edge from each predecessor. */
	/* Detours: where each leads and comes from, NONE for other blocks. Edges that lead from one block to another, with and without
	   detours, are a group, which is named by the first of them. */
	uint32_t *onward, *origin, *groups, *arrivals;
	uint32_t *last_groups, *last_origins; /* Of each block: the group that leads there from the origin looked at last. */
	uint8_t *is_shared;		      /* Whether several edges of the origin are in the group. */
	uint64_t *group_flows;
	size_t edge_count, edge_room;
	uint32_t *line_files, *lines, *line_offsets;
	size_t line_count, line_room;
	/* The lines that code of each block was inlined at. */
	uint32_t *call_ends, *call_files, *calls, *call_offsets;
	size_t call_count, call_room;
};

/* The line read last, and that of the file before that. */
struct last_lines {
	uint32_t file, other_file;
	int64_t line, other_line;
};

struct kcovdbg_states {
	const struct kcovdbg_encoded *encoded;
	const struct kcovdbg_trace *trace;
	uint32_t *part_ends, *parts; /* Where the parts of each function end, and the parts. */
	struct function function;
	struct last_lines last_line, last_call; /* Of the function that is being read. */
	struct file *files;
	size_t file_room;
	struct entry *entries; /* One for each part. */
	struct branch *branches;
	size_t branch_room;
	struct kcovdbg_state_totals totals;
	uint8_t *is_wanted; /* The functions whose lines are wanted; NULL if all are. */
	bool is_other;	    /* The function that is being read is not wanted. */
	bool has_ended;	    /* The task ended: functions are not returned to. */
	bool is_full;	    /* Out of memory. */
};

static size_t lower_bound(const uint32_t *items, size_t count, uint64_t wanted)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (items[middle] < wanted)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool has_offset(const uint32_t *items, size_t count, uint64_t wanted)
{
	size_t i = lower_bound(items, count, wanted);

	return i < count && items[i] == wanted;
}

/* Reading; what is damaged makes is_bad true, and reads as 0. */
struct cursor {
	const uint8_t *at, *end;
	bool is_bad;
};

static uint64_t get(struct cursor *cursor)
{
	uint64_t number = 0;
	unsigned int shift;

	for (shift = 0; cursor->at < cursor->end && shift < 64; shift += 7) {
		uint8_t byte = *cursor->at++;

		number |= (uint64_t)(byte & 0x7f) << shift;
		if (byte < 0x80)
			return number;
	}
	cursor->is_bad = true;
	cursor->at = cursor->end;
	return 0;
}

static int64_t unzigzag(uint64_t number)
{
	return (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
}

/* Make room in columns that grow together, by the sizes of their items. */
static bool grow_columns(void *const *columns, const uint8_t *sizes, size_t count, size_t *room, size_t wanted)
{
	size_t i, grown = *room;

	if (wanted <= *room)
		return true;
	for (i = 0; i < count; i++) {
		grown = *room;
		if (!grow(columns[i], &grown, wanted, sizes[i]))
			return false;
	}
	*room = grown;
	return true;
}

static bool grow_blocks(struct function *f, size_t wanted)
{
	void *columns[] = { &f->starts,	     &f->sizes,	      &f->edge_ends,	&f->line_ends, &f->from_ends,
			    &f->block_flags, &f->states,      &f->is_queued,	&f->reached,   &f->records,
			    &f->live_in,     &f->live_out,    &f->queue,	&f->stops,     &f->onward,
			    &f->origin,	     &f->last_groups, &f->last_origins, &f->call_ends };
	static const uint8_t sizes[] = { 4, 4, 4, 4, 4, 1, 1, 1, 1, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4 };

	return grow_columns(columns, sizes, sizeof(sizes), &f->block_room, wanted);
}

static bool grow_edges(struct function *f, size_t wanted)
{
	void *columns[] = { &f->edges,	&f->from,     &f->flow_of,   &f->flows,
			    &f->groups, &f->arrivals, &f->is_shared, &f->group_flows };
	static const uint8_t sizes[] = { 4, 4, 4, 8, 4, 4, 1, 8 };

	return grow_columns(columns, sizes, sizeof(sizes), &f->edge_room, wanted);
}

static bool grow_lines(struct function *f, size_t wanted)
{
	void *columns[] = { &f->line_files, &f->lines, &f->line_offsets };
	static const uint8_t sizes[] = { 4, 4, 4 };

	return grow_columns(columns, sizes, sizeof(sizes), &f->line_room, wanted);
}

static bool grow_calls(struct function *f, size_t wanted)
{
	void *columns[] = { &f->call_files, &f->calls, &f->call_offsets };
	static const uint8_t sizes[] = { 4, 4, 4 };

	return grow_columns(columns, sizes, sizeof(sizes), &f->call_room, wanted);
}

/* Read the line of a word, which has some other bits; false when it is damaged. */
static bool read_place(struct cursor *cursor, uint64_t word, unsigned int bits, struct last_lines *last)
{
	struct last_lines before = *last;

	if (word & 1) {
		uint64_t number = get(cursor);

		if (number > MAX_FILES)
			return false;
		last->file = number ? number - 1 : before.other_file;
		last->line = number ? before.line : before.other_line;
		last->other_file = before.file;
		last->other_line = before.line;
	}
	last->line += unzigzag(word >> (bits + 1));
	return !cursor->is_bad && last->line >= 0 && last->line <= KCOVDBG_MAX_LINE && last->file < MAX_FILES;
}

/* Read the lines that code of a block was inlined at; false when they are damaged. changed: whether they differ from those of the last block. */
static bool read_calls(struct kcovdbg_states *states, struct cursor *cursor, bool changed)
{
	struct function *f = &states->function;
	size_t end = f->call_count, first = f->block_count > 1 ? f->call_ends[f->block_count - 2] : 0, i;
	uint64_t same = end - first, more = 0, unbegun = 0;

	if (changed) {
		uint64_t head = get(cursor);

		same = head >> KCOVDBG_SAME_CALLS;
		more = head & KCOVDBG_MANY_CALLS;
		more += more == KCOVDBG_MANY_CALLS ? get(cursor) : 0;
		unbegun = head & KCOVDBG_SOME_UNBEGUN ? get(cursor) : 0;
	}
	if (same > end - first || unbegun > same || more > (size_t)(cursor->end - cursor->at))
		return false;
	if (!grow_calls(f, end + same + more)) {
		states->is_full = true;
		return false;
	}
	for (i = 0; i < same; i++) {
		f->call_files[f->call_count] = f->call_files[first + i];
		f->call_offsets[f->call_count] = 0;
		f->calls[f->call_count++] =
			(f->calls[first + i] & KCOVDBG_MAX_LINE) | (i < same - unbegun ? KCOVDBG_ROW_STATEMENT : 0);
	}
	for (; more; more--) {
		uint64_t word = get(cursor), rest;

		if (!read_place(cursor, word, 1, &states->last_call))
			return false;
		rest = word & 2 ? get(cursor) : 0;
		if (cursor->is_bad || rest >> 1 > UINT32_MAX)
			return false;
		f->call_files[f->call_count] = states->last_call.file;
		f->call_offsets[f->call_count] = rest >> 1;
		f->calls[f->call_count++] = states->last_call.line | (rest & 1 ? 0 : KCOVDBG_ROW_STATEMENT);
	}
	return true;
}

/* Read the lines of a block; false when they are damaged. A beginning without code counts with the code behind it. */
static bool read_lines(struct kcovdbg_states *states, struct cursor *cursor)
{
	struct function *f = &states->function;
	struct last_lines *last = &states->last_line;
	uint64_t head = get(cursor), count = head >> 2, offset, i;
	size_t open = f->line_count;
	bool is_first = true;

	if (!read_calls(states, cursor, head & 2))
		return false;
	offset = head & 1 ? get(cursor) : 0;
	if (count > (size_t)(cursor->end - cursor->at))
		return false;
	if (!grow_lines(f, f->line_count + count)) {
		states->is_full = true;
		return false;
	}
	for (i = 0; i < count; i++) {
		uint64_t word = get(cursor);

		if (!read_place(cursor, word, 2, last))
			return false;
		f->line_files[f->line_count] = last->file;
		f->lines[f->line_count++] =
			last->line | (word & 2 ? KCOVDBG_ROW_STATEMENT : 0) | (word & 4 ? KCOVDBG_ROW_CODE : 0);
		if (!(word & 4))
			continue;
		offset += is_first ? 0 : get(cursor);
		is_first = false;
		if (cursor->is_bad || offset > UINT32_MAX)
			return false;
		while (open < f->line_count)
			f->line_offsets[open++] = offset;
	}
	while (open < f->line_count)
		f->line_offsets[open++] = f->sizes[f->block_count];
	f->line_ends[f->block_count] = f->line_count;
	f->call_ends[f->block_count] = f->call_count;
	return true;
}

static bool read_block(struct kcovdbg_states *states, struct cursor *cursor, uint32_t start)
{
	struct function *f = &states->function;
	size_t block = f->block_count;
	uint64_t size = get(cursor), head = get(cursor), others = head >> 6, i;

	if (cursor->is_bad || others > (size_t)(cursor->end - cursor->at) || size > UINT32_MAX)
		return false;
	f->starts[block] = start;
	f->sizes[block] = size;
	f->block_flags[block] = head & 0x3f;
	f->stops[block] = 0;
	if (!grow_edges(f, f->edge_count + others + 1)) {
		states->is_full = true;
		return false;
	}
	if (head & KCOVDBG_BLOCK_FALLS)
		f->edges[f->edge_count++] = block + 1;
	for (i = 0; i < others; i++)
		f->edges[f->edge_count++] = (uint64_t)block + unzigzag(get(cursor));
	f->edge_ends[block] = f->edge_count;
	if (!read_lines(states, cursor))
		return false;
	f->block_count++;
	return true;
}

/* Read a function; false when it is damaged. */
static bool read_function(struct kcovdbg_states *states, uint32_t number)
{
	const struct kcovdbg_encoded *encoded = states->encoded;
	struct function *f = &states->function;
	uint64_t start = number ? encoded->code_end[number - 1] : 0, end = encoded->code_end[number];
	uint32_t part = number ? states->part_ends[number - 1] : 0, part_end = states->part_ends[number];
	struct cursor counts, cursor;
	uint64_t total = 0;
	size_t i;

	states->last_line = states->last_call = (struct last_lines){ UINT32_MAX, UINT32_MAX, 0, 0 };
	f->block_count = f->edge_count = f->line_count = f->call_count = 0;
	f->is_contradicted = f->has_flows = f->leaves = false;
	if (start > end || end > encoded->code_size)
		return false;
	cursor = (struct cursor){ encoded->code + start, encoded->code + end, false };
	f->flags = get(&cursor);
	counts = cursor;
	for (i = part; i < part_end; i++)
		total += get(&cursor);
	if (cursor.is_bad || total > end - start)
		return false;
	if (!grow_blocks(f, total + 1)) {
		states->is_full = true;
		return false;
	}
	for (; part < part_end; part++) {
		uint64_t blocks = get(&counts), at = encoded->part_start[states->parts[part]];

		for (i = 0; i < blocks; i++) {
			if (at > UINT32_MAX || f->block_count >= total || !read_block(states, &cursor, at))
				return false;
			at += f->sizes[f->block_count - 1];
		}
	}
	for (i = 0; i < f->edge_count; i++)
		if (f->edges[i] >= f->block_count)
			return false;
	return !cursor.is_bad;
}

/* Make the columns of predecessors. */
static void turn_edges(struct function *f)
{
	size_t block, edge = 0;

	memset(f->from_ends, 0, f->block_count * sizeof(*f->from_ends));
	for (edge = 0; edge < f->edge_count; edge++)
		f->from_ends[f->edges[edge]]++;
	for (block = 1; block < f->block_count; block++)
		f->from_ends[block] += f->from_ends[block - 1];
	/* From the end, so that each becomes where its predecessors begin; then the next one says where they end. */
	for (block = f->block_count; block-- > 0;)
		for (edge = f->edge_ends[block]; edge-- > (block ? f->edge_ends[block - 1] : 0);) {
			size_t to = --f->from_ends[f->edges[edge]];

			f->from[to] = block;
			f->flow_of[to] = edge;
		}
	for (block = 0; block + 1 < f->block_count; block++)
		f->from_ends[block] = f->from_ends[block + 1];
	if (f->block_count)
		f->from_ends[f->block_count - 1] = f->edge_count;
}

static size_t first_edge(const struct function *f, size_t block)
{
	return block ? f->edge_ends[block - 1] : 0;
}

static size_t first_from(const struct function *f, size_t block)
{
	return block ? f->from_ends[block - 1] : 0;
}

static bool is_entry(const struct function *f, size_t block)
{
	return f->block_flags[block] & KCOVDBG_BLOCK_ENTRY;
}

static bool is_exit(const struct function *f, size_t block)
{
	return f->block_flags[block] & KCOVDBG_BLOCK_EXIT;
}

/* Whether a block may have been entered more often than it was left for another one. */
static bool is_end(const struct function *f, size_t block)
{
	return is_exit(f, block) || f->stops[block];
}

static bool holds(const struct function *f, size_t block, uint64_t address)
{
	return address >= f->starts[block] && address - f->starts[block] < f->sizes[block];
}

/* Give the second half of a block its own lines: those whose code begins in it. */
static bool split_lines(struct function *f, size_t block, uint32_t offset)
{
	size_t first = block ? f->line_ends[block - 1] : 0, end = f->line_ends[block], middle = first, i, last = SIZE_MAX;

	while (middle < end && f->line_offsets[middle] < offset) {
		if (f->lines[middle] & KCOVDBG_ROW_CODE)
			last = middle;
		middle++;
	}
	for (i = middle; i < end; i++)
		f->line_offsets[i] -= offset;
	memmove(f->line_ends + block + 1, f->line_ends + block, (f->block_count - block) * sizeof(*f->line_ends));
	f->line_ends[block] = middle;
	for (i = middle; i < end; i++)
		if (f->lines[i] & KCOVDBG_ROW_CODE)
			return true;
	/* The last one goes on, and is the line of the block's branch. */
	if (last == SIZE_MAX || f->edge_ends[block] - (block ? f->edge_ends[block - 1] : 0) != 2)
		return true;
	if (!grow_lines(f, f->line_count + 1))
		return false;
	for (i = f->line_count; i > middle; i--) {
		f->line_files[i] = f->line_files[i - 1];
		f->lines[i] = f->lines[i - 1];
		f->line_offsets[i] = f->line_offsets[i - 1];
	}
	f->line_files[middle] = f->line_files[last];
	f->lines[middle] = f->lines[last] & ~KCOVDBG_ROW_STATEMENT;
	f->line_offsets[middle] = 0;
	f->line_count++;
	for (i = block + 1; i <= f->block_count; i++)
		f->line_ends[i]++;
	return true;
}

/* Give the second half of a block its own calls: those whose code begins in it. */
static void split_calls(struct function *f, size_t block, uint32_t offset)
{
	size_t middle = block ? f->call_ends[block - 1] : 0, end = f->call_ends[block], i;

	while (middle < end && f->call_offsets[middle] < offset)
		middle++;
	for (i = middle; i < end; i++)
		f->call_offsets[i] -= offset;
	memmove(f->call_ends + block + 1, f->call_ends + block, (f->block_count - block) * sizeof(*f->call_ends));
	f->call_ends[block] = middle;
}

/* Make two blocks of one, of which the first one ends at an offset, and leads to the second one. One of them may be empty. */
static bool split_block(struct function *f, size_t block, uint32_t offset)
{
	const uint8_t first_flags = KCOVDBG_BLOCK_ENTRY | KCOVDBG_BLOCK_NO_LINES;
	size_t edge, i, behind = f->block_count - block;

	if (!grow_blocks(f, f->block_count + 1) || !grow_edges(f, f->edge_count + 1) || !split_lines(f, block, offset))
		return false;
	split_calls(f, block, offset);
	memmove(f->starts + block + 1, f->starts + block, behind * sizeof(*f->starts));
	memmove(f->sizes + block + 1, f->sizes + block, behind * sizeof(*f->sizes));
	memmove(f->block_flags + block + 1, f->block_flags + block, behind);
	memmove(f->edge_ends + block + 1, f->edge_ends + block, behind * sizeof(*f->edge_ends));
	memmove(f->stops + block + 1, f->stops + block, behind * sizeof(*f->stops));
	f->block_count++;
	f->stops[block] = 0;
	f->starts[block + 1] += offset;
	f->sizes[block + 1] -= offset;
	f->sizes[block] = offset;
	f->block_flags[block] = (f->block_flags[block] & first_flags) | KCOVDBG_BLOCK_FALLS;
	f->block_flags[block + 1] &= ~KCOVDBG_BLOCK_ENTRY;
	for (i = 0; i < f->edge_count; i++)
		f->edges[i] += f->edges[i] > block;
	edge = block ? f->edge_ends[block - 1] : 0;
	memmove(f->edges + edge + 1, f->edges + edge, (f->edge_count - edge) * sizeof(*f->edges));
	f->edges[edge] = block + 1;
	f->edge_count++;
	f->edge_ends[block] = edge;
	for (i = block; i < f->block_count; i++)
		f->edge_ends[i]++;
	return true;
}

/* Note that the task is at an address: it has executed what is in front of it in its block. */
static bool stop_at(struct function *f, uint64_t address, bool is_return)
{
	bool is_call, was_split;
	uint32_t offset;
	size_t block;

	/* A return address may be the first one after the block. */
	for (block = 0; block < f->block_count; block++)
		if (holds(f, block, address - is_return))
			break;
	if (block == f->block_count)
		return true;
	offset = address - f->starts[block];
	/* Calls end blocks, but those of callbacks. */
	is_call = is_return && offset == f->sizes[block] && f->block_flags[block] & KCOVDBG_BLOCK_CALL;
	was_split = is_return && offset == f->sizes[block] && f->stops[block];
	if (!is_call && !was_split && !split_block(f, block, offset))
		return false;
	f->stops[block]++;
	f->block_flags[block] |= KCOVDBG_BLOCK_STOPPED;
	return true;
}

/*
 * Note where the task is in the function. Return whether it will return to the function. All other calls of the function returned, since the
 * stack has no frame of them. If only a position is in the function, the task entered it last, and may not have come to its first point.
 */
static bool place_task(struct kcovdbg_states *states, uint32_t function)
{
	const struct kcovdbg_encoded *encoded = states->encoded;
	const struct kcovdbg_trace *trace = states->trace;
	struct function *f = &states->function;
	bool is_inside = false;
	uint32_t part;

	for (part = function ? states->part_ends[function - 1] : 0; part < states->part_ends[function]; part++) {
		uint64_t start = encoded->part_start[states->parts[part]],
			 end = start + encoded->part_size[states->parts[part]];
		size_t i = lower_bound(trace->stack, trace->stack_count, start + 1);

		for (; i < trace->stack_count && trace->stack[i] <= end; i++) {
			is_inside = true;
			states->is_full |= !stop_at(f, trace->stack[i], true);
		}
		i = lower_bound(trace->positions, trace->position_count, start);
		for (; i < trace->position_count && trace->positions[i] < end; i++)
			states->is_full |= !stop_at(f, trace->positions[i], false);
	}
	return is_inside;
}

/* All points of a block have as many records, unless the task is between two of them, or records are missing. */
static void note_difference(struct kcovdbg_states *states, size_t block, bool is_missing)
{
	uint32_t quality = states->trace->quality;

	if (!(quality & KCOVDBG_TRACE_COMPLETE))
		return;
	if (!(quality & KCOVDBG_TRACE_ENDED))
		states->function.states[block] = KCOVDBG_STATE_STOPPED;
	else if (is_missing || quality & KCOVDBG_TRACE_COUNTED)
		states->function.is_contradicted = true;
}

/* Put the records of points into their blocks. */
static void place_records(struct kcovdbg_states *states)
{
	const struct kcovdbg_trace *trace = states->trace;
	struct function *f = &states->function;
	size_t point = 0, record = 0, block;
	uint64_t following = NO_RECORDS; /* Of the next block. */

	for (block = 0; block < f->block_count; block++) {
		uint64_t start = f->starts[block], end = start + f->sizes[block];

		f->records[block] = following;
		following = NO_RECORDS;
		f->states[block] = KCOVDBG_STATE_UNKNOWN;
		/* A point is the address after its call. Blocks of one part are neighbors. */
		if (!block || start != (uint64_t)f->starts[block - 1] + f->sizes[block - 1]) {
			point = lower_bound(trace->points, trace->point_count, start + 1);
			record = lower_bound(trace->records, trace->record_count, start + 1);
		}
		for (; point < trace->point_count && trace->points[point] <= end; point++) {
			uint64_t at = trace->points[point], hits = 0;

			if (!(trace->kinds >> (trace->chains[point] & KCOVDBG_CHAIN_KIND_MASK) & 1))
				continue;
			while (record < trace->record_count && trace->records[record] < at)
				record++;
			if (record < trace->record_count && trace->records[record] == at)
				hits = trace->counts[record];
			if (f->stops[block] && at == end && has_offset(trace->stack, trace->stack_count, at)) {
				/* The task is in the callback: its record may be there or not. */
				following = hits ? NO_RECORDS : 0;
				if (!hits || f->records[block] != NO_RECORDS)
					continue;
				f->states[block] = KCOVDBG_STATE_STOPPED;
			}
			if (f->records[block] != NO_RECORDS && f->records[block] != hits)
				note_difference(states, block, !hits || !f->records[block]);
			if (f->records[block] == NO_RECORDS || hits > f->records[block])
				f->records[block] = hits;
		}
	}
}

static void enqueue(struct function *f, size_t block)
{
	if (f->is_queued[block])
		return;
	f->is_queued[block] = 1;
	f->queue[f->queue_count++] = block;
}

static void enqueue_neighbors(struct function *f, size_t block)
{
	size_t i;

	for (i = first_edge(f, block); i < f->edge_ends[block]; i++)
		enqueue(f, f->edges[i]);
	for (i = first_from(f, block); i < f->from_ends[block]; i++)
		enqueue(f, f->from[i]);
	enqueue(f, block);
}

static void exclude(struct function *f, size_t block)
{
	size_t i;

	if (f->states[block] == KCOVDBG_STATE_NOT_EXECUTED)
		return;
	if (f->states[block] != KCOVDBG_STATE_UNKNOWN) {
		f->is_contradicted = true;
		return;
	}
	f->states[block] = KCOVDBG_STATE_NOT_EXECUTED;
	for (i = first_edge(f, block); i < f->edge_ends[block]; i++)
		if (f->edges[i] != block)
			f->live_in[f->edges[i]]--;
	for (i = first_from(f, block); i < f->from_ends[block]; i++)
		if (f->from[i] != block)
			f->live_out[f->from[i]]--;
	enqueue_neighbors(f, block);
}

static void include(struct function *f, size_t block)
{
	if (f->states[block] == KCOVDBG_STATE_NOT_EXECUTED)
		f->is_contradicted = true;
	if (f->states[block] != KCOVDBG_STATE_UNKNOWN)
		return;
	f->states[block] = KCOVDBG_STATE_EXECUTED;
	enqueue_neighbors(f, block);
}

/*
 * Apply rules 1 to 4 to a block. Edges from a block to itself say nothing: it was entered and left by other edges.
 * leaves: whether a block that was executed was left again.
 */
static void apply_rules(struct function *f, size_t block, bool leaves)
{
	bool enters = !is_entry(f, block);
	size_t i;

	leaves = leaves && !is_end(f, block);
	switch (f->states[block]) {
	case KCOVDBG_STATE_UNKNOWN:
		if ((enters && !f->live_in[block]) || (leaves && !f->live_out[block]))
			exclude(f, block);
		break;
	case KCOVDBG_STATE_EXECUTED:
	case KCOVDBG_STATE_STOPPED:
		if (f->states[block] == KCOVDBG_STATE_STOPPED)
			leaves = false;
		if ((enters && !f->live_in[block]) || (leaves && !f->live_out[block])) {
			f->is_contradicted = true;
			break;
		}
		for (i = first_edge(f, block); leaves && f->live_out[block] == 1 && i < f->edge_ends[block]; i++)
			if (f->edges[i] != block && f->states[f->edges[i]] != KCOVDBG_STATE_NOT_EXECUTED)
				include(f, f->edges[i]);
		for (i = first_from(f, block); enters && f->live_in[block] == 1 && i < f->from_ends[block]; i++)
			if (f->from[i] != block && f->states[f->from[i]] != KCOVDBG_STATE_NOT_EXECUTED)
				include(f, f->from[i]);
		break;
	}
}

static void drain(struct function *f, bool leaves)
{
	while (f->queue_count && !f->is_contradicted) {
		size_t block = f->queue[--f->queue_count];

		f->is_queued[block] = 0;
		apply_rules(f, block, leaves);
	}
}

/*
 * Find the blocks that an entry leads to, or that lead to an exit, by blocks that may have been executed.
 * without: a block to avoid; the number of blocks for none.
 */
static void reach(struct function *f, bool is_forward, bool leaves, size_t without)
{
	const uint32_t *next = is_forward ? f->edges : f->from;
	size_t block, i, count = 0;

	for (block = 0; block < f->block_count; block++) {
		bool is_first = is_forward ? is_entry(f, block)
					   : is_end(f, block) || f->states[block] == KCOVDBG_STATE_STOPPED || !leaves;

		f->reached[block] = is_first && block != without && f->states[block] != KCOVDBG_STATE_NOT_EXECUTED;
		if (f->reached[block])
			f->queue[count++] = block;
	}
	while (count) {
		block = f->queue[--count];
		i = is_forward ? first_edge(f, block) : first_from(f, block);
		for (; i < (is_forward ? f->edge_ends[block] : f->from_ends[block]); i++)
			if (!f->reached[next[i]] && next[i] != without && f->states[next[i]] != KCOVDBG_STATE_NOT_EXECUTED) {
				f->reached[next[i]] = 1;
				f->queue[count++] = next[i];
			}
	}
}

/* Rules 1 and 2 for loops, whose blocks are each other's predecessors. Return whether there was something. */
static bool exclude_unreached(struct function *f, bool is_forward, bool leaves)
{
	bool has_changed = false;
	size_t block;

	reach(f, is_forward, leaves, f->block_count);
	for (block = 0; block < f->block_count; block++)
		if (!f->reached[block] && f->states[block] != KCOVDBG_STATE_NOT_EXECUTED) {
			exclude(f, block);
			has_changed = true;
		}
	return has_changed;
}

/* Rule 6: blocks on each way to an executed block, or from one, were executed. Return whether there were any. */
static bool include_unavoidable(struct function *f, bool is_forward, bool leaves)
{
	size_t block, other, unknown = 0;
	bool has_changed = false;

	for (block = 0; block < f->block_count; block++)
		unknown += f->states[block] == KCOVDBG_STATE_UNKNOWN;
	if (unknown * (f->edge_count + f->block_count) > MOST_STEPS)
		return false;
	for (block = 0; unknown && block < f->block_count; block++) {
		if (f->states[block] != KCOVDBG_STATE_UNKNOWN)
			continue;
		reach(f, is_forward, leaves, block);
		for (other = 0; other < f->block_count; other++) {
			bool was_executed =
				f->states[other] == KCOVDBG_STATE_EXECUTED || f->states[other] == KCOVDBG_STATE_STOPPED;

			if (was_executed && !f->reached[other])
				break;
		}
		if (other < f->block_count) {
			/* Neighbors are queued when all are known: the queue was used. */
			f->states[block] = KCOVDBG_STATE_EXECUTED;
			has_changed = true;
		}
	}
	return has_changed;
}

/* searches: whether rule 6 is worth its time, as few blocks are unknown. */
static void infer(struct function *f, bool leaves, bool searches)
{
	bool has_changed = true;
	size_t block;

	while (has_changed) {
		memset(f->is_queued, 0, f->block_count);
		f->queue_count = 0;
		for (block = 0; block < f->block_count; block++)
			enqueue(f, block);
		do {
			drain(f, leaves);
			/* The queue is empty. */
		} while (!f->is_contradicted &&
			 (exclude_unreached(f, true, leaves) || (leaves && exclude_unreached(f, false, leaves))));
		has_changed = searches && !f->is_contradicted && include_unavoidable(f, true, leaves);
		if (searches && leaves && !has_changed && !f->is_contradicted)
			has_changed = include_unavoidable(f, false, leaves);
	}
}

/* The group of an edge at one side of a block, or the edge itself; NONE where the side has another edge of the group. */
static uint32_t flow_at(const struct function *f, size_t i, bool is_forward, bool is_grouped)
{
	uint32_t edge = is_forward ? i : f->flow_of[i], group;

	if (!is_grouped)
		return edge;
	group = f->groups[edge];
	return (is_forward ? group : f->arrivals[group]) == i ? group : NONE;
}

/* One side of a block in rule 5: its edges to other blocks, or from them. */
static bool balance(struct function *f, size_t block, bool is_forward, bool is_grouped)
{
	size_t first = is_forward ? first_edge(f, block) : first_from(f, block);
	size_t end = is_forward ? f->edge_ends[block] : f->from_ends[block], i, missing = 0;
	/* The task has not left the block yet for each record. */
	uint64_t sum = is_forward ? f->stops[block] : 0;
	uint64_t *flows = is_grouped ? f->group_flows : f->flows;
	uint32_t edge, open = NONE;

	for (i = first; i < end; i++) {
		edge = flow_at(f, i, is_forward, is_grouped);
		if (edge == NONE)
			continue;
		if (flows[edge] == NO_RECORDS) {
			missing++;
			open = edge;
		} else {
			sum += flows[edge];
		}
	}
	if (f->records[block] == NO_RECORDS) {
		if (missing)
			return false;
		f->records[block] = sum;
		return true;
	}
	if (sum > f->records[block] || (!missing && sum != f->records[block])) {
		f->is_contradicted = true;
		return false;
	}
	if (missing != 1 && sum != f->records[block])
		return false;
	/* The one unknown edge has the rest of the records; without a rest each has 0. */
	for (i = first; missing && i < end; i++) {
		edge = flow_at(f, i, is_forward, is_grouped);
		if (edge != NONE && flows[edge] == NO_RECORDS)
			flows[edge] = missing == 1 && edge == open ? f->records[block] - sum : 0;
	}
	return missing != 0;
}

/* Note that no edge from or to a block without records was taken. Return whether that was unknown of one. */
static bool clear_flows(struct function *f, size_t block, bool is_grouped)
{
	uint64_t *flows = is_grouped ? f->group_flows : f->flows;
	bool has_changed = false;
	size_t side, i;

	for (side = 0; side < 2; side++) {
		size_t end = side ? f->edge_ends[block] : f->from_ends[block];

		for (i = side ? first_edge(f, block) : first_from(f, block); i < end; i++) {
			uint32_t edge = flow_at(f, i, side, is_grouped);

			if (edge == NONE || flows[edge] != NO_RECORDS)
				continue;
			flows[edge] = 0;
			has_changed = true;
		}
	}
	return has_changed;
}

static bool is_detour(const struct function *f, size_t block)
{
	return f->onward[block] != NONE;
}

/* Balance blocks until nothing changes: with single edges, or with groups of them, beside which detours don't count. */
static void balance_all(struct function *f, bool is_grouped)
{
	bool has_changed = true;
	size_t block;

	while (has_changed && !f->is_contradicted) {
		has_changed = false;
		for (block = 0; block < f->block_count && !f->is_contradicted; block++) {
			if (is_grouped && is_detour(f, block))
				continue;
			if (!is_exit(f, block))
				has_changed |= balance(f, block, true, is_grouped);
			if (!is_entry(f, block) && !f->is_contradicted)
				has_changed |= balance(f, block, false, is_grouped);
			if (!f->records[block])
				has_changed |= clear_flows(f, block, is_grouped);
		}
	}
}

/* The block that is no detour, and to which a detour leads, or from which it comes. */
static size_t end_of_detours(const struct function *f, size_t block, bool is_forward)
{
	uint32_t *next = is_forward ? f->onward : f->origin;

	while (is_detour(f, block)) {
		/* Next time the way is half as long. */
		if (is_detour(f, next[block]))
			next[block] = next[next[block]];
		block = next[block];
	}
	return block;
}

/* The only block that a block leads to, or is led to from, without detours; NONE where there are several, none or itself. */
static uint32_t only_end(const struct function *f, size_t block, bool is_forward)
{
	const uint32_t *others = is_forward ? f->edges : f->from;
	size_t i = is_forward ? first_edge(f, block) : first_from(f, block);
	size_t end = is_forward ? f->edge_ends[block] : f->from_ends[block];
	uint32_t found = NONE;

	for (; i < end; i++) {
		uint32_t other = end_of_detours(f, others[i], is_forward);

		if (other == block || (found != NONE && other != found))
			return NONE;
		found = other;
	}
	return found;
}

/*
 * Find the detours: blocks whose number of records is unknown, which are entered from one block only, and lead to one other block only. Checks
 * that a compiler puts in front of an access are such code: a report for some addresses, and back to the access.
 */
static bool find_detours(struct function *f)
{
	bool has_detours = false, has_changed = true;
	size_t block, look;

	for (block = 0; block < f->block_count; block++)
		f->onward[block] = NONE;
	for (look = 0; has_changed && look < MOST_LOOKS; look++) {
		has_changed = false;
		for (block = f->block_count; block-- > 0;) {
			uint32_t from, to;

			if (is_detour(f, block) || f->records[block] != NO_RECORDS || is_entry(f, block) || is_end(f, block) ||
			    f->states[block] == KCOVDBG_STATE_STOPPED)
				continue;
			from = only_end(f, block, false);
			to = only_end(f, block, true);
			if (from == NONE || to == NONE || from == to)
				continue;
			f->origin[block] = from;
			f->onward[block] = to;
			has_detours = has_changed = true;
		}
	}
	return has_detours;
}

/* Put the edges from a block, and those of detours behind it, into groups. */
static void group_edges(struct function *f, size_t block)
{
	size_t i;

	for (i = first_edge(f, block); i < f->edge_ends[block]; i++) {
		size_t to = end_of_detours(f, f->edges[i], true);

		if (f->last_origins[to] != block) {
			f->last_origins[to] = block;
			f->last_groups[to] = i;
		} else {
			f->is_shared[f->last_groups[to]] = 1;
		}
		f->groups[i] = f->last_groups[to];
		if (is_detour(f, f->edges[i]))
			enqueue(f, f->edges[i]);
	}
	/* Each stays marked as queued, as it is a detour behind one block only. */
	while (f->queue_count) {
		size_t detour = f->queue[--f->queue_count];
		uint32_t group = f->last_groups[end_of_detours(f, detour, true)];

		for (i = first_edge(f, detour); i < f->edge_ends[detour]; i++) {
			f->groups[i] = group;
			if (is_detour(f, f->edges[i]))
				enqueue(f, f->edges[i]);
		}
	}
}

static void make_groups(struct function *f)
{
	size_t block, i;

	for (i = 0; i < f->edge_count; i++) {
		f->groups[i] = i;
		f->arrivals[i] = NONE;
		f->is_shared[i] = 0;
	}
	memset(f->is_queued, 0, f->block_count);
	f->queue_count = 0;
	for (block = 0; block < f->block_count; block++)
		f->last_origins[block] = NONE;
	for (block = 0; block < f->block_count; block++)
		if (!is_detour(f, block))
			group_edges(f, block);
	for (block = 0; block < f->block_count; block++)
		for (i = first_from(f, block); !is_detour(f, block) && i < f->from_ends[block]; i++) {
			uint32_t group = f->groups[f->flow_of[i]];

			if (f->arrivals[group] == NONE)
				f->arrivals[group] = i;
		}
}

/* Rule 5 without detours: a block is entered as often as others are left for it. Return whether a block or an edge became known. */
static bool balance_groups(struct function *f)
{
	size_t block, i, unknown = 0, still_unknown = 0;
	bool has_changed = false;

	make_groups(f);
	memset(f->group_flows, 0, f->edge_count * sizeof(*f->group_flows));
	for (block = 0; block < f->block_count; block++) {
		unknown += f->records[block] == NO_RECORDS;
		for (i = first_edge(f, block); !is_detour(f, block) && i < f->edge_ends[block]; i++) {
			uint64_t *flow = f->group_flows + f->groups[i];

			*flow = *flow == NO_RECORDS || f->flows[i] == NO_RECORDS ? NO_RECORDS : *flow + f->flows[i];
		}
	}
	balance_all(f, true);
	for (block = 0; block < f->block_count; block++) {
		still_unknown += f->records[block] == NO_RECORDS;
		for (i = first_edge(f, block); i < f->edge_ends[block]; i++) {
			uint64_t flow = f->group_flows[f->groups[i]];
			bool is_own = !is_detour(f, block) && !f->is_shared[f->groups[i]];

			if (f->flows[i] != NO_RECORDS || flow == NO_RECORDS || (flow && !is_own))
				continue;
			f->flows[i] = flow;
			has_changed = true;
		}
	}
	return has_changed || still_unknown < unknown;
}

/* Rule 5. */
static void find_flows(struct function *f)
{
	size_t block, i, look;

	for (block = 0; block < f->block_count; block++) {
		if (f->states[block] == KCOVDBG_STATE_NOT_EXECUTED)
			f->records[block] = 0;
		/* How often it was entered is unknown. */
		if (f->states[block] == KCOVDBG_STATE_STOPPED)
			f->records[block] = NO_RECORDS;
	}
	for (i = 0; i < f->edge_count; i++)
		f->flows[i] = NO_RECORDS;
	for (block = 0; block < f->block_count; block++)
		for (i = first_edge(f, block); i < f->edge_ends[block]; i++)
			if (!f->records[block] || !f->records[f->edges[i]])
				f->flows[i] = 0;
	for (look = 0; look < MOST_LOOKS; look++) {
		balance_all(f, false);
		if (f->is_contradicted || !find_detours(f) || !balance_groups(f))
			break;
	}
	for (block = 0; block < f->block_count && !f->is_contradicted; block++) {
		bool is_taken = false;

		for (i = first_edge(f, block); i < f->edge_ends[block]; i++)
			is_taken |= f->flows[i] && f->flows[i] != NO_RECORDS;
		for (i = first_from(f, block); i < f->from_ends[block]; i++)
			is_taken |= f->flows[f->flow_of[i]] && f->flows[f->flow_of[i]] != NO_RECORDS;
		if (is_taken || (f->records[block] && f->records[block] != NO_RECORDS))
			include(f, block);
		else if (!f->records[block])
			exclude(f, block);
	}
}

static bool was_recorded(const struct function *f)
{
	size_t block;

	for (block = 0; block < f->block_count; block++)
		if (f->records[block] && f->records[block] != NO_RECORDS)
			return true;
	return false;
}

/* The states that points alone decide. */
static void use_points(struct kcovdbg_states *states)
{
	struct function *f = &states->function;
	size_t block;

	for (block = 0; block < f->block_count; block++)
		f->states[block] =
			f->records[block] && f->records[block] != NO_RECORDS ? KCOVDBG_STATE_EXECUTED : KCOVDBG_STATE_UNKNOWN;
}

/*
 * Make blocks unknown where the task may be, if its place is unknown. How far it came between the last callback and the next one is
 * unknown.
 */
static void leave_open(struct kcovdbg_states *states)
{
	const struct kcovdbg_trace *trace = states->trace;
	struct function *f = &states->function;
	size_t block, i;

	for (block = 0; block < f->block_count; block++) {
		bool may_be_next = is_entry(f, block);

		/* Points without a record were not passed: blocks that follow them were entered by others only. */
		for (i = first_from(f, block); i < f->from_ends[block]; i++)
			may_be_next |= f->states[f->from[i]] != KCOVDBG_STATE_NOT_EXECUTED;
		f->reached[block] = may_be_next && f->states[block] == KCOVDBG_STATE_NOT_EXECUTED;
		if (trace->last != NO_PLACE && trace->last && holds(f, block, trace->last - 1))
			f->reached[block] = 1;
	}
	for (block = 0; block < f->block_count; block++)
		if (f->reached[block])
			f->states[block] =
				f->states[block] == KCOVDBG_STATE_EXECUTED ? KCOVDBG_STATE_STOPPED : KCOVDBG_STATE_UNKNOWN;
}

/* The other end of the only edge by which a block can have been left or entered; SIZE_MAX where there are several, or none. */
static size_t only_neighbor(const struct function *f, size_t block, bool is_forward)
{
	const uint32_t *others = is_forward ? f->edges : f->from;
	size_t i = is_forward ? first_edge(f, block) : first_from(f, block);
	size_t end = is_forward ? f->edge_ends[block] : f->from_ends[block], found = SIZE_MAX;

	for (; i < end; i++) {
		if (others[i] == block || others[i] == found || f->states[others[i]] == KCOVDBG_STATE_NOT_EXECUTED)
			continue;
		if (found != SIZE_MAX)
			return SIZE_MAX;
		found = others[i];
	}
	return found;
}

/* Put the addresses that were executed into their blocks. */
static void place_addresses(struct kcovdbg_states *states)
{
	const struct kcovdbg_trace *trace = states->trace;
	struct function *f = &states->function;
	bool is_void = f->flags & KCOVDBG_FUNCTION_VOID;
	size_t block;

	for (block = 0; block < f->block_count; block++) {
		uint64_t start = f->starts[block], end = start + f->sizes[block];
		size_t at = lower_bound(trace->records, trace->record_count, start);
		bool has_first = at < trace->record_count && trace->records[at] == start;

		f->states[block] = KCOVDBG_STATE_UNKNOWN;
		f->records[block] = NO_RECORDS;
		for (; at < trace->record_count && trace->records[at] < end; at++) {
			/* Of a function with unknown edges, control may have come to the middle. */
			f->states[block] = is_void && !has_first ? KCOVDBG_STATE_STOPPED : KCOVDBG_STATE_EXECUTED;
			if (f->records[block] == NO_RECORDS || trace->counts[at] > f->records[block])
				f->records[block] = trace->counts[at];
		}
		at = lower_bound(trace->listed, trace->listed_count, start);
		if (f->states[block] == KCOVDBG_STATE_UNKNOWN && trace->quality & KCOVDBG_TRACE_COMPLETE &&
		    (at == trace->listed_count || trace->listed[at] >= end)) {
			f->states[block] = KCOVDBG_STATE_NOT_EXECUTED;
			f->records[block] = 0;
		}
	}
}

/*
 * Find the states of the function's blocks by executed addresses. A block is executed if one of its addresses was; so are the only
 * block that can follow it and the only one that can lead to it, as lists of longer pieces of code name where each begins. A call may
 * not have returned.
 */
static void find_exact_states(struct kcovdbg_states *states)
{
	struct function *f = &states->function;
	size_t block, next;

	turn_edges(f);
	place_addresses(states);
	if (f->flags & KCOVDBG_FUNCTION_VOID)
		return;
	memset(f->is_queued, 0, f->block_count);
	f->queue_count = 0;
	for (block = 0; block < f->block_count; block++)
		if (f->states[block] == KCOVDBG_STATE_EXECUTED)
			enqueue(f, block);
	while (f->queue_count) {
		block = f->queue[--f->queue_count];
		f->is_queued[block] = 0;
		/* Neighbors of one that was included are there as well. */
		if (f->states[block] != KCOVDBG_STATE_EXECUTED)
			continue;
		next = SIZE_MAX;
		if (!is_exit(f, block) && !(f->block_flags[block] & KCOVDBG_BLOCK_CALL))
			next = only_neighbor(f, block, true);
		if (next != SIZE_MAX)
			include(f, next);
		next = is_entry(f, block) ? SIZE_MAX : only_neighbor(f, block, false);
		if (next != SIZE_MAX)
			include(f, next);
	}
}

/* Find the states of the function's blocks. */
static void find_states(struct kcovdbg_states *states, uint32_t function)
{
	const struct kcovdbg_trace *trace = states->trace;
	struct function *f = &states->function;
	uint32_t quality = trace->quality;
	bool enables = quality & KCOVDBG_TRACE_ENABLES && f->flags & KCOVDBG_FUNCTION_ENABLES, is_inside, returns, is_placed;
	size_t block, i;

	is_inside = quality & KCOVDBG_TRACE_PLACED && place_task(states, function);
	place_records(states);
	if (f->flags & KCOVDBG_FUNCTION_VOID || f->is_contradicted) {
		use_points(states);
		return;
	}
	turn_edges(f);
	if (is_inside && !was_recorded(f)) {
		/* It was entered before the trace began. */
		use_points(states);
		return;
	}
	/* Whether it is known that the task left each block that it entered, except for the blocks that it is in. */
	is_placed = quality & (KCOVDBG_TRACE_ENDED | KCOVDBG_TRACE_PLACED);
	returns = is_placed && !states->has_ended;
	for (block = 0; block < f->block_count; block++) {
		if (f->block_flags[block] & KCOVDBG_BLOCK_CALL && (!returns || enables)) {
			f->block_flags[block] |= KCOVDBG_BLOCK_EXIT;
			if (enables && block + 1 < f->block_count)
				f->block_flags[block + 1] |= KCOVDBG_BLOCK_ENTRY;
		}
		f->live_in[block] = f->live_out[block] = 0;
	}
	for (block = 0; block < f->block_count; block++)
		for (i = first_edge(f, block); i < f->edge_ends[block]; i++)
			if (f->edges[i] != block) {
				f->live_out[block]++;
				f->live_in[f->edges[i]]++;
			}
	memset(f->is_queued, 0, f->block_count);
	f->queue_count = 0;
	for (block = 0; block < f->block_count; block++) {
		if (f->stops[block])
			include(f, block);
		if (f->records[block] == NO_RECORDS)
			continue;
		if (f->records[block])
			include(f, block);
		else if (quality & KCOVDBG_TRACE_COMPLETE && f->states[block] == KCOVDBG_STATE_UNKNOWN)
			exclude(f, block);
	}
	infer(f, is_placed, quality & KCOVDBG_TRACE_COMPLETE);
	if (returns && !f->is_contradicted && (quality & KCOVDBG_TRACE_COUNTED) && (quality & KCOVDBG_TRACE_COMPLETE)) {
		find_flows(f);
		f->has_flows = true;
		if (!f->is_contradicted)
			infer(f, is_placed, quality & KCOVDBG_TRACE_COMPLETE);
	}
	f->leaves = is_placed;
	for (block = 0; block < f->block_count; block++)
		if (f->stops[block] && f->states[block] == KCOVDBG_STATE_STOPPED)
			f->states[block] = KCOVDBG_STATE_EXECUTED;
	if (f->is_contradicted)
		use_points(states);
	else if (!is_placed)
		leave_open(states);
}

static bool has_code(const struct line *line)
{
	return (line->own.flags | line->called.flags) & SEEN_CODE;
}

/* The line if a wanted function has code of it, NULL if none has. */
static struct line *find_line(struct kcovdbg_states *states, uint32_t file, uint32_t line)
{
	if (file >= states->file_room || line >= states->files[file].room || !has_code(&states->files[file].lines[line]))
		return NULL;
	return &states->files[file].lines[line];
}

static struct line *line_at(struct kcovdbg_states *states, uint32_t file, uint32_t line)
{
	struct file *of;
	size_t before = states->file_room;

	if (file >= before) {
		if (!grow(&states->files, &states->file_room, (size_t)file + 1, sizeof(*states->files)))
			return NULL;
		memset(states->files + before, 0, (states->file_room - before) * sizeof(*states->files));
	}
	of = &states->files[file];
	before = of->room;
	if (line >= before) {
		if (!grow(&of->lines, &of->room, (size_t)line + 1, sizeof(*of->lines)))
			return NULL;
		memset(of->lines + before, 0, (of->room - before) * sizeof(*of->lines));
	}
	return &of->lines[line];
}

static bool is_exact(const struct kcovdbg_states *states)
{
	return states->trace->quality & KCOVDBG_TRACE_EXACT;
}

/* Whether what a function executes can be in the trace. */
static bool is_recorded(const struct kcovdbg_states *states)
{
	return is_exact(states) || states->function.flags & KCOVDBG_FUNCTION_INSTRUMENTED;
}

static bool is_void(const struct function *f)
{
	return f->flags & KCOVDBG_FUNCTION_VOID || f->is_contradicted;
}

/* What a block says of lines that have code in it. */
struct seen_block {
	uint8_t seen, begins;
	bool is_begun;	  /* An exception may have interrupted its first instruction. */
	bool is_replaced; /* The kernel put other instructions, or none, in the place of all but the first. */
	uint64_t hits;
};

static struct seen_block see_block(const struct kcovdbg_states *states, size_t block)
{
	const struct kcovdbg_trace *trace = states->trace;
	const struct function *f = &states->function;
	struct seen_block one = { .begins = SEEN_OTHER_BEGINNING };

	switch (f->states[block]) {
	case KCOVDBG_STATE_EXECUTED:
		one.seen = SEEN_EXECUTED;
		one.begins = SEEN_BEGINNING;
		one.hits = f->records[block] && f->records[block] != NO_RECORDS ? f->records[block] : 1;
		break;
	case KCOVDBG_STATE_NOT_EXECUTED:
		one.seen = SEEN_NOT_EXECUTED;
		break;
	default:
		one.seen = is_void(f) ? SEEN_VOID : SEEN_UNKNOWN;
	}
	one.is_replaced = f->block_flags[block] & KCOVDBG_BLOCK_NO_LINES && one.seen == SEEN_EXECUTED;
	if (!is_recorded(states)) {
		one.seen = SEEN_OUTSIDE;
		one.begins = 0;
	}
	one.is_begun = trace->quality & KCOVDBG_TRACE_PLACED && one.seen == SEEN_NOT_EXECUTED &&
		       has_offset(trace->positions, trace->position_count, f->starts[block]);
	return one;
}

/*
 * Add what a block says of a line. word: with KCOVDBG_ROW_STATEMENT if a statement of the line begins there, and with KCOVDBG_ROW_CODE if it has
 * code, from an offset on.
 */
static void see_code(struct seen *seen, const struct seen_block *one, uint32_t word, uint32_t offset)
{
	bool is_lost = one->is_replaced && offset;

	if (word & KCOVDBG_ROW_STATEMENT && !is_lost)
		seen->flags |= one->begins;
	if (!(word & KCOVDBG_ROW_CODE))
		return;
	if (is_lost || (one->is_begun && !offset))
		seen->flags |= SEEN_UNKNOWN;
	else
		seen->flags |= one->seen;
	if (!is_lost && one->hits > seen->hits)
		seen->hits = one->hits;
}

/* The line, if anything is to be said of it; NULL if not, or when out of memory. */
static struct line *wanted_line(struct kcovdbg_states *states, uint32_t file, uint32_t number)
{
	struct line *line = states->is_other ? find_line(states, file, number) : line_at(states, file, number);

	states->is_full |= !line && !states->is_other;
	return line;
}

static void add_lines(struct kcovdbg_states *states)
{
	struct function *f = &states->function;
	size_t block, i;

	for (block = 0; block < f->block_count; block++) {
		struct seen_block one = see_block(states, block);

		for (i = block ? f->line_ends[block - 1] : 0; i < f->line_ends[block]; i++) {
			struct line *line = wanted_line(states, f->line_files[i], f->lines[i] & KCOVDBG_MAX_LINE);

			if (!line)
				continue;
			states->totals.lines += f->lines[i] & KCOVDBG_ROW_CODE && !has_code(line);
			see_code(&line->own, &one, f->lines[i], f->line_offsets[i]);
		}
		for (i = block ? f->call_ends[block - 1] : 0; i < f->call_ends[block]; i++) {
			struct line *line = wanted_line(states, f->call_files[i], f->calls[i] & KCOVDBG_MAX_LINE);

			if (!line)
				continue;
			states->totals.lines += !has_code(line);
			see_code(&line->called, &one, f->calls[i] | KCOVDBG_ROW_CODE, f->call_offsets[i]);
		}
	}
}

/* Put the last line of a block with code, or the first one of a block and those behind it; UINT32_MAX and 0 where there is none. */
static void find_code_line(const struct function *f, size_t block, bool is_last, uint32_t *file, uint32_t *line)
{
	size_t first = block ? f->line_ends[block - 1] : 0, end = is_last ? f->line_ends[block] : f->line_count, i;

	*file = UINT32_MAX;
	*line = 0;
	for (i = first; i < end && (is_last || *file == UINT32_MAX); i++)
		if (f->lines[i] & KCOVDBG_ROW_CODE) {
			*file = f->line_files[i];
			*line = f->lines[i] & KCOVDBG_MAX_LINE;
		}
}

static void note_entries(struct kcovdbg_states *states, uint32_t function)
{
	const struct kcovdbg_encoded *encoded = states->encoded;
	struct function *f = &states->function;
	uint32_t quality = states->trace->quality, i;
	bool was_executed = false, is_excluded = true;
	size_t block;

	for (block = 0; block < f->block_count; block++) {
		was_executed |= f->states[block] == KCOVDBG_STATE_EXECUTED || f->states[block] == KCOVDBG_STATE_STOPPED;
		is_excluded = is_excluded && (f->states[block] == KCOVDBG_STATE_NOT_EXECUTED || !is_entry(f, block));
	}
	for (i = function ? states->part_ends[function - 1] : 0; i < states->part_ends[function]; i++) {
		struct entry *entry = &states->entries[states->parts[i]];
		bool is_missed;

		for (block = 0; block < f->block_count && f->starts[block] != encoded->part_start[states->parts[i]]; block++)
			;
		if (block == f->block_count)
			continue;
		find_code_line(f, block, false, &entry->file, &entry->line);
		if (!is_recorded(states)) {
			entry->state = KCOVDBG_FUNCTION_OUTSIDE;
			continue;
		}
		/* Without edges: a point at its start without a record. */
		is_missed = f->flags & KCOVDBG_FUNCTION_VOID && !f->records[block] && quality & KCOVDBG_TRACE_COMPLETE &&
			    quality & (KCOVDBG_TRACE_ENDED | KCOVDBG_TRACE_PLACED);
		if (was_executed) {
			bool is_counted = f->states[block] == KCOVDBG_STATE_EXECUTED && f->records[block] != NO_RECORDS;

			entry->state = KCOVDBG_FUNCTION_EXECUTED;
			entry->hits = is_counted && f->records[block] ? f->records[block] : 1;
		} else if (is_excluded || is_missed) {
			entry->state = KCOVDBG_FUNCTION_NOT_EXECUTED;
		}
	}
}

/* Put how often a block was left by an edge; false where it is unknown whether it was. */
static bool find_side(const struct function *f, size_t block, size_t edge, size_t other, uint64_t *hits)
{
	size_t to = f->edges[edge], i;
	uint64_t records;

	if (f->has_flows && f->flows[edge] != NO_RECORDS) {
		*hits = f->flows[edge];
		return true;
	}
	*hits = 0;
	if (f->states[to] == KCOVDBG_STATE_NOT_EXECUTED)
		return true;
	records = f->records[block];
	if (!f->leaves || is_end(f, block) || f->states[f->edges[other]] != KCOVDBG_STATE_NOT_EXECUTED) {
		if (f->states[to] != KCOVDBG_STATE_EXECUTED || is_entry(f, to) || to == block)
			return false;
		for (i = first_from(f, to); i < f->from_ends[to]; i++)
			if (f->from[i] != block && f->states[f->from[i]] != KCOVDBG_STATE_NOT_EXECUTED)
				return false;
		records = f->records[to];
	}
	*hits = records && records != NO_RECORDS ? records : 1;
	return true;
}

/* Return the state of a branch, with how often it was left by each edge. */
static uint8_t judge_branch(const struct function *f, size_t block, uint64_t hits[2])
{
	size_t first = first_edge(f, block);

	if (is_void(f))
		return KCOVDBG_BRANCH_UNKNOWN;
	if (f->states[block] == KCOVDBG_STATE_NOT_EXECUTED)
		return KCOVDBG_BRANCH_NOT_EXECUTED;
	if (f->states[block] == KCOVDBG_STATE_EXECUTED && find_side(f, block, first, first + 1, &hits[0]) &&
	    find_side(f, block, first + 1, first, &hits[1]))
		return KCOVDBG_BRANCH_EXECUTED;
	hits[0] = hits[1] = 0;
	return KCOVDBG_BRANCH_UNKNOWN;
}

static void add_branches(struct kcovdbg_states *states, uint32_t function)
{
	struct function *f = &states->function;
	const uint32_t other_flags = KCOVDBG_BLOCK_NO_LINES | KCOVDBG_BLOCK_CALL | KCOVDBG_BLOCK_INDIRECT;
	size_t block;

	if (!is_recorded(states))
		return;
	for (block = 0; block < f->block_count; block++) {
		size_t first = first_edge(f, block);
		struct branch branch = { .function = function };

		if (!(f->block_flags[block] & KCOVDBG_BLOCK_FALLS) || f->block_flags[block] & other_flags ||
		    f->edge_ends[block] - first != 2 || f->edges[first] == f->edges[first + 1])
			continue;
		find_code_line(f, block, true, &branch.file, &branch.line);
		if (branch.file == UINT32_MAX)
			continue;
		branch.state = judge_branch(f, block, branch.hits);
		if (!grow(&states->branches, &states->branch_room, states->totals.branches + 1, sizeof(branch))) {
			states->is_full = true;
			return;
		}
		states->branches[states->totals.branches++] = branch;
	}
}

/* Whether the compiler moved all code of a line that was executed: its statements begin elsewhere. */
static bool is_moved(uint8_t seen)
{
	return seen & SEEN_EXECUTED && !(seen & SEEN_BEGINNING) && seen & SEEN_OTHER_BEGINNING;
}

/* Whether a line's own code says that it was executed. */
static bool is_own(const struct line *line)
{
	return line->own.flags & SEEN_EXECUTED && !is_moved(line->own.flags);
}

/* The state of a line: of its own code, and where that was not executed, was moved, or is none, of what was inlined at it as well. */
static uint8_t state_of(const struct line *line)
{
	uint8_t seen = line->own.flags;

	if (!is_own(line))
		seen |= line->called.flags;
	if (is_moved(seen))
		return KCOVDBG_LINE_MOVED;
	if (seen & SEEN_EXECUTED)
		return seen & SEEN_NOT_EXECUTED ? KCOVDBG_LINE_PARTLY : KCOVDBG_LINE_EXECUTED;
	if (seen & SEEN_VOID)
		return KCOVDBG_LINE_EDGES;
	if (seen & SEEN_UNKNOWN)
		return KCOVDBG_LINE_UNDECIDED;
	if (seen & SEEN_NOT_EXECUTED)
		return seen & SEEN_OUTSIDE ? KCOVDBG_LINE_OUTSIDE : KCOVDBG_LINE_NOT_EXECUTED;
	return KCOVDBG_LINE_NOT_INSTRUMENTED;
}

static bool has_record(const struct kcovdbg_states *states, uint32_t function)
{
	const struct kcovdbg_encoded *encoded = states->encoded;
	unsigned int first = is_exact(states) ? 0 : 1;
	uint32_t i;

	for (i = function ? states->part_ends[function - 1] : 0; i < states->part_ends[function]; i++) {
		uint64_t start = encoded->part_start[states->parts[i]];
		size_t at = lower_bound(states->trace->records, states->trace->record_count, start + first);

		if (at < states->trace->record_count &&
		    states->trace->records[at] < start + first + encoded->part_size[states->parts[i]])
			return true;
	}
	return false;
}

static bool group_parts(struct kcovdbg_states *states)
{
	const struct kcovdbg_encoded *encoded = states->encoded;
	size_t i;

	states->part_ends = calloc(encoded->function_count + 2, sizeof(*states->part_ends));
	states->parts = malloc((encoded->part_count + 1) * sizeof(*states->parts));
	if (!states->part_ends || !states->parts)
		return false;
	for (i = 0; i < encoded->part_count; i++)
		if (encoded->part_function[i] < encoded->function_count)
			states->part_ends[encoded->part_function[i] + 1]++;
	for (i = 0; i < encoded->function_count; i++)
		states->part_ends[i + 1] += states->part_ends[i];
	for (i = 0; i < encoded->part_count; i++)
		if (encoded->part_function[i] < encoded->function_count)
			states->parts[states->part_ends[encoded->part_function[i]]++] = i;
	return true;
}

/* Whether a function is one in which tasks end; damaged ones are not. */
static bool ends_task(const struct kcovdbg_encoded *encoded, size_t function)
{
	uint64_t start = function ? encoded->code_end[function - 1] : 0, end = encoded->code_end[function];
	struct cursor cursor = { 0 };

	if (start >= end || end > encoded->code_size)
		return false;
	cursor.at = encoded->code + start;
	cursor.end = encoded->code + end;
	return get(&cursor) & KCOVDBG_FUNCTION_ENDS_TASK;
}

static bool is_in_part(const struct kcovdbg_encoded *encoded, uint64_t address)
{
	size_t part = lower_bound(encoded->part_start, encoded->part_count, address + 1);

	return part && address - encoded->part_start[part - 1] < encoded->part_size[part - 1];
}

static void count_unmatched(struct kcovdbg_states *states)
{
	const struct kcovdbg_trace *trace = states->trace;
	size_t i;

	for (i = 0; i < trace->record_count; i++) {
		size_t at;

		if (is_exact(states)) {
			states->totals.unmatched += !is_in_part(states->encoded, trace->records[i]);
			continue;
		}
		at = lower_bound(trace->points, trace->point_count, trace->records[i]);

		states->totals.unmatched += at == trace->point_count || trace->points[at] != trace->records[i] ||
					    !(trace->kinds >> (trace->chains[at] & KCOVDBG_CHAIN_KIND_MASK) & 1);
	}
}

/* Find the states of a function's blocks; false when it is damaged, and then it has none. */
static bool find_block_states(struct kcovdbg_states *states, uint32_t function)
{
	struct function *f = &states->function;
	size_t block;

	if (function >= states->encoded->function_count || !read_function(states, function)) {
		f->flags = f->block_count = f->edge_count = f->line_count = f->call_count = 0;
		f->is_contradicted = false;
		return false;
	}
	if (is_exact(states)) {
		find_exact_states(states);
	} else if (f->flags & KCOVDBG_FUNCTION_INSTRUMENTED) {
		find_states(states, function);
	} else {
		for (block = 0; block < f->block_count; block++) {
			f->states[block] = KCOVDBG_STATE_UNKNOWN;
			f->records[block] = NO_RECORDS;
		}
	}
	return true;
}

/* Find the states of a function's blocks, and add those of its lines. */
static void judge(struct kcovdbg_states *states, uint32_t function)
{
	const struct function *f = &states->function;

	if (!find_block_states(states, function)) {
		states->totals.damaged++;
		return;
	}
	states->totals.contradictions += f->is_contradicted;
	states->totals.unknown_edges += f->flags & KCOVDBG_FUNCTION_VOID && has_record(states, function);
	add_lines(states);
	if (states->is_other)
		return;
	note_entries(states, function);
	add_branches(states, function);
}

struct kcovdbg_states *kcovdbg_states_new(const struct kcovdbg_encoded *encoded, const struct kcovdbg_trace *trace,
					  const uint32_t *functions, size_t function_count, int with_others)
{
	struct kcovdbg_states *states = calloc(1, sizeof(*states));
	size_t i, count = functions ? function_count : encoded->function_count;

	if (!states)
		return NULL;
	states->encoded = encoded;
	states->trace = trace;
	states->entries = calloc(encoded->part_count + 1, sizeof(*states->entries));
	states->is_full = !states->entries || !group_parts(states);
	for (i = 0; !states->is_full && i < encoded->part_count; i++)
		states->entries[i].file = UINT32_MAX;
	for (i = 0; !states->is_full && !is_exact(states) && !states->has_ended && i < encoded->function_count; i++)
		states->has_ended = ends_task(encoded, i) && has_record(states, i);
	count_unmatched(states);
	for (i = 0; !states->is_full && i < count; i++)
		judge(states, functions ? functions[i] : i);
	if (functions && with_others && !states->is_full) {
		states->is_wanted = calloc(encoded->function_count + 1, 1);
		states->is_full = !states->is_wanted;
		states->is_other = true;
		for (i = 0; !states->is_full && i < count; i++)
			if (functions[i] < encoded->function_count)
				states->is_wanted[functions[i]] = 1;
		for (i = 0; !states->is_full && i < encoded->function_count; i++)
			if (!states->is_wanted[i])
				judge(states, i);
	}
	if (states->is_full) {
		kcovdbg_states_free(states);
		return NULL;
	}
	return states;
}

static void free_function(struct function *f)
{
	free(f->starts);
	free(f->sizes);
	free(f->edge_ends);
	free(f->line_ends);
	free(f->from_ends);
	free(f->block_flags);
	free(f->states);
	free(f->is_queued);
	free(f->reached);
	free(f->records);
	free(f->live_in);
	free(f->live_out);
	free(f->queue);
	free(f->edges);
	free(f->from);
	free(f->flows);
	free(f->onward);
	free(f->origin);
	free(f->last_groups);
	free(f->last_origins);
	free(f->groups);
	free(f->arrivals);
	free(f->is_shared);
	free(f->group_flows);
	free(f->flow_of);
	free(f->line_files);
	free(f->lines);
	free(f->line_offsets);
	free(f->call_ends);
	free(f->call_files);
	free(f->calls);
	free(f->call_offsets);
	free(f->stops);
}

size_t kcovdbg_block_starts(const struct kcovdbg_encoded *encoded, uint32_t *starts, size_t room)
{
	struct kcovdbg_states states = { .encoded = encoded };
	size_t function, block, count = 0;

	states.is_full = !group_parts(&states);
	for (function = 0; !states.is_full && function < encoded->function_count; function++) {
		if (!read_function(&states, function))
			continue;
		for (block = 0; block < states.function.block_count; block++, count++)
			if (count < room)
				starts[count] = states.function.starts[block];
	}
	free_function(&states.function);
	free(states.part_ends);
	free(states.parts);
	return states.is_full ? SIZE_MAX : count;
}

void kcovdbg_states_free(struct kcovdbg_states *states)
{
	size_t i;

	if (!states)
		return;
	for (i = 0; i < states->file_room; i++)
		free(states->files[i].lines);
	free(states->files);
	free(states->is_wanted);
	free(states->entries);
	free(states->branches);
	free(states->part_ends);
	free(states->parts);
	free_function(&states->function);
	free(states);
}

void kcovdbg_states_totals(const struct kcovdbg_states *states, struct kcovdbg_state_totals *totals)
{
	*totals = states->totals;
}

void kcovdbg_states_lines(const struct kcovdbg_states *states, uint32_t *files, uint32_t *lines, uint8_t *line_states,
			  uint64_t *hits)
{
	size_t file, line, at = 0;

	for (file = 0; file < states->file_room; file++)
		for (line = 0; line < states->files[file].room; line++) {
			const struct line *found = &states->files[file].lines[line];

			if (!has_code(found))
				continue;
			files[at] = file;
			lines[at] = line;
			line_states[at] = state_of(found);
			hits[at++] = is_own(found) || !found->called.hits ? found->own.hits : found->called.hits;
		}
}

void kcovdbg_states_functions(const struct kcovdbg_states *states, uint8_t *function_states, uint64_t *hits, uint32_t *files,
			      uint32_t *lines)
{
	size_t i;

	for (i = 0; i < states->encoded->part_count; i++) {
		function_states[i] = states->entries[i].state;
		hits[i] = states->entries[i].hits;
		files[i] = states->entries[i].file;
		lines[i] = states->entries[i].line;
	}
}

void kcovdbg_states_branches(const struct kcovdbg_states *states, uint32_t *functions, uint32_t *files, uint32_t *lines,
			     uint8_t *branch_states, uint64_t *hits)
{
	size_t i;

	for (i = 0; i < states->totals.branches; i++) {
		functions[i] = states->branches[i].function;
		files[i] = states->branches[i].file;
		lines[i] = states->branches[i].line;
		branch_states[i] = states->branches[i].state;
		hits[2 * i] = states->branches[i].hits[0];
		hits[2 * i + 1] = states->branches[i].hits[1];
	}
}

int kcovdbg_states_blocks(struct kcovdbg_states *states, uint32_t function, struct kcovdbg_function_blocks *blocks)
{
	const struct function *f = &states->function;

	find_block_states(states, function);
	if (states->is_full)
		return -1;
	*blocks = (struct kcovdbg_function_blocks){
		.flags = f->flags,
		.block_count = f->block_count,
		.edge_count = f->edge_count,
		.line_count = f->line_count,
		.call_count = f->call_count,
		.starts = f->starts,
		.sizes = f->sizes,
		.block_flags = f->block_flags,
		.states = f->states,
		.records = f->records,
		.edge_ends = f->edge_ends,
		.edges = f->edges,
		.line_ends = f->line_ends,
		.line_files = f->line_files,
		.lines = f->lines,
		.call_ends = f->call_ends,
		.call_files = f->call_files,
		.calls = f->calls,
		.is_contradicted = f->is_contradicted,
	};
	return 0;
}
