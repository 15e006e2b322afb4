// SPDX-License-Identifier: LGPL-2.1-or-later
/* States of live tasks that collect their own coverage, have collected it, or are set up for it. */
#include "lab.h"

#include <fcntl.h>
#include <linux/kcov.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define THREADS 8

/* Raw, because a wrapper may answer without asking the kernel. */
static void getppids(int n)
{
	while (n--)
		syscall(SYS_getppid);
}

static void st_open(struct slot *s)
{
	struct kc k;

	if (!kc_open(s, &k))
		slot_object(s, &k, 1, 1);
}

static void st_init(struct slot *s)
{
	struct kc k;

	if (!kc_open(s, &k) && !kc_init(s, &k, 3 * PAGE_WORDS))
		slot_object(s, &k, 1, 1);
}

/* A size that is no whole number of pages: legal, but can never be mapped. */
static void st_odd(struct slot *s)
{
	struct kc k;

	if (kc_open(s, &k) || kc_init(s, &k, 1000))
		return;
	slot_object(s, &k, 2, 1);
	if (!kc_enable(s, &k, TRACE_PC))
		getppids(3);
}

static void st_mapped(struct slot *s)
{
	struct kc k;

	if (!kc_setup(s, &k, 5 * PAGE_WORDS))
		slot_object(s, &k, 1, 1);
}

static void enabled(struct slot *s, uint64_t words, enum trace mode, int calls)
{
	struct kc k;

	if (kc_setup(s, &k, words))
		return;
	slot_object(s, &k, 2, 1);
	slot_call(s, "getppid x%d", calls);
	if (!kc_enable(s, &k, mode))
		getppids(calls);
}

static void st_pc(struct slot *s)
{
	enabled(s, 16 * PAGE_WORDS, TRACE_PC, 3);
}

static void st_cmp(struct slot *s)
{
	enabled(s, 17 * PAGE_WORDS, TRACE_CMP, 3);
}

static void st_over(struct slot *s)
{
	enabled(s, PAGE_WORDS, TRACE_PC, 3000);
}

/* 2 pages hold 255 comparisons, and three words are left over. */
static void st_over_cmp(struct slot *s)
{
	enabled(s, 2 * PAGE_WORDS, TRACE_CMP, 3000);
}

/* A task whose name has control sequences for the terminal that shows it. */
static void st_hostile(struct slot *s)
{
	slot_comm(s, "\x1b[31mred\n\xff");
	enabled(s, 18 * PAGE_WORDS, TRACE_PC, 1);
}

/*
 * Full to the last word, nothing lost while it was filled: find out how many records a getppid
 * makes, then put the count that far below the end and make one more.
 */
static void st_full(struct slot *s)
{
	struct kc k;
	uint64_t size = PAGE_WORDS, one = 0;
	bool exact = false;

	if (kc_setup(s, &k, size))
		return;
	slot_object(s, &k, 2, 1);
	slot_call(s, "getppid until count == size - 1");
	if (kc_enable(s, &k, TRACE_PC))
		return;
	/* The first calls are recorded differently, after the end of the ioctl. */
	for (int i = 0; i < 50 && !exact; i++) {
		__atomic_store_n(&k.area[0], 0, __ATOMIC_SEQ_CST);
		getppids(1);
		one = __atomic_load_n(&k.area[0], __ATOMIC_SEQ_CST);
		if (!one || one >= size / 2)
			continue;
		/* Lay real records everywhere first, so that no stale zero is counted. */
		__atomic_store_n(&k.area[0], 0, __ATOMIC_SEQ_CST);
		getppids(size / one + 2);
		__atomic_store_n(&k.area[0], size - 1 - one - 1, __ATOMIC_SEQ_CST);
		getppids(1);
		/* One short of full proves that this call made exactly that many. */
		if (__atomic_load_n(&k.area[0], __ATOMIC_SEQ_CST) != size - 2)
			continue;
		__atomic_store_n(&k.area[0], size - 1 - one, __ATOMIC_SEQ_CST);
		getppids(1);
		exact = __atomic_load_n(&k.area[0], __ATOMIC_SEQ_CST) == size - 1;
	}
	/*
	 * Going to sleep from here on loses records, as any enabled task with a full buffer does.
	 */
	slot_extra(s, ", \"exact\": %s, \"records_per_call\": %lu", exact ? "true" : "false", one);
}

