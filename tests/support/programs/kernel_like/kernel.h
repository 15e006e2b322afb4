/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What kernel code is made of. Two marks say where a compiler leaves no way to tell what gcov counts:
 * merged: code of this statement is that of another one as well;
 * known: the statement has no code on some way, since the compiler knows what it does there.
 */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define noinline __attribute__((noinline))
#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))
#define BUG_ON(x) \
	do { \
		if (unlikely(x)) \
			__builtin_trap(); \
	} while (0)
#define WARN_ON(x) \
	({ \
		bool warns_ = !!(x); \
		if (unlikely(warns_)) \
			warn(__LINE__); \
		unlikely(warns_); \
	})

struct list_head {
	struct list_head *next, *prev;
};

#define list_for_each(at, head) for (at = (head)->next; at != (head); at = at->next)

static inline void list_init(struct list_head *head)
{
	head->next = head->prev = head;
}

static inline bool list_empty(const struct list_head *head)
{
	return head->next == head;
}

static inline void list_add_tail(struct list_head *entry, struct list_head *head)
{
	entry->prev = head->prev;
	entry->next = head;
	head->prev->next = entry;
	head->prev = entry; /* known */
}

static inline void list_del(struct list_head *entry)
{
	BUG_ON(!entry->next);
	entry->prev->next = entry->next;
	entry->next->prev = entry->prev;
}

void warn(int line);
int parse_options(const char *text, unsigned int *flags, int *size);
int table_run(const char *commands);
int ring_run(const char *data, int size);
