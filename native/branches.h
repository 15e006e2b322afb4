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

/* On x86: e8; e9 and 0f 80 to 0f 8f; eb and 70 to 7f; and through registers or memory, calls without those with a SIB byte or a
   fixed address. On arm64: BL; B; none; BLR; BR. */
enum { KCOVDBG_CALLS, KCOVDBG_JUMPS, KCOVDBG_SHORT_JUMPS, KCOVDBG_INDIRECT_CALLS, KCOVDBG_INDIRECT_JUMPS };

/* What looks like a branch of x86 is one if it leads to a target: other bytes rarely do. Put the address after each such branch that
   begins before stop, and the target that it leads to, up to room of them, and return their number; start becomes where to continue,
   SIZE_MAX at the end. Of indirect calls the target is 0; those are left out that end where a call of a target does. Of indirect
   jumps the address of the jump itself is put. */
size_t kcovdbg_x86_branches(const unsigned char *text, size_t size, uint64_t address, int kind,
			    const struct kcovdbg_targets *targets, size_t *start, size_t stop, uint64_t *backs, uint64_t *led,
			    size_t room);
/* The same for arm64, whose instructions are in whole words. */
size_t kcovdbg_arm64_branches(const unsigned char *text, size_t size, uint64_t address, int kind,
			      const struct kcovdbg_targets *targets, size_t *start, size_t stop, uint64_t *backs, uint64_t *led,
			      size_t room);
/* cdef end */

#endif
