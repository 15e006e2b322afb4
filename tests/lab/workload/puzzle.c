// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * States in which coverage is missing for a reason, or in which KCOV's own state is damaged: one
 * `puzzle NAME` each. Their lines say what the kernel answered, and which tasks are involved.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcov.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Also of state kc-remote. */
#define HANDLE_TAKEN 0x4201UL
#define HANDLE_LEFT 0x5101UL
#define HANDLE_OPEN 0x5102UL
#define HANDLE_NO_SIZE 0x5103UL
#define HANDLE_TOO_LARGE 0x5104UL
#define HANDLE_SKB 0x5105UL
#define HANDLE_LOST 0x5106UL

static uint64_t common(uint64_t instance)
{
	return kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, instance);
}

/* Returns 0, or errno. */
static int damage(const char *line)
{
	int fd, err = 0;

	if (module_load("kcovlab_damage") && errno != EEXIST)
		return errno;
	fd = open("/sys/kernel/debug/kcovlab_damage/do", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	if (write(fd, line, strlen(line)) != (ssize_t)strlen(line))
		err = errno;
	close(fd);
	return err;
}

/* What KCOV_REMOTE_ENABLE with this handle says to somebody else: 0, or errno. */
static int try_handle(uint64_t handle)
{
	struct slot scratch = { 0 };
	int err = 0;
	struct kc k;

	if (kc_setup(&scratch, &k, PAGE_WORDS))
		return ENODEV;
	if (kc_remote_enable(&scratch, &k, TRACE_PC, 512, NULL, 0, handle))
		err = errno;
	else
		kc_disable(&scratch, &k);
	munmap((void *)k.area, k.size * sizeof(uint64_t));
	close(k.fd);
	return err;
}

/* The struct kcov has one reference more than holders. */
static void st_leak(struct slot *s)
{
	char line[32];
	struct kc k;
	int err;

	if (kc_setup(s, &k, 50 * PAGE_WORDS))
		return;
	slot_object(s, &k, 2, 1);
	snprintf(line, sizeof(line), "ref %d", k.fd);
	err = damage(line);
	if (err)
		slot_missing(s, "%s: %s", line, strerror(err));
	slot_call(s, "leak a reference");
}

/*
 * An owner that the kernel lets exit without taking its handle back, with a descriptor that stays
 * open here.
 */
static void st_left(struct slot *s)
{
	struct slot scratch = { 0 };
	struct kc k;
	pid_t pid;
	int err;

	if (kc_setup(s, &k, 51 * PAGE_WORDS))
		return;
	slot_object(s, &k, 2, 1);
	pid = fork();
	if (!pid) {
		scratch.tid = getpid();
		if (kc_remote_enable(&scratch, &k, TRACE_PC, 600, NULL, 0, common(HANDLE_LEFT)))
			_exit(1);
		_exit(damage("forget") ? 2 : 0);
	}
	waitpid(pid, &err, 0);
	if (err)
		slot_missing(s, "the owner ended with 0x%x", err);
	err = try_handle(common(HANDLE_LEFT));
	slot_call(s, "exit of an owner that was made to forget");
	slot_extra(s, ", \"gone_tid\": %d, \"left_handle\": \"0x%lx\", \"errno\": %d", pid, common(HANDLE_LEFT), err);
}

/* A worker of the kernel begins a section, never ends it, and waits for other work. */
static void st_open_section(struct slot *s)
{
	char line[32];
	struct kc k;
	int err;

	if (kc_setup(s, &k, 52 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC, 700, NULL, 0, common(HANDLE_OPEN)))
		return;
	/* One for the file, one for the owner, one for the section. */
	slot_object(s, &k, 3, 1);
	snprintf(line, sizeof(line), "open 0x%lx", common(HANDLE_OPEN));
	err = damage(line);
	if (err)
		slot_missing(s, "%s: %s", line, strerror(err));
}

/* The handle that it wants is kc-remote's. */
static void st_exist(struct slot *s)
{
	int err = try_handle(common(HANDLE_TAKEN));

	slot_extra(s, ", \"wanted\": \"0x%lx\", \"errno\": %d", common(HANDLE_TAKEN), err);
}

/* The same, with the descriptor still open: what the kernel leaves of the failed request. */
static void st_refused(struct slot *s)
{
	struct slot scratch = { 0 };
	struct kc k;

	if (kc_setup(s, &k, 58 * PAGE_WORDS))
		return;
	if (!kc_remote_enable(&scratch, &k, TRACE_PC, 512, NULL, 0, common(HANDLE_TAKEN)))
		slot_missing(s, "the handle was free");
	slot_extra(s, ", \"wanted\": \"0x%lx\", \"errno\": %d", common(HANDLE_TAKEN), errno);
	/* One for the file. */
	slot_object(s, &k, 1, 2);
}

/* Puts the ids of the task that calls it, and a second object if it has one, into the line of a state. */
static void tell_other(struct slot *s, const struct kc *k)
{
	prctl(PR_SET_NAME, "kc-other");
	slot_extra(s, ", \"other_tid\": %ld", syscall(SYS_gettid));
	if (k)
		slot_extra(s, ", \"other_fd\": %d, \"other_size\": %lu", k->fd, k->size);
	atomic_store(&s->done_calls, 1);
	if (!s->asleep)
		atomic_store(&s->ready, 1);
	for (;;)
		syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
}

static void wait_for_other(struct slot *s)
{
	for (int i = 0; i < 2000 && !atomic_load(&s->done_calls); i++)
		msleep(1);
	if (!atomic_load(&s->done_calls))
		slot_missing(s, "the other task did not come up");
}

static void *unshared_thread(void *arg)
{
	static struct slot scratch;
	struct slot *s = arg;
	struct kc k;

	if (unshare(CLONE_FILES) || close(s->fds[0]) || kc_setup(&scratch, &k, 60 * PAGE_WORDS))
		slot_missing(s, "unshare: %s", strerror(errno));
	tell_other(s, &k);
	return NULL;
}

/* A thread with a file table of its own, in which the same descriptor is another object's. */
static void st_unshared(struct slot *s)
{
	pthread_t t;
	struct kc k;

	if (kc_setup(s, &k, 59 * PAGE_WORDS))
		return;
	slot_object(s, &k, 1, 1);
	if (pthread_create(&t, NULL, unshared_thread, s))
		slot_missing(s, "pthread_create");
	wait_for_other(s);
}

static int sharing_process(void *arg)
{
	tell_other(arg, NULL);
	return 0;
}

static char sharing_stack[64 * 1024];

/* Two processes with one file table and one address space. */
static void st_sharing(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 61 * PAGE_WORDS))
		return;
	slot_object(s, &k, 1, 1);
	if (clone(sharing_process, sharing_stack + sizeof(sharing_stack), CLONE_VM | CLONE_FILES | SIGCHLD, s) < 0)
		slot_missing(s, "clone: %s", strerror(errno));
	wait_for_other(s);
}

