/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The lines of source files that have coverage points, joined with those that have code: a kernel has half a million. */
#ifndef KCOVDBG_SOURCE_LINES_H
#define KCOVDBG_SOURCE_LINES_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
/* Where the lines of a file are in the columns of struct kcovdbg_source_lines, and the one behind the last; all ascend. */
struct kcovdbg_source_file {
	uint32_t point, point_end;
	uint32_t code, code_end;
	uint32_t function, function_end;
	uint32_t joined_end;
};

struct kcovdbg_source_lines {
	/* Lines with points, how many each has, how many of these were executed, and the records of all of them. */
	const uint32_t *point_line, *points, *covered;
	const uint64_t *point_hits;
	/* Lines with code, and their states: enum kcovdbg_line_state. */
	const uint32_t *code_line;
	const uint8_t *code_state;
	const uint64_t *code_hits;
	/* The first lines of functions: each has the lines up to the next one. */
	const uint32_t *function_line;
};

/* Which lines a function has: some of which it is known whether they were executed, and some of which it is not. */
enum kcovdbg_function_lines {
	KCOVDBG_HAS_DECIDED = 1,
	KCOVDBG_HAS_UNKNOWN = 2,
};

/* Columns with room for all lines with points and all lines with code, and for all functions. */
struct kcovdbg_joined_lines {
	uint32_t *line, *points, *covered;
	uint8_t *state;
	uint64_t *hits;
	/* For each line on which functions begin: enum kcovdbg_function_lines, and the hits of their first executed line. */
	uint8_t *function_lines;
	uint64_t *function_hits;
};

/*
 * Number the lines of frames, by file and line. file has the number of each frame's file, from 1 up to file_count; 0 stands for no file
 * and for no line, and the frame gets UINT32_MAX. lines has room for a line of each frame; ends gets the end of each file's lines.
 * Return the number of lines; SIZE_MAX when out of memory.
 */
size_t kcovdbg_number_lines(const uint32_t *file, const uint32_t *line, size_t count, size_t file_count, uint32_t *lines,
			    uint32_t *ends, uint32_t *of_frame);
/* Put for each part of a function, with offsets from a base that ascend, whether it has the call of one of some ascending PCs. */
void kcovdbg_mark_parts(uint64_t base, const uint32_t *starts, const uint32_t *sizes, size_t count, const uint64_t *pcs,
			size_t pc_count, uint8_t *marks);
/* Join the lines of files, and put the end of each file's lines. A line that has points and no code was executed if a point of it was. */
void kcovdbg_join_lines(const struct kcovdbg_source_lines *lines, struct kcovdbg_source_file *files, size_t file_count,
			const struct kcovdbg_joined_lines *joined);
/* cdef end */

#endif
