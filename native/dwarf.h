/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Source locations of many addresses of a linked image, from its DWARF (versions 4 and 5, in the 32-bit format).
 *
 * A compilation unit is read once: its tree of entries (sections 2 and 7.5 of the standard) for the functions and inlined
 * functions that each address is in, its line number program (section 6.2) for file, line and column. What is read may be
 * damaged: every offset is checked. Locations are numbered, since hundreds of thousands of them share a few frames and strings.
 */
#ifndef KCOVDBG_DWARF_H
#define KCOVDBG_DWARF_H

#include <stddef.h>
#include <stdint.h>

#include "blocks.h"
#include "locations.h"

/* cdef */
struct kcovdbg_bytes {
	const void *data;
	size_t size;
};

/* The sections of the same names, in the byte order of the image; absent ones are empty. They must outlive what uses them. */
struct kcovdbg_sections {
	struct kcovdbg_bytes info, abbrev, line, str, line_str, str_offsets, addr, ranges, rnglists;
	int must_swap;
	/* Where the contents of the file begin that dwz moved entries of several images to, in four of the sections; behind their
	   ends where there is none. */
	uint64_t shared_info, shared_abbrev, shared_line, shared_str;
};

struct kcovdbg_dwarf;

/* The units of an image; NULL when out of memory. */
struct kcovdbg_dwarf *kcovdbg_dwarf_new(const struct kcovdbg_sections *sections);
void kcovdbg_dwarf_free(struct kcovdbg_dwarf *dwarf);

struct kcovdbg_unit {
	uint64_t size;	       /* Size of its entries, in bytes. */
	const char *name;      /* NULL for a unit without code or of an unknown form. */
	const char *directory; /* NULL where it has none. */
};

size_t kcovdbg_dwarf_unit_count(const struct kcovdbg_dwarf *dwarf);
const struct kcovdbg_unit *kcovdbg_dwarf_units(const struct kcovdbg_dwarf *dwarf);
/* Copy the first ranges of a unit, as pairs of a first address and the address after the last one. Return their number. */
size_t kcovdbg_dwarf_ranges(const struct kcovdbg_dwarf *dwarf, size_t unit, uint64_t *ranges, size_t room);
/* The unit of each address, UINT32_MAX for none; addresses ascend. -1 when out of memory. */
int kcovdbg_dwarf_find_units(const struct kcovdbg_dwarf *dwarf, const uint64_t *addresses, size_t count, uint32_t *units);

/* Rows of line tables as units have them, up to the end of each sequence, which has a row without a file: UINT32_MAX. */
struct kcovdbg_found_rows {
	uint64_t *addresses;
	uint32_t *files; /* Strings of row_files, 0 for none. */
	uint32_t *lines; /* With KCOVDBG_ROW_STATEMENT where a statement begins. */
	size_t count, room;
	struct kcovdbg_inlined *inlined; /* With files as rows have them. */
	size_t inlined_count, inlined_room;
};
void kcovdbg_rows_free(struct kcovdbg_found_rows *found);

/* What is read of units is added to these. All but the first may be NULL. */
struct kcovdbg_contents {
	struct kcovdbg_locations *locations; /* Of addresses. */
	struct kcovdbg_found_rows *rows;
	struct kcovdbg_locations *row_files;
	/* A frame for each function that has code, inlined or not: its name, and the file and the line where it is defined. Functions
	   inside other entries, as Rust has them, are left out. */
	struct kcovdbg_locations *definitions;
};

/* Read units, and locate addresses: those of the i-th unit are at ends[i - 1] up to ends[i], ascending. chains[i] becomes the number of
   the i-th address's chain, UINT32_MAX where the unit is damaged or of an unknown form. Return how many such units there are; -1 when out
   of memory; -2 when the units do not end at count. May be called by several threads, each with contents of its own. */
ptrdiff_t kcovdbg_dwarf_read(const struct kcovdbg_dwarf *dwarf, const uint32_t *units, const size_t *ends, size_t unit_count,
			     const uint64_t *addresses, size_t count, const struct kcovdbg_contents *contents,
			     uint32_t *chains);

struct kcovdbg_member {
	const char *name;
	uint64_t offset, size; /* In bytes; the size is 0 where it is unknown. */
};

/* Find a structure by its name, and put its size and its first members. Return their number, 0 where no unit has it. */
size_t kcovdbg_dwarf_structure(const struct kcovdbg_dwarf *dwarf, const char *name, uint64_t *size,
			       struct kcovdbg_member *members, size_t room);
/* Put the first addresses of the parts of functions that never return, as far as the room suffices; return their number. */
size_t kcovdbg_dwarf_no_returns(const struct kcovdbg_dwarf *dwarf, uint64_t *addresses, size_t room);
/* cdef end */

#endif
