/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arrays that grow, and the order of their items. */
#ifndef KCOVDBG_ARRAY_H
#define KCOVDBG_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

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

/* An item to sort by its value, and where values are equal, by its number. */
struct keyed {
	uint64_t value;
	uint32_t number;
};

static inline int compare_keyed(const void *left, const void *right)
{
	const struct keyed *a = left, *b = right;

	if (a->value != b->value)
		return a->value < b->value ? -1 : 1;
	return (a->number > b->number) - (a->number < b->number);
}

#endif
