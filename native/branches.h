/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls and jumps in machine code, by what they lead to. */
#ifndef KCOVDBG_BRANCHES_H
#define KCOVDBG_BRANCHES_H

#include <stddef.h>
#include <stdint.h>

#include "x86_decoder.h"

/* cdef */
/* A set of addresses. */
struct kcovdbg_targets;

/* NULL when out of memory. */
struct kcovdbg_targets *kcovdbg_targets_new(const uint64_t *addresses, size_t count);
void kcovdbg_targets_free(struct kcovdbg_targets *targets);

/* What branches of an architecture look like: symbols/arch.py documents the members, and has the numbers. There are
   64 forms at most. */
struct kcovdbg_piece {
	uint8_t shift, width, place, is_signed;
};
struct kcovdbg_form {
	uint64_t mask, value;
	uint32_t kind;
	uint8_t length, before, piece_count;
	struct kcovdbg_piece pieces[8];
};
struct kcovdbg_architecture {
	const struct kcovdbg_form *forms;
	size_t form_count;
	uint8_t step, is_big_endian, is_from_end, has_arm64_switches;
};

/* A search for branches of some kinds that lead to some targets, and the branches that it found. */
struct kcovdbg_search {
	uint32_t kinds;
	const struct kcovdbg_targets *targets; /* NULL for any. Branches through registers or memory have none. */
	uint64_t *backs;		       /* The address after each. */
	uint64_t *led;			       /* The target that each leads to; 0 through registers or memory. */
	size_t count, room[2];
};
void kcovdbg_searches_free(struct kcovdbg_search *searches, size_t count);

/* Add the branches that begin at start or later and before stop to each search that they are of. -1 when out of memory. */
int kcovdbg_branches(const struct kcovdbg_architecture *architecture, const unsigned char *text, size_t size, uint64_t address,
		     size_t start, size_t stop, struct kcovdbg_search *searches, size_t count);
/* Decode the instruction at the start of some bytes of this architecture, whose instructions have fixed forms. */
void kcovdbg_decode(const struct kcovdbg_architecture *architecture, const uint8_t *bytes, size_t size,
		    struct kcovdbg_instruction *instruction);
/* cdef end */

#endif
