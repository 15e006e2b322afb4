/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Switches in code of arm64 that jump by a table of offsets, as gcc writes them. */
#ifndef KCOVDBG_ARM64_SWITCH_H
#define KCOVDBG_ARM64_SWITCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Entries are signed, and count instructions from the base. */
struct kcovdbg_arm64_switch {
	uint64_t table, base;
	uint8_t entry_size; /* 1, 2 or 4 bytes. */
	size_t first;	    /* The offset in the code of the first instruction that the jump needs. */
};

/*
 * Find the table that a jump through a register goes by. False where the code before it does not load a jump from a table, or does
 * something else in between that may matter.
 *
 * code begins at an address, and the jump is at an offset in it.
 */
bool kcovdbg_arm64_find_switch(const uint8_t *code, size_t offset, uint64_t address, struct kcovdbg_arm64_switch *found);

#endif
