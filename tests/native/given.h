/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Bytes that a fake kernel answers with: what a traced program, which may be anybody's, makes the collector read. */
#ifndef KCOVDBG_GIVEN_H
#define KCOVDBG_GIVEN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct given {
	const uint8_t *at, *end;
};

/* Return the next byte, 0 at the end. */
static inline uint8_t next_byte(struct given *given)
{
	return given->at < given->end ? *given->at++ : 0;
}

/* Copy so many bytes, or those that are left; return their number. */
static inline size_t take(struct given *given, void *to, size_t size)
{
	size_t left = given->end - given->at;

	size = size < left ? size : left;
	if (size)
		memcpy(to, given->at, size);
	given->at += size;
	return size;
}

/* Fill all of it, with zeros behind what is left. */
static inline void fill(struct given *given, void *to, size_t size)
{
	size_t taken = take(given, to, size);

	memset((char *)to + taken, 0, size - taken);
}

void try_follow(const uint8_t *data, size_t size);
void try_inject(const uint8_t *data, size_t size);

#endif
