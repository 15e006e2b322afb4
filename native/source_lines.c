/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "source_lines.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "block_states.h"

#define NO_LINE UINT64_MAX

static bool was_executed(uint8_t state)
{
	return state == KCOVDBG_LINE_EXECUTED || state == KCOVDBG_LINE_PARTLY;
}

static uint8_t state_of_points(uint32_t points, uint32_t covered)
{
	if (!covered)
		return KCOVDBG_LINE_UNDECIDED;
	return covered < points ? KCOVDBG_LINE_PARTLY : KCOVDBG_LINE_EXECUTED;
}

/* Put a line at an index. point and code are the indexes of its points and of its code, NO_LINE where it has none. */
static void put_line(const struct kcovdbg_source_lines *lines, uint64_t point, uint64_t code,
		     const struct kcovdbg_joined_lines *joined, size_t at)
{
	uint32_t points = 0, covered = 0;
	uint64_t hits = 0;
	uint8_t state;

	if (point != NO_LINE) {
		points = lines->points[point];
		covered = lines->covered[point];
		hits = lines->point_hits[point];
		joined->line[at] = lines->point_line[point];
	}
	if (code == NO_LINE) {
		state = state_of_points(points, covered);
	} else {
		joined->line[at] = lines->code_line[code];
		state = lines->code_state[code];
		if (state == KCOVDBG_LINE_NOT_EXECUTED && covered)
			/* Code of a module that was inlined there was executed. */
			state = KCOVDBG_LINE_PARTLY;
		else if ((!points || was_executed(state)) && lines->code_hits[code] > hits)
			hits = lines->code_hits[code];
	}
	joined->points[at] = points;
	joined->covered[at] = covered;
	joined->state[at] = state;
	joined->hits[at] = hits;
}

/* Join the lines of a file from an index on. Return the one behind the last. */
static size_t join_file(const struct kcovdbg_source_lines *lines, const struct kcovdbg_source_file *file,
			const struct kcovdbg_joined_lines *joined, size_t at)
{
	size_t point = file->point, code = file->code;

	for (;;) {
		uint64_t point_line = NO_LINE, code_line = NO_LINE;

		/* A line has no points if no chain has its frames. */
		while (point < file->point_end && !lines->points[point])
			point++;
		if (point < file->point_end)
			point_line = lines->point_line[point];
		if (code < file->code_end)
			code_line = lines->code_line[code];
		if (point_line == NO_LINE && code_line == NO_LINE)
			return at;
		put_line(lines, point_line <= code_line ? point++ : NO_LINE, code_line <= point_line ? code++ : NO_LINE, joined,
			 at++);
	}
}

/* The first line of a function, NO_LINE behind the last function of its file. */
static uint64_t first_line(const struct kcovdbg_source_lines *lines, const struct kcovdbg_source_file *file, size_t function)
{
	return function < file->function_end ? lines->function_line[function] : NO_LINE;
}

/* Put whether the lines of a function, from an index up to another one, are decided, and the hits of the first that ran. */
static void put_function(const struct kcovdbg_joined_lines *joined, size_t first, size_t end, size_t function)
{
	uint8_t has = 0;
	uint64_t hits = 0;

	for (size_t at = first; at < end; at++) {
		uint8_t state = joined->state[at];

		if (state >= KCOVDBG_LINE_UNDECIDED) {
			has |= KCOVDBG_HAS_UNKNOWN;
		} else if (state == KCOVDBG_LINE_NOT_EXECUTED || was_executed(state)) {
			has |= KCOVDBG_HAS_DECIDED;
			hits = hits ? hits : joined->hits[at];
		}
	}
	joined->function_lines[function] = has;
	joined->function_hits[function] = hits;
}

/* Find the index of the first line from a number on. */
static size_t skip_lines(const struct kcovdbg_joined_lines *joined, size_t at, size_t end, uint64_t number)
{
	while (at < end && joined->line[at] < number)
		at++;
	return at;
}

void kcovdbg_join_lines(const struct kcovdbg_source_lines *lines, struct kcovdbg_source_file *files, size_t file_count,
			const struct kcovdbg_joined_lines *joined)
{
	size_t end = 0;

	for (struct kcovdbg_source_file *file = files; file < files + file_count; file++) {
		size_t at = end;

		end = join_file(lines, file, joined, at);
		file->joined_end = end;
		/* A function has the lines up to the next one. Those in front of the first one are in none. */
		at = skip_lines(joined, at, end, first_line(lines, file, file->function));
		for (size_t function = file->function; function < file->function_end; function++) {
			size_t first = at;

			at = skip_lines(joined, at, end, first_line(lines, file, function + 1));
			put_function(joined, first, at, function);
		}
	}
}

size_t kcovdbg_number_lines(const uint32_t *file, const uint32_t *line, size_t count, size_t file_count, uint32_t *lines,
			    uint32_t *ends, uint32_t *of_frame)
{
	struct keyed *frames = malloc((count + 1) * sizeof(*frames));
	size_t found = 0, ended = 0, i;
	uint32_t last_file = 0;

	for (i = 0; frames && i < count; i++)
		frames[i] = (struct keyed){ (uint64_t)file[i] << 32 | line[i], i };
	if (!frames || !sort_keyed(frames, count)) {
		free(frames);
		return SIZE_MAX;
	}
	for (i = 0; i < count; i++) {
		uint32_t frame = frames[i].number;

		of_frame[frame] = UINT32_MAX;
		if (!file[frame] || file[frame] > file_count || !line[frame])
			continue;
		for (; ended + 1 < file[frame]; ended++)
			ends[ended] = found;
		if (file[frame] != last_file || line[frame] != lines[found - 1])
			lines[found++] = line[frame];
		last_file = file[frame];
		of_frame[frame] = found - 1;
	}
	for (; ended < file_count; ended++)
		ends[ended] = found;
	free(frames);
	return found;
}

void kcovdbg_mark_parts(uint64_t base, const uint32_t *starts, const uint32_t *sizes, size_t count, const uint64_t *pcs,
			size_t pc_count, uint8_t *marks)
{
	size_t at = 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t start = base + starts[i];

		/* A PC is behind its call. */
		while (at < pc_count && pcs[at] <= start)
			at++;
		marks[i] = at < pc_count && pcs[at] - start <= sizes[i];
	}
}
