/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which functions of an image call which: direct calls and jumps from one to the start of another, and the places that have the address
 * of a function, from where it may be called through a pointer.
 */
#ifndef KCOVDBG_CALLS_H
#define KCOVDBG_CALLS_H

#include <stddef.h>
#include <stdint.h>

#include "blocks.h"

/* cdef */
enum kcovdbg_call_kind {
	KCOVDBG_CALL_DIRECT = 1,
	KCOVDBG_CALL_JUMP,    /* A tail call, which may be conditional. */
	KCOVDBG_CALL_IN_CODE, /* A constant of an instruction may be the address, or code of no function calls it. */
	KCOVDBG_CALL_IN_DATA, /* A word of the data is the address. */
};

struct kcovdbg_calls {
	size_t count;
	uint32_t *ends;	  /* Where the calls that lead to each function end. */
	uint64_t *places; /* Addresses of instructions or words, ascending for each function but that words come last. */
	uint8_t *kinds;
};

/* Find the calls in an image. Its facts and the flags of its functions are not needed. NULL when out of memory. */
struct kcovdbg_calls *kcovdbg_calls_new(const struct kcovdbg_image *image);
void kcovdbg_calls_free(struct kcovdbg_calls *calls);
/* cdef end */

#endif
