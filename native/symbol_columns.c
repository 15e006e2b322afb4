// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "symbol_columns.h"

size_t kcovdbg_join_strings(const char *text, size_t size, const uint32_t *offsets, size_t count, char *joined, size_t room)
{
	size_t total = 0, i;

	for (i = 0; i < count; i++) {
		const char *end = offsets[i] < size ? memchr(text + offsets[i], 0, size - offsets[i]) : NULL;
		size_t length;

		if (!end)
			return SIZE_MAX;
		length = end + 1 - (text + offsets[i]);
		if (total <= room && length <= room - total)
			memcpy(joined + total, text + offsets[i], length);
		total += length;
	}
	return total;
}

size_t kcovdbg_find_flagged(const uint32_t *values, size_t count, const uint8_t *flags, size_t flag_count, uint32_t *found)
{
	size_t total = 0, i;

	for (i = 0; i < count; i++)
		if (values[i] < flag_count && flags[values[i]])
			found[total++] = i;
	return total;
}

int kcovdbg_order(const uint64_t *values, size_t count, uint32_t *order)
{
	struct keyed *items = malloc((count + 1) * sizeof(*items));
	bool is_sorted;
	size_t i;

	if (!items)
		return -1;
	for (i = 0; i < count; i++)
		items[i] = (struct keyed){ values[i], i };
	is_sorted = sort_keyed(items, count);
	for (i = 0; is_sorted && i < count; i++)
		order[i] = items[i].number;
	free(items);
	return is_sorted ? 0 : -1;
}

void kcovdbg_find_before(const uint64_t *starts, const uint8_t *flags, size_t symbol_count, const uint64_t *addresses,
			 size_t count, uint32_t *found)
{
	size_t i;

	memset(found, 0xff, count * sizeof(*found));
	/* For each address, the last symbol that starts between the previous address and it. */
	for (i = 0; i < symbol_count; i++) {
		size_t low = 0, high = count;

		while (flags[i] && low < high) {
			size_t middle = low + (high - low) / 2;

			if (addresses[middle] < starts[i])
				low = middle + 1;
			else
				high = middle;
		}
		if (flags[i] && low < count && (found[low] == UINT32_MAX || starts[found[low]] <= starts[i]))
			found[low] = i;
	}
	for (i = 1; i < count; i++)
		if (found[i] == UINT32_MAX)
			found[i] = found[i - 1];
}
