/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Columns of a symbol table: tens of thousands of names, of which a few are looked for. */
#ifndef KCOVDBG_SYMBOL_COLUMNS_H
#define KCOVDBG_SYMBOL_COLUMNS_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
/* Put the strings at some offsets behind each other, each with its terminating zero, as far as the room suffices. Return their
   size; SIZE_MAX where one is outside of the text. */
size_t kcovdbg_join_strings(const char *text, size_t size, const uint32_t *offsets, size_t count, char *joined, size_t room);

/* Put the indexes of the values whose flag is set; values from flag_count on have none. Return their number. */
size_t kcovdbg_find_flagged(const uint32_t *values, size_t count, const uint8_t *flags, size_t flag_count, uint32_t *found);

/* Put the indexes of values, ascending by these and then by themselves. -1 when out of memory. */
int kcovdbg_order(const uint64_t *values, size_t count, uint32_t *order);

/* For each of ascending addresses, put the index of the symbol that starts nearest at or before it, of several the last; UINT32_MAX
   for none. Symbols without a flag are left out. */
void kcovdbg_find_before(const uint64_t *starts, const uint8_t *flags, size_t symbol_count, const uint64_t *addresses,
			 size_t count, uint32_t *found);
/* cdef end */

#endif
