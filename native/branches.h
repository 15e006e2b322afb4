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
	uint8_t step, is_big_endian, is_from_end;
};

/* Put the address after each branch of these kinds that begins at start or later and before stop, and the target that it leads to,
   up to room of them, and return their number; start becomes where to continue, SIZE_MAX at the end. Of branches through registers
   or memory the target is 0. Only those are put whose target is one of targets, unless that is NULL. */
size_t kcovdbg_branches(const struct kcovdbg_architecture *architecture, const unsigned char *text, size_t size,
			uint64_t address, uint32_t kinds, const struct kcovdbg_targets *targets, size_t *start, size_t stop,
			uint64_t *backs, uint64_t *led, size_t room);
/* Decode the instruction at the start of some bytes of this architecture, whose instructions have fixed forms. */
void kcovdbg_decode(const struct kcovdbg_architecture *architecture, const uint8_t *bytes, size_t size,
		    struct kcovdbg_instruction *instruction);
/* cdef end */

#endif
