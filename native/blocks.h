/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Blocks of an image's functions: code that runs from its first to its last instruction if it starts at all. docs/executed-lines.md
 * has the definitions.
 *
 * All edges between blocks are found, and more: where it is not known whether control goes to a place, there is an edge, and where
 * it is not known whether it leaves or enters a function, the block is an exit or an entry. An edge too many makes an inference
 * from blocks say less, one too few would make it wrong.
 */
#ifndef KCOVDBG_BLOCKS_H
#define KCOVDBG_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

#include "branches.h"

/* cdef */
/* The contents of a section, at its address. */
struct kcovdbg_area {
	uint64_t address;
	const uint8_t *data;
	size_t size;
};

/* What instructions don't show, by their addresses. */
enum kcovdbg_fact_kind {
	KCOVDBG_FACT_EDGE = 1,	/* Control may go to the value as well, and the next instruction may follow. */
	KCOVDBG_FACT_EXCEPTION, /* It may go to the value in place of executing the instruction. */
	KCOVDBG_FACT_WARNING,	/* A trap that the next instruction follows. */
	KCOVDBG_FACT_BUG,	/* A trap that nothing follows. */
	KCOVDBG_FACT_PATCHED,	/* Code up to the value is replaced when the kernel runs. */
	KCOVDBG_FACT_LEADS,	/* Code that replaces this may go to the value; 0 for a return or an unknown place. */
};
struct kcovdbg_fact {
	uint64_t address, value;
	uint32_t kind;
};

/* What a call of a function, or a jump to it, means. */
enum kcovdbg_role {
	KCOVDBG_ROLE_CALLBACK = 1, /* A function of the sanitizer: it returns, and nothing is recorded in it. */
	KCOVDBG_ROLE_RETURN,	   /* A jump there is a return. */
	KCOVDBG_ROLE_INDIRECT,	   /* A call or jump through a register. */
	KCOVDBG_ROLE_BOUNDARY,	   /* Recording may begin or end in it. */
	KCOVDBG_ROLE_NO_RETURN,
};
struct kcovdbg_called {
	uint64_t address;
	uint32_t role;
};

/* A part of a function: each has one, and a second one if the compiler put its cold code elsewhere. */
struct kcovdbg_part {
	uint64_t start, end;
	uint64_t function;
};

/* All arrays are ascending by address; parts do not overlap. They must outlive what uses them. */
struct kcovdbg_image {
	const struct kcovdbg_architecture *architecture; /* NULL for x86-64. */
	const struct kcovdbg_area *texts;
	size_t text_count;
	const struct kcovdbg_area *stubs; /* Code that only jumps from functions lead to, and that leads back: .altinstr_aux. */
	size_t stub_count;
	const struct kcovdbg_area *data; /* That may have pointers to code. */
	size_t data_count;
	const uint64_t *pointers;	/* Further pointers, in any order. */
	const uint64_t *pointer_places; /* Where each of them is. */
	size_t pointer_count;
	const uint64_t *starts; /* Starts of functions, by their symbols. */
	size_t start_count;
	const struct kcovdbg_part *parts;
	size_t part_count, function_count;
	const uint8_t *function_flags; /* The known flags of each function. */
	const struct kcovdbg_fact *facts;
	size_t fact_count;
	const struct kcovdbg_called *called;
	size_t called_count;
};

enum kcovdbg_function_flag {
	KCOVDBG_FUNCTION_VOID = 1,	    /* Some of its edges are unknown. Each callback begins a block. */
	KCOVDBG_FUNCTION_NO_RETURN = 2,	    /* It never returns. */
	KCOVDBG_FUNCTION_ENABLES = 4,	    /* A system call that enables KCOV goes through it. */
	KCOVDBG_FUNCTION_INSTRUMENTED = 16, /* It calls callbacks, or ends in jumps to them. */
	KCOVDBG_FUNCTION_ENDS_TASK = 8,	    /* Callers of a task that ends in it are not returned to. */
};

