// SPDX-License-Identifier: LGPL-2.1-or-later
/* A table with lists: inlined helpers, loops, entries that are reused. */
#include "kernel.h"

struct entry {
	struct list_head list;
	char name;
	int uses;
	bool is_locked;
};

static struct entry entries[8];
static struct list_head used, spare;

static struct entry *find(char name)
{
	struct list_head *at;

	list_for_each(at, &used)
	{
		struct entry *entry = container_of(at, struct entry, list);

		if (entry->name == name)
			return entry;
	}
	return NULL;
}

static noinline struct entry *make(char name)
{
	struct entry *entry;

	if (list_empty(&spare)) {
		struct list_head *at;

		/* Take one that nobody uses. */
		list_for_each(at, &used)
		{
			entry = container_of(at, struct entry, list);
			if (!entry->uses && !entry->is_locked)
				goto found;
		}
		return NULL;
	}
	entry = container_of(spare.next, struct entry, list);
found:
	list_del(&entry->list);
	entry->name = name;
	entry->uses = 0;
	entry->is_locked = false;
	list_add_tail(&entry->list, &used);
	return entry;
}

static noinline int put(struct entry *entry)
{
	if (WARN_ON(!entry->uses))
		return -EBADF;
	if (--entry->uses)
		return 0;
	if (entry->is_locked)
		return -EBUSY; /* merged */
	list_del(&entry->list);
	list_add_tail(&entry->list, &spare);
	return 1;
}

int table_run(const char *commands)
{
	int i, result = 0;

	list_init(&used);
	list_init(&spare);
	for (i = 0; i < 8; i++)
		list_add_tail(&entries[i].list, &spare);
	for (; commands[0] && commands[1]; commands += 2) {
		struct entry *entry = find(commands[1]); /* known */

		if (commands[0] == '+') {
			if (!entry) /* known */
				entry = make(commands[1]);
			if (unlikely(!entry))
				return -ENOMEM; /* merged */
			entry->uses++;
		} else if (!entry) { /* known */
			result -= 100;
			continue;
		} else if (commands[0] == '-') {
			result += put(entry);
		} else if (commands[0] == 'l') {
			entry->is_locked = !entry->is_locked;
		} else {
			entry->uses = 0;
		}
		BUG_ON(entry->uses > 1000);
	}
	return result;
}