static void off(struct slot *s, uint64_t words, enum trace mode)
{
	struct kc k;

	if (kc_setup(s, &k, words) || kc_enable(s, &k, mode))
		return;
	getppids(3);
	kc_disable(s, &k);
	slot_object(s, &k, 1, 2);
}

static void st_off(struct slot *s)
{
	off(s, 4 * PAGE_WORDS, TRACE_PC);
}

static void st_off_cmp(struct slot *s)
{
	off(s, 6 * PAGE_WORDS, TRACE_CMP);
}

/* Three sessions on one descriptor: two ended, the third in force. */
static void st_again(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 7 * PAGE_WORDS))
		return;
	for (int i = 0; i < 2; i++)
		if (kc_enable(s, &k, i ? TRACE_CMP : TRACE_PC) || kc_disable(s, &k))
			return;
	slot_object(s, &k, 2, 3);
	slot_call(s, "getppid x2");
	if (!kc_enable(s, &k, TRACE_PC))
		getppids(2);
}

/* The buffer lives on through the task's reference and the mapping. */
static void st_closed(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 8 * PAGE_WORDS))
		return;
	slot_object(s, &k, 2, 1);
	s->nfds = 0;
	slot_call(s, "close");
	slot_call(s, "getppid x3");
	if (kc_enable(s, &k, TRACE_PC))
		return;
	close(k.fd);
	getppids(3);
}

/* Neither descriptor nor mapping: only the task refers to it. */
static void st_bare(struct slot *s)
{
	struct kc k;

	if (kc_open(s, &k) || kc_init(s, &k, 9 * PAGE_WORDS))
		return;
	slot_object(s, &k, 1, 1);
	s->nfds = 0;
	slot_call(s, "close");
	if (!kc_enable(s, &k, TRACE_PC))
		close(k.fd);
}

/* Disabled, closed, and only a mapping left. */
static void st_mapping(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 10 * PAGE_WORDS) || kc_enable(s, &k, TRACE_PC))
		return;
	getppids(3);
	kc_disable(s, &k);
	slot_object(s, &k, 1, 2);
	s->nfds = 0;
	kc_close(s, &k);
}

/* The middle of the mapping is gone, which leaves two VMAs, one of them not at offset 0. */
static void st_split(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 11 * PAGE_WORDS))
		return;
	slot_object(s, &k, 1, 1);
	/* It cannot be read as a whole any more. */
	s->map = 0;
	if (syscall(SYS_munmap, (uintptr_t)k.area + 4 * PAGE, 2 * PAGE))
		slot_missing(s, "munmap");
	slot_call(s, "munmap pages 4 and 5");
	slot_extra(s, ", \"vmas\": [[\"0x%lx\", 4, 0], [\"0x%lx\", 5, 6]]", (uintptr_t)k.area, (uintptr_t)k.area + 6 * PAGE);
}

static struct slot *heir;

static void st_heir(struct slot *s)
{
	(void)s;
}

static void st_dup(struct slot *s)
{
	struct kc k;
	int again;

	if (kc_setup(s, &k, 12 * PAGE_WORDS))
		return;
	again = dup(k.fd);
	slot_call(s, "dup");
	s->fds[s->nfds++] = k.fd;
	s->fds[s->nfds++] = again;
	slot_object(s, &k, 2, 1);
	snprintf(heir->object, sizeof(heir->object), "%s", s->state);
	memcpy(heir->fds, s->fds, sizeof(s->fds));
	heir->nfds = s->nfds;
	heir->size = s->size;
	heir->map = s->map;
	heir->refcount = s->refcount;
	heir->sequence = s->sequence;
	heir->mode = TRACE_PC;
	heir->enabled = true;
	heir->owner = s->tid;
	slot_call(s, "fork");
	heir->map_tid = spawn(heir, st_heir);
	/* The heir sets its name itself, which takes a moment. */
	slot_wait(heir, 5000);
	if (!kc_enable(s, &k, TRACE_PC))
		getppids(2);
}

