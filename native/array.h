/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arrays that grow, and the order of their items. */
#ifndef KCOVDBG_ARRAY_H
#define KCOVDBG_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Make room in an array for so many items. pointer: to the array's pointer. room: in items. item: the size of one. Returns false
 * when out of memory, also when that is more than can be counted.
 */
static inline bool grow(void *pointer, size_t *room, size_t wanted, size_t item)
{
	void **array = pointer;
	size_t more, size;
	void *grown;

	if (wanted <= *room)
		return true;
	if (__builtin_add_overflow(wanted, wanted / 2 + 64, &more) || __builtin_mul_overflow(more, item, &size))
		return false;
	grown = realloc(*array, size);
	if (!grown)
		return false;
	*array = grown;
	*room = more;
	return true;
}

/* An item to sort: by its value, and by its number where values are equal. */
struct keyed {
	uint64_t value;
	uint32_t number;
};

enum { KEYED_BYTES = sizeof(uint32_t) + sizeof(uint64_t), BYTE_VALUES = 256 };

/* A byte of what items are sorted by, from the lowest one of the number to the highest one of the value. */
static inline uint8_t keyed_byte(const struct keyed *item, unsigned int byte)
{
	if (byte < sizeof(item->number))
		return item->number >> 8 * byte;
	return item->value >> 8 * (byte - sizeof(item->number));
}

/* Sort items byte by byte, from the lowest one: of a kernel's addresses, most bytes are equal. Returns false when out of memory. */
static inline bool sort_keyed(struct keyed *items, size_t count)
{
	size_t counts[KEYED_BYTES][BYTE_VALUES] = { 0 }, i;
	struct keyed *source = items, *other = malloc((count + 1) * sizeof(*other)), *target = other;

	if (!other)
		return false;
	for (i = 0; i < count; i++)
		for (unsigned int byte = 0; byte < KEYED_BYTES; byte++)
			counts[byte][keyed_byte(&items[i], byte)]++;
	for (unsigned int byte = 0; byte < KEYED_BYTES; byte++) {
		struct keyed *sorted = target;
		size_t start = 0;

		if (!count || counts[byte][keyed_byte(items, byte)] == count)
			continue;
		for (i = 0; i < BYTE_VALUES; i++) {
			size_t own = counts[byte][i];

			counts[byte][i] = start;
			start += own;
		}
		for (i = 0; i < count; i++)
			sorted[counts[byte][keyed_byte(&source[i], byte)]++] = source[i];
		target = source;
		source = sorted;
	}
	if (source != items)
		memcpy(items, source, count * sizeof(*items));
	free(other);
	return true;
}

#endif
