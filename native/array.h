/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Arrays that grow. */
#ifndef KCOVDBG_ARRAY_H
#define KCOVDBG_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/*
 * Make room in an array for so many items. pointer: to the array's pointer. room: in items. item: the size of one. Returns false
 * when out of memory.
 */
static inline bool grow(void *pointer, size_t *room, size_t wanted, size_t item)
{
	void **array = pointer;
	size_t more = wanted + wanted / 2 + 64;
	void *grown;

	if (wanted <= *room)
		return true;
	grown = realloc(*array, more * item);
	if (!grown)
		return false;
	*array = grown;
	*room = more;
	return true;
}

#endif