/* In flight: in a socket's queue and in nobody's file table. */
static void st_flight(struct slot *s)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = { 0 };
	struct iovec iov = { "k", 1 };
	int pair[2];
	struct kc k;

	if (kc_open(s, &k) || kc_init(s, &k, 13 * PAGE_WORDS))
		return;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) {
		slot_missing(s, "no unix sockets");
		return;
	}
	memset(&control, 0, sizeof(control));
	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	msg.msg_control = &control;
	msg.msg_controllen = sizeof(control);
	control.head.cmsg_level = SOL_SOCKET;
	control.head.cmsg_type = SCM_RIGHTS;
	control.head.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.head), &k.fd, sizeof(int));
	if (sendmsg(pair[0], &msg, 0) != 1) {
		slot_missing(s, "SCM_RIGHTS");
		return;
	}
	slot_call(s, "sendmsg SCM_RIGHTS");
	slot_object(s, &k, 1, 1);
	s->nfds = 0;
	kc_close(s, &k);
	slot_extra(s, ", \"in_flight\": true, \"sockets\": [%d, %d]", pair[0], pair[1]);
}

static void *thread_enabled(void *arg)
{
	struct slot *s = arg;

	slot_comm(s, s->state);
	enabled(s, (20 + atomic_load(&s->done_calls)) * PAGE_WORDS, TRACE_PC, 1);
	stand(s);
}

static void st_threads(struct slot *s)
{
	for (int i = 0; i < THREADS; i++) {
		char name[16];
		pthread_t t;
		struct slot *child;

		snprintf(name, sizeof(name), "kc-thr/%d", i);
		child = slot_new(name);
		/* So that each gets a size of its own. */
		atomic_store(&child->done_calls, i);
		if (pthread_create(&t, NULL, thread_enabled, child))
			slot_missing(child, "pthread_create");
		slot_wait(child, 20000);
	}
	slot_extra(s, ", \"threads\": %d", THREADS);
}

static struct kc exited;

static void *thread_exits(void *arg)
{
	struct slot *s = arg;

	s->tid = syscall(SYS_gettid);
	if (!kc_enable(s, &exited, TRACE_PC))
		getppids(3);
	syscall(SYS_exit, 0);
	return NULL;
}

/*
 * Disabled by the kernel when its task exited; the descriptor and the mapping stay with the
 * process.
 */
static void st_exited(struct slot *s)
{
	pthread_t t;
	pid_t gone;

	if (kc_setup(s, &exited, 14 * PAGE_WORDS))
		return;
	slot_object(s, &exited, 1, 2);
	pthread_create(&t, NULL, thread_exits, s);
	pthread_join(t, NULL);
	gone = s->tid;
	slot_self(s);
	s->enabled = false;
	s->owner = 0;
	slot_call(s, "exit of tid %d", gone);
	slot_extra(s, ", \"exited_tid\": %d", gone);
}

/* Many descriptors in one process, to have a file table that has grown. */
static void st_many(struct slot *s)
{
	struct kc k;
	int high;

	if (kc_open(s, &k))
		return;
	high = fcntl(k.fd, F_DUPFD, 700);
	if (high < 0) {
		slot_missing(s, "F_DUPFD");
		return;
	}
	slot_call(s, "fcntl F_DUPFD 700");
	s->fds[s->nfds++] = k.fd;
	s->fds[s->nfds++] = high;
	slot_object(s, &k, 1, 1);
}

void states_local(void)
{
	spawn_state("kc-none", st_heir);
	spawn_state("kc-open", st_open);
	spawn_state("kc-highfd", st_many);
	spawn_state("kc-init", st_init);
	spawn_state("kc-odd", st_odd);
	spawn_state("kc-mapped", st_mapped);
	spawn_state("kc-pc", st_pc);
	spawn_state("kc-cmp", st_cmp);
	spawn_state("kc-full", st_full);
	spawn_state("kc-over", st_over);
	spawn_state("kc-over-cmp", st_over_cmp);
	spawn_state("kc-off", st_off);
	spawn_state("kc-off-cmp", st_off_cmp);
	spawn_state("kc-again", st_again);
	spawn_state("kc-closed", st_closed);
	spawn_state("kc-bare", st_bare);
	spawn_state("kc-mapping", st_mapping);
	spawn_state("kc-split", st_split);
	heir = slot_new("kc-heir");
	spawn_state("kc-dup", st_dup);
	spawn_state("kc-flight", st_flight);
	spawn_state("kc-thr", st_threads);
	spawn_state("kc-exited", st_exited);
	spawn_state("kc-hostile", st_hostile);
}