/* A child of vfork() has its parent's address space, and a copy of its file table. */
static void st_vfork(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 62 * PAGE_WORDS))
		return;
	slot_object(s, &k, 1, 1);
	/* The parent waits for its child, which tells that both are there. */
	s->asleep = false;
	clone(sharing_process, sharing_stack + sizeof(sharing_stack), CLONE_VM | CLONE_VFORK | SIGCHLD, s);
}

static void st_no_size(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 53 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC, 0, NULL, 0, common(HANDLE_NO_SIZE)))
		return;
	slot_object(s, &k, 2, 1);
}

/* Sections collect more than the buffer takes. */
static void st_too_large(struct slot *s)
{
	struct vhost v;
	struct kc k;

	if (kc_setup(s, &k, PAGE_WORDS) ||
	    kc_remote_enable(s, &k, TRACE_PC, 54 * PAGE_WORDS, NULL, 0, common(HANDLE_TOO_LARGE)))
		return;
	slot_object(s, &k, 2, 1);
	if (vhost_start(&v, 73)) {
		slot_missing(s, "%s", v.why);
		return;
	}
	vhost_workers(s);
	for (int i = 0; i < 20; i++)
		vhost_packet(&v);
	slot_extra(s, ", \"vhost\": \"%s\"", v.kind);
}

/*
 * Packets that nobody takes out of their queue carry the handle of the task that sent them; so does
 * the worker of a vhost device.
 */
static void st_skb(struct slot *s)
{
	struct vhost v;
	struct kc k;
	int pair[2];

	if (kc_setup(s, &k, 55 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC, 800, NULL, 0, common(HANDLE_SKB)))
		return;
	slot_object(s, &k, 2, 1);
	if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) {
		slot_missing(s, "no unix sockets");
		return;
	}
	if (write(pair[0], "one", 3) != 3 || write(pair[0], "two", 3) != 3)
		slot_missing(s, "write to a socket: %s", strerror(errno));
	slot_extra(s, ", \"queue_fd\": %d, \"queued\": 2", pair[1]);
	if (vhost_start(&v, 74)) {
		slot_extra(s, ", \"vhost_fd\": null");
		return;
	}
	vhost_workers(s);
	slot_extra(s, ", \"vhost\": \"%s\", \"vhost_fd\": %d", v.kind, v.fd);
}

