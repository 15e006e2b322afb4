/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arrays that grow. */
#ifndef KCOVDBG_ARRAY_H
#define KCOVDBG_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
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

#endif
