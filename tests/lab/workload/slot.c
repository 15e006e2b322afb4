// SPDX-License-Identifier: LGPL-2.1-or-later
/* Slots: one per state, in shared memory; and processes that get into a state and stay there. */
#include "lab.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct shared *shm;

struct slot *slot_new(const char *state)
{
	int i = atomic_fetch_add(&shm->nslots, 1);
	struct slot *s;

	if (i >= MAX_SLOTS) {
		/* Commands come and go: take a slot that `stop` has emptied. */
		atomic_store(&shm->nslots, MAX_SLOTS);
		for (i = 0; i < MAX_SLOTS && shm->slots[i].used; i++)
			;
		if (i == MAX_SLOTS)
			return NULL;
		memset(&shm->slots[i], 0, sizeof(shm->slots[i]));
	}
	s = &shm->slots[i];
	snprintf(s->state, sizeof(s->state), "%s", state);
	s->asleep = true;
	s->used = true;
	return s;
}

/* By name, or by pid or tid. */
struct slot *slot_find(const char *name)
{
	int n = atomic_load(&shm->nslots);
	pid_t id = atoi(name);

	for (int i = 0; i < n; i++) {
		struct slot *s = &shm->slots[i];

		if (s->used && (!strcmp(s->state, name) || (id && (s->tid == id || s->pid == id))))
			return s;
	}
	return NULL;
}

void slot_self(struct slot *s)
{
	s->pid = getpid();
	s->tid = syscall(SYS_gettid);
	memset(s->comm, 0, sizeof(s->comm));
	prctl(PR_GET_NAME, s->comm);
}

void slot_comm(struct slot *s, const char *comm)
{
	prctl(PR_SET_NAME, comm);
	slot_self(s);
}

static void append(char *buf, size_t size, const char *fmt, va_list ap)
{
	size_t len = strlen(buf);

	vsnprintf(buf + len, size - len, fmt, ap);
}

void slot_call(struct slot *s, const char *fmt, ...)
{
	char text[200];
	va_list ap;
	size_t len = strlen(s->calls);

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	/* Whole strings only, so that what is printed stays JSON. */
	if (len + strlen(text) + 4 < sizeof(s->calls))
		sprintf(s->calls + len, "%s\"%s\"", len ? "," : "", text);
}

void slot_extra(struct slot *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	append(s->extra, sizeof(s->extra), fmt, ap);
	va_end(ap);
}

void slot_missing(struct slot *s, const char *fmt, ...)
{
	va_list ap;

	if (s->missing[0])
		return;
	va_start(ap, fmt);
	append(s->missing, sizeof(s->missing), fmt, ap);
	va_end(ap);
}

/* Call this before enabling: it only writes to the slot, but using strings causes page faults. */
void slot_object(struct slot *s, const struct kc *k, int refcount, int sequence)
{
	if (!s->object[0])
		snprintf(s->object, sizeof(s->object), "%s", s->state);
	if (k->fd >= 0 && !s->nfds)
		s->fds[s->nfds++] = k->fd;
	s->size = k->size;
	s->map = (uintptr_t)k->area;
	s->map_tid = s->tid;
	s->refcount = refcount;
	s->sequence = sequence;
}

void stand(struct slot *s)
{
	atomic_store(&s->ready, 1);
	for (;;)
		syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
}

pid_t spawn(struct slot *s, void (*fn)(struct slot *))
{
	pid_t pid = fork();

	if (pid < 0) {
		slot_missing(s, "fork failed");
		atomic_store(&s->ready, 1);
	}
	if (pid)
		return pid;
	slot_comm(s, s->state);
	fn(s);
	stand(s);
}

struct slot *spawn_state(const char *state, void (*fn)(struct slot *))
{
	struct slot *s = slot_new(state);

	s->pid = s->tid = spawn(s, fn);
	return s;
}

bool slot_wait(struct slot *s, int ms)
{
	uint64_t end = now_ms() + ms;

	while (!atomic_load(&s->ready)) {
		if (now_ms() > end) {
			slot_missing(s, "no answer within %d ms", ms);
			return false;
		}
		msleep(1);
	}
	return !s->missing[0];
}

/*
 * The state letter of /proc/TID/stat; comm may contain anything, so look behind the last bracket.
 */
static char task_state(pid_t tid)
{
	char path[64], buf[512], *p;

	snprintf(path, sizeof(path), "/proc/%d/stat", tid);
	if (slurp(path, buf, sizeof(buf)) <= 0)
		return 0;
	p = strrchr(buf, ')');
	return p && p[1] ? p[2] : 0;
}

/*
 * A task that goes to sleep with KCOV enabled records its way into the sleep. Asleep and the count
 * unchanged over three looks means that it has got there.
 */
bool slot_settle(struct slot *s, int ms)
{
	uint64_t end = now_ms() + ms, last = 0, count = 0;
	int same = 0;

	while (now_ms() < end) {
		bool have = s->map && slot_count(s, &count);

		if ((!s->asleep || task_state(s->tid) == 'S') && (!have || count == last))
			same++;
		else
			same = 0;
		if (same >= 3)
			return true;
		last = count;
		msleep(2);
	}
	return false;
}
