/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls and jumps in machine code, by what they lead to. */
#ifndef KCOVDBG_BRANCHES_H
#define KCOVDBG_BRANCHES_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
/* A set of addresses. */
struct kcovdbg_targets;

/* NULL when out of memory. */
struct kcovdbg_targets *kcovdbg_targets_new(const uint64_t *addresses, size_t count);
void kcovdbg_targets_free(struct kcovdbg_targets *targets);

/* e8; e9 and 0f 80 to 0f 8f; eb and 70 to 7f. */
enum { KCOVDBG_CALLS, KCOVDBG_JUMPS, KCOVDBG_SHORT_JUMPS };

/* What looks like a branch of x86 is one if it leads to a target: other bytes rarely do. Put the address after each such branch and
   the target that it leads to, up to room of them, and return their number; start becomes where to continue, the size at the end. */
size_t kcovdbg_x86_branches(const unsigned char *text, size_t size, uint64_t address, int kind,
			    const struct kcovdbg_targets *targets, size_t *start, uint64_t *backs, uint64_t *led, size_t room);
/* cdef end */

#endif