/*
 * The owner of a handle does USB transfers itself: softirqs that give them back begin sections for
 * kc-usb on top of it. Kernels from 5.8 to 6.9 lose its object over that.
 */
static void st_lost(struct slot *s)
{
	struct slot scratch = { 0 };
	struct kc k;
	pid_t pid;
	int err;

	if (kc_setup(s, &k, 56 * PAGE_WORDS))
		return;
	slot_object(s, &k, 1, 2);
	pid = fork();
	if (!pid) {
		scratch.tid = getpid();
		if (kc_remote_enable(&scratch, &k, TRACE_PC, 900, NULL, 0, common(HANDLE_LOST)))
			_exit(1);
		_exit(usb_transfers(&scratch, 300) ? 2 : 0);
	}
	waitpid(pid, &err, 0);
	if (err)
		slot_missing(s, "the owner ended with 0x%x", err);
	err = try_handle(common(HANDLE_LOST));
	slot_call(s, "exit of an owner that softirqs interrupted");
	slot_extra(s, ", \"gone_tid\": %d, \"left_handle\": \"0x%lx\", \"errno\": %d", pid, common(HANDLE_LOST), err);
}

/*
 * A task that loses its session to a remote section in its own context, without noticing: mac80211 does this to a task that
 * sends a frame. The resulting state depends on the kernel.
 */
static void st_nested(struct slot *s)
{
	struct kc k;
	int err;

	/* Load the module before, or loading it would be recorded as well. */
	err = damage("nest 0");
	if (err) {
		slot_missing(s, "nest 0: %s", strerror(err));
		return;
	}
	if (kc_setup(s, &k, 57 * PAGE_WORDS) || kc_enable(s, &k, TRACE_PC))
		return;
	err = damage("nest 0");
	if (err)
		slot_missing(s, "nest 0: %s", strerror(err));
	slot_call(s, "kcov_remote_start() and kcov_remote_stop() in its context");
}

/*
 * A count of comparisons by which the bound of kernels before autumn 2026 computes a small end: the next comparison is written
 * in front of the buffer. A process sleeps enabled meanwhile, and dies with the one that writes the count.
 */
static void st_wrap(struct slot *s)
{
	struct slot scratch = { 0 };
	struct kc k;
	pid_t pid;

	if (kc_setup(s, &k, 58 * PAGE_WORDS))
		return;
	slot_object(s, &k, 2, 1);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (kc_enable(&scratch, &k, TRACE_CMP))
			_exit(1);
		for (;;)
			pause();
	}
	/* Until it sleeps: its own comparisons are counted before. */
	msleep(500);
	k.area[0] = (1UL << 59) - 1;
	slot_call(s, "count word overwritten");
	slot_extra(s, ", \"enabled_tid\": %d", pid);
}

static const struct {
	const char *name, *state;
	void (*fn)(struct slot *s);
} puzzles[] = {
	{ "leak", "kc-leak", st_leak },
	{ "left", "kc-left", st_left },
	{ "open", "kc-opensect", st_open_section },
	{ "exist", "kc-exist", st_exist },
	{ "refused", "kc-refused", st_refused },
	{ "unshared", "kc-unshared", st_unshared },
	{ "sharing", "kc-sharing", st_sharing },
	{ "vfork", "kc-vfork", st_vfork },
	{ "nosize", "kc-nosize", st_no_size },
	{ "toolarge", "kc-toolarge", st_too_large },
	{ "skb", "kc-skb", st_skb },
	{ "stale", "kc-stale", vhost_stale },
	{ "lost", "kc-lostowner", st_lost },
	{ "nested", "kc-nested", st_nested },
	{ "wrap", "kc-wrap", st_wrap },
};

bool puzzle(const char *name, void (*begin)(const char *state, void (*fn)(struct slot *s)))
{
	for (size_t i = 0; i < sizeof(puzzles) / sizeof(puzzles[0]); i++)
		if (!strcmp(puzzles[i].name, name)) {
			begin(puzzles[i].state, puzzles[i].fn);
			return true;
		}
	return false;
}
