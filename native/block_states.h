/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which blocks and lines a trace executed: those that its records name, and others that follow from them. docs/executed-lines.md has the
 * rules, and the conditions under which each is sound.
 */
#ifndef KCOVDBG_BLOCK_STATES_H
#define KCOVDBG_BLOCK_STATES_H

#include <stddef.h>
#include <stdint.h>

#include "blocks.h"

/* cdef */
/* Blocks as kcovdbg_code_encode() writes them, which may be damaged. Starts count from a base address. */
struct kcovdbg_encoded {
	const uint8_t *code;
	size_t code_size;
	const uint64_t *code_end;
	size_t function_count;
	const uint32_t *part_start, *part_size, *part_function;
	size_t part_count;
};

enum kcovdbg_trace_quality {
	KCOVDBG_TRACE_COMPLETE = 1, /* A point without a record was not executed. */
	KCOVDBG_TRACE_COUNTED = 2,  /* Each execution of a point left a record. */
	KCOVDBG_TRACE_ENDED = 4,    /* The task is in user space again. */
	KCOVDBG_TRACE_PLACED = 8,   /* The task is where the stack says. */
	KCOVDBG_TRACE_ENABLES = 16, /* It may begin or end inside the system call that enables or disables KCOV. */
	KCOVDBG_TRACE_EXACT = 32,   /* Records are addresses of executed instructions, of all functions. */
};

/* All offsets count from the base of the blocks, and ascend. */
struct kcovdbg_trace {
	const uint32_t *points; /* All points of the image: the addresses after calls of callbacks. */
	const uint64_t *chains; /* The chain of each point, whose lowest bits are the point's kind. */
	size_t point_count;
	uint32_t kinds;		 /* Bits for the kinds of points that the trace can have. */
	const uint32_t *records; /* Recorded points or addresses, each once, and how often each was recorded. */
	const uint64_t *counts;
	size_t record_count;
	uint32_t quality;
	const uint32_t *stack; /* Return addresses. */
	size_t stack_count;
	const uint32_t *positions; /* The next instruction, and those that exceptions on the stack interrupted. */
	size_t position_count;
	const uint32_t *listed; /* In an exact and complete trace: all instructions that may have been executed. */
	size_t listed_count;
	uint64_t last; /* The last record, UINT64_MAX where the order is unknown or it makes no difference. */
};

enum kcovdbg_block_state {
	KCOVDBG_STATE_UNKNOWN,
	KCOVDBG_STATE_NOT_EXECUTED,
	KCOVDBG_STATE_EXECUTED,
	KCOVDBG_STATE_STOPPED, /* Executed in part: the task is in it. */
};

enum kcovdbg_line_state {
	KCOVDBG_LINE_NO_CODE,
	KCOVDBG_LINE_EXECUTED,
	KCOVDBG_LINE_PARTLY,
	KCOVDBG_LINE_NOT_EXECUTED,
	KCOVDBG_LINE_NOT_INSTRUMENTED,
	/* The states for which execution is unknown, with the reason. */
	KCOVDBG_LINE_UNDECIDED,
	KCOVDBG_LINE_MOVED,   /* Code of it was executed, but none that begins a statement. */
	KCOVDBG_LINE_EDGES,   /* Edges of its function are unknown, or contradict the records. */
	KCOVDBG_LINE_OUTSIDE, /* Not executed as far as there are points; it has code in functions without any. */
};

struct kcovdbg_states;

/* Find the states of the blocks and lines of some functions, or of all; with_others: the code counts as well that other functions have of
   these lines. NULL when out of memory. The arguments must outlive the states. */
struct kcovdbg_states *kcovdbg_states_new(const struct kcovdbg_encoded *encoded, const struct kcovdbg_trace *trace,
					  const uint32_t *functions, size_t function_count, int with_others);
void kcovdbg_states_free(struct kcovdbg_states *states);

/* Put the offsets at which the blocks of all functions begin, ascending in each part, as far as there is room; return their number. SIZE_MAX
   when out of memory. */
size_t kcovdbg_block_starts(const struct kcovdbg_encoded *encoded, uint32_t *starts, size_t room);

enum kcovdbg_function_state {
	KCOVDBG_FUNCTION_UNKNOWN,
	KCOVDBG_FUNCTION_NOT_EXECUTED,
	KCOVDBG_FUNCTION_EXECUTED,
	KCOVDBG_FUNCTION_OUTSIDE, /* It has no points. */
};

enum kcovdbg_branch_state {
	KCOVDBG_BRANCH_UNKNOWN, /* Which of its two sides were taken is unknown. */
	KCOVDBG_BRANCH_NOT_EXECUTED,
	KCOVDBG_BRANCH_EXECUTED,
};

struct kcovdbg_state_totals {
	size_t lines;	       /* Lines with code. */
	size_t branches;       /* Blocks that are left in one of two ways. */
	size_t contradictions; /* Functions whose records contradict their edges. */
	size_t unknown_edges;  /* Functions with records, some of whose edges are unknown. */
	size_t damaged;	       /* Functions that cannot be read. */
	size_t unmatched;      /* Records without a point. */
};
void kcovdbg_states_totals(const struct kcovdbg_states *states, struct kcovdbg_state_totals *totals);
/* Put the lines, by file and number; hits is the largest number of records of a block of the line, 1 where that is inferred. */
void kcovdbg_states_lines(const struct kcovdbg_states *states, uint32_t *files, uint32_t *lines, uint8_t *line_states,
			  uint64_t *hits);

/* Put, for each part of the code, the state of its function, how often it was entered at the part's first address (1 where that is inferred,
   or it was entered elsewhere), and the file and line of that address; UINT32_MAX where it has none, and 0. */
void kcovdbg_states_functions(const struct kcovdbg_states *states, uint8_t *function_states, uint64_t *hits, uint32_t *files,
			      uint32_t *lines);
/* Put the branches: the function of each, its file and line, its state, and how often it was left by each of two sides: the next block,
   then the other one; 1 where that is inferred. */
void kcovdbg_states_branches(const struct kcovdbg_states *states, uint32_t *functions, uint32_t *files, uint32_t *lines,
			     uint8_t *branch_states, uint64_t *hits);

/* The blocks of a function. */
struct kcovdbg_function_blocks {
	uint32_t flags;
	size_t block_count, edge_count, line_count, call_count;
	const uint32_t *starts, *sizes;
	const uint8_t *block_flags, *states;
	const uint64_t *records;			/* Records of each block's points; UINT64_MAX where it has none. */
	const uint32_t *edge_ends, *edges;		/* The blocks that each leads to. */
	const uint32_t *line_ends, *line_files, *lines; /* With KCOVDBG_ROW_STATEMENT and KCOVDBG_ROW_CODE. */
	/* The lines that code of each block was inlined at, with KCOVDBG_ROW_STATEMENT. */
	const uint32_t *call_ends, *call_files, *calls;
	int is_contradicted;
};
/* Find the blocks of a function, whichever functions the states were made for; they are valid until the next call. -1 when out of memory. */
int kcovdbg_states_blocks(struct kcovdbg_states *states, uint32_t function, struct kcovdbg_function_blocks *blocks);
/* cdef end */

#endif
