/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Numbered source locations: a location is a chain of frames, a frame has strings. Each string, frame and chain is kept once, since
 * hundreds of thousands of addresses share them.
 */
#ifndef KCOVDBG_LOCATIONS_H
#define KCOVDBG_LOCATIONS_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
struct kcovdbg_locations;

struct kcovdbg_location_arrays {
	const char *text; /* Strings, each with a terminating zero; they are counted from 1. */
	size_t text_size;
	const uint32_t *frames; /* Function, file, line, column; 0 for none. The first two are strings. */
	size_t frame_count;
	const uint32_t *chain_ends; /* Where the frames of each chain, innermost first, end. */
	size_t chain_count;
	const uint32_t *chain_frames;
	size_t chain_frame_count;
	uint64_t probes; /* Number of slots of hash tables that were found in use by other items: few for each item. */
};

struct kcovdbg_locations *kcovdbg_locations_new(void);
void kcovdbg_locations_free(struct kcovdbg_locations *locations);
/* Pointers, valid until something is added. */
void kcovdbg_locations_arrays(const struct kcovdbg_locations *locations, struct kcovdbg_location_arrays *arrays);
/* Add the chains of others; chains[i] becomes the number of the i-th. If they are new, they are not looked for, so that some may be
   there twice. -1 when out of memory, -2 when a number is out of range. */
int kcovdbg_locations_add(struct kcovdbg_locations *locations, const struct kcovdbg_location_arrays *more, int are_new,
			  uint32_t *chains);
/* Put the numbers of so many strings, each with a terminating zero, which are added where there are none yet. -1 and -2 as above. */
int kcovdbg_locations_strings(struct kcovdbg_locations *locations, const char *text, size_t size, uint32_t *numbers,
			      size_t count);
/* The number of the chain of what some chains have in common: all, or the outermost function, or nothing. -1 and -2 as above. */
int kcovdbg_locations_common(struct kcovdbg_locations *locations, const uint32_t *chains, size_t count, uint32_t *common);
/* cdef end */

/* For the C sources: each returns a number, UINT32_MAX when out of memory; a string's is 0 for NULL. */
uint32_t kcovdbg_locations_string(struct kcovdbg_locations *locations, const char *text, size_t size);
uint32_t kcovdbg_locations_frame(struct kcovdbg_locations *locations, uint32_t function, uint32_t file, uint32_t line,
				 uint32_t column);
uint32_t kcovdbg_locations_chain(struct kcovdbg_locations *locations, const uint32_t *frames, size_t count);

#endif