enum kcovdbg_block_flag {
	KCOVDBG_BLOCK_ENTRY = 1, /* Control may come from outside of the function, or from an unknown place. */
	KCOVDBG_BLOCK_EXIT = 2,	 /* It may leave the function for good. */
	KCOVDBG_BLOCK_FALLS = 4, /* There is an edge to the next block. */
	KCOVDBG_BLOCK_NO_LINES =
		8, /* Its instructions are never reached, or replaced when the kernel runs: which are executed is unknown. */
	KCOVDBG_BLOCK_CALL = 16,     /* It ends in a call. */
	KCOVDBG_BLOCK_INDIRECT = 32, /* It ends in a jump that may lead anywhere. */
	KCOVDBG_BLOCK_STOPPED = 64,  /* The task is at its end; in no table. */
};

struct kcovdbg_code;

/* Look over the code of an image. NULL when out of memory. */
struct kcovdbg_code *kcovdbg_code_new(const struct kcovdbg_image *image);
void kcovdbg_code_free(struct kcovdbg_code *code);

/* A part of code that was inlined: its first address, the one behind it, and the line of the call. */
struct kcovdbg_inlined {
	uint64_t start, end;
	uint32_t file, line;
	uint32_t
		outer; /* Of ordered ones: the nearest one before it that has its first address as well; UINT32_MAX for none. */
};

/* Rows of line tables: from each address to the next one, a line of a file; file UINT32_MAX for none. */
struct kcovdbg_rows {
	const uint64_t *addresses;
	const uint32_t *files;
	const uint32_t *lines; /* With KCOVDBG_ROW_STATEMENT where a statement begins. */
	size_t count;
	const struct kcovdbg_inlined *inlined; /* By address. */
	size_t inlined_count;
};
#define KCOVDBG_ROW_STATEMENT 0x80000000
#define KCOVDBG_ROW_CODE 0x40000000
#define KCOVDBG_MAX_LINE 0xfffff

/* Rows as some units have them; their files have other numbers: numbers[file], UINT32_MAX for those beyond the end. */
struct kcovdbg_unit_rows {
	const uint64_t *addresses;
	const uint32_t *files, *lines;
	size_t count;
	const uint32_t *numbers;
	size_t number_count;
	const struct kcovdbg_inlined *inlined;
	size_t inlined_count;
};

/* Put the sequences of rows, which end with rows without a file, in the order of their addresses, into arrays with room for so many;
   those at the address 0, of code that was not linked, and those that overlap others are left out, and sequences that the room does not
   suffice for. Return the number of rows; SIZE_MAX when out of memory. */
size_t kcovdbg_rows_order(const struct kcovdbg_unit_rows *parts, size_t part_count, uint64_t *addresses, uint32_t *files,
			  uint32_t *lines, size_t room);

/* Put what was inlined in the order of its addresses, into an array with room for all; parts of a unit are in the order of its debug
   info, outer ones first. Return the number; SIZE_MAX when out of memory. */
size_t kcovdbg_inlined_order(const struct kcovdbg_unit_rows *parts, size_t part_count, struct kcovdbg_inlined *inlined);

/*
 * The first number of a block's calls: how many it has that the last block has not, up to KCOVDBG_MANY_CALLS; whether some of those that both
 * have do not begin in it; and how many both have.
 */
#define KCOVDBG_MANY_CALLS 7
#define KCOVDBG_SOME_UNBEGUN 8
#define KCOVDBG_SAME_CALLS 4

struct kcovdbg_bytes_out {
	uint8_t *data;
	size_t size, room;
};

/* Append the blocks of functions from first up to end, in the form that block_states.h reads; ends[i] becomes where those of function
   first + i end. -1 when out of memory. May be called by several threads. */
int kcovdbg_code_encode(const struct kcovdbg_code *code, const struct kcovdbg_rows *rows, size_t first, size_t end,
			struct kcovdbg_bytes_out *out, uint64_t *ends);
void kcovdbg_bytes_free(struct kcovdbg_bytes_out *out);
/* cdef end */

#endif
