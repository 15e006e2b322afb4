// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The init of a lab guest: puts KCOV into every state that user space can put it into, and says what is true.
 *
 * TRUTH LINES
 *
 * Output goes to /dev/ttyS1, or to /dev/console without that, raw, at any speed. Each line is `TRUTH ` and one JSON object with either
 * "state" or "answer", or is the line that ends the beginning: {"done": true, "states": N, "missing": N, "moved": [...],
 * "unsettled": [...], "tasks": N, "ms": N}. Only init writes, so lines are whole. From `done` on nothing moves until a command comes.
 * "moved" names states whose count has changed since it was printed: none, if all is well. "unsettled" names states that didn't come to
 * rest: none.
 *
 * Addresses, handles, hashes and buffer words are hex strings, counts and ids are numbers. In `comm` a byte of the name is the character
 * with that number (U+0000 to U+00FF); comm_hex has the bytes.
 *
 * ONE LINE PER STATE. Keys of a line with a struct kcov (object is not null):
 *
 *   state        its name; the task's comm is the same, unless `comm` says otherwise
 *   object       the state that made the struct kcov. Lines with the same object are about the same struct kcov; null: this task has
 *                nothing to do with any, and only the keys up to comm_hex, state's own ones and `calls` are there
 *   pid, tid, tgid, comm, comm_hex      as the task itself sees them
 *   fds          descriptors of this process's for it. kc-thr's threads list their own, though they share the table
 *   size         in words; 0: KCOV_INIT_TRACE wasn't called
 *   mode         TRACE_PC or TRACE_CMP while a session is in force, else null
 *   trace        the same, also after the session: how the contents are to be read. null: there has been none
 *   kcov_mode    what struct kcov's mode must be: DISABLED, INIT, TRACE_PC, TRACE_CMP
 *   enabled      a task is attached, by KCOV_ENABLE or KCOV_REMOTE_ENABLE; owner_tid says which one, or null
 *   remote       by KCOV_REMOTE_ENABLE; remote_size, handles[] (all, the common one last) and common_handle are as passed
 *   refcount     what struct kcov's reference count must be while nothing runs: 1 for a struct file (however many descriptors and
 *                mappings show it), 1 for the attached task
 *   sequence     what struct kcov's sequence must be: 1, and 1 more for each session that has ended
 *   mapped, map_start, map_length, map_tid     a mapping, in bytes, in the memory of that task
 *   phys         physical address of the buffer's first page
 *   count        word 0 of the buffer, read through that mapping once the state stood; null if there is no mapping
 *   capacity     records that fit; full: count >= capacity
 *   hash         FNV-1a, 64 bits (offset basis 0xcbf29ce484222325, prime 0x100000001b3), over the buffer's first `hashed_words` words
 *                as little-endian bytes: the count word and all words of the records that it counts (1 word per PC, 4 per comparison,
 *                count clamped to capacity)
 *   records      the words of all counted records, in order, as the kernel wrote them (KASLR offset not added back), if they are 400
 *                at most; else head and tail, the first and the last 16 of them
 *   calls        what was called, in order
 *
 * A state that this kernel can't have is {"state": S, "missing": why}.
 *
 *   kc-none      a task that never heard of KCOV
 *   kc-open      opened only                            kc-highfd   the same, with a second descriptor from 700 on
 *   kc-init      initialised, never mapped              kc-mapped   mapped, never enabled
 *   kc-odd       enabled; its size is no whole number of pages, so it can't be mapped
 *   kc-pc        PC trace, enabled                      kc-cmp      comparisons, enabled
 *   kc-full      enabled, filled to the last word exactly (`exact`; `records_per_call`)
 *   kc-over      PC trace, enabled, far too small       kc-over-cmp the same for comparisons; words are left over at the end
 *   kc-off       disabled with contents, PCs            kc-off-cmp  the same, comparisons
 *   kc-again     third session on one descriptor, enabled
 *   kc-closed    enabled, closed, mapped                kc-bare     enabled, closed, never mapped
 *   kc-mapping   disabled, closed, mapped               kc-split    two pages unmapped in the middle: `vmas` lists [start, pages,
 *                                                                   page offset] of what is left
 *   kc-dup       enabled, descriptor duplicated         kc-heir     its child: inherited descriptors and mapping, no session
 *   kc-flight    the only descriptor is in flight between two unix sockets (`sockets`)
 *   kc-thr       leader of the threads kc-thr/0 to kc-thr/7, enabled with an object each
 *   kc-exited    the enabled thread has exited (`exited_tid`), its process holds descriptor and mapping
 *   kc-hostile   enabled; comm is an attack on terminals
 *   kc-zombie    exited while enabled, not waited for; the object is its parent's, kc-zparent
 *   kc-zleader   a leader that has exited (a zombie) before its thread kc-zleader/t, which is enabled
 *   kc-exiting   stopped by its tracer, kc-tracer, inside exit: no session any more, files and memory still there
 *   kc-remote    owner of a common handle that a vhost worker (`workers`: tids) carries; `packets` went through it, so the worker's
 *                sections have filled the buffer. `vhost`: which device
 *   kc-remote2   the same with comparisons, another area size, and two USB handles of buses that don't exist
 *   kc-usb       owner of the handle of dummy_hcd's bus (`bus`), and of two more; filled by hub_event and by softirqs while
 *   kc-gadget    enumerated (`device`, `control_requests`)
 *   kc-nohandle  remote owner without any handle
 *   kc-parent    remote owner of a common handle        kc-child    its child: has the `kcov_handle`, and kc-parent's descriptor
 *   kc-orphan    has the `kcov_handle` of an owner that is gone
 *   kc-keep      ran functions of module kcovlab_keep (`text`, `functions`: their addresses); kc-keep-cmp: with comparisons
 *   kc-gone      ran functions of kcovlab_gone, which was unloaded then
 *
 * `area_sizes` (words) of kc-remote, kc-remote2, kc-usb: sections in task context used an area of this size, so one or more areas of it are
 * cached in kcov_remote_areas now.
 *
 * ABOUT THE SYSTEM
 *
 *   kernel       release, version, machine, build_id, cpus, symbols (name: address), cmdline
 *   tasks        tids: [tid, tgid, name, task_state] of every task /proc shows; idle tasks aren't among them. name is what
 *                /proc/TID/stat has, which for a kworker is longer than its comm
 *   vmalloc      areas whose caller is one of kcov's functions; size includes the guard page; user: made for mapping
 *   maps         lines of /proc/PID/maps of KCOV mappings; fds: [pid, fd] of each descriptor for KCOV
 *
 * These are printed last, just before `done`, when everything stands.
 *
 * COMMANDS, one per line, are answered by TRUTH lines of which the last is {"answer": COMMAND, "done": true}, with "error" if the
 * command isn't known.
 *
 *   ping                how many transfers the traffic has done so far, and how many tasks there are
 *   count NAME|ID       print a state again, found by its name, tid or pid; contents are read anew
 *   states, kernel, tasks, vmalloc, maps         print these again
 *   threads N           N more threads in processes of 1000, which sleep (state `threads`: asked, started, tasks)
 *   traffic usb         kc-traffic: a task with KCOV enabled does USB transfers and system calls, without end. Softirqs that give
 *                       transfers back interrupt it and run sections for kc-usb
 *   traffic usb plain   kc-traffic-p: the same from a task without KCOV
 *   traffic usb hub     kc-traffic-h: a gadget plugged in and out without end, on dummy_hcd.1 if there is one (then it owns that bus's
 *                       handle), else on dummy_hcd.0, where kc-gadget is in the way: then kc-gadget is ended
 *   traffic vhost       kc-traffic-v: packets through a vhost worker without end, for an owner of its own
 *   inflight hub        kc-mute: a gadget that doesn't answer. hub_event sits inside its remote section for seconds, again and again
 *                       for about a minute. On dummy_hcd.1 or instead of kc-gadget, as above
 *   inflight vhost      kc-stuck: a vhost worker that sleeps inside its remote section for ever (needs userfaultfd)
 *   bogus               kc-bogus: a disabled buffer whose count word user space has overwritten
 *   storm SECONDS       many threads do everything at random. State `storm` when it runs, and again with the counts of operations
 *   stop                end what traffic, inflight, bogus and threads have started
 *   crash               kc-crash is enabled and triggers a crash by sysrq. Its line and the answer come before
 *   quit                reboot; QEMU's -no-reboot makes that an exit
 *
 * The kernel command line may say kcovlab.mode=WORD,WORD,... : `stand` (the states above; implied), `none` (no states), and commands with
 * colons for spaces (`threads:20000`, `traffic:usb`), which run before `done`.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static void mount_at(const char *type, const char *where)
{
	mkdir(where, 0755);
	/* EBUSY: the kernel has mounted devtmpfs itself. */
	if (mount(type, where, type, 0, NULL) && errno != EBUSY)
		dprintf(2, "mount %s: %s\n", type, strerror(errno));
}

static void set_up(void)
{
	mount_at("devtmpfs", "/dev");
	mount_at("proc", "/proc");
	mount_at("sysfs", "/sys");
	mount_at("debugfs", "/sys/kernel/debug");
	/* At 0, addresses in /proc are hashed even for root. */
	spew("/proc/sys/kernel/kptr_restrict", "1");
	spew("/proc/sys/kernel/sysrq", "1");
	/* Nothing shall be sent unasked over interfaces that come up. */
	spew("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
	spew("/proc/sys/vm/unprivileged_userfaultfd", "1");
	signal(SIGPIPE, SIG_IGN);
	shm = mmap(NULL, sizeof(*shm), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (shm == MAP_FAILED)
		abort();
}

/* The words of kcovlab.mode, as one string separated by commas. */
static void mode_words(char *words, size_t n)
{
	static char cmdline[4096];
	char *at;

	words[0] = 0;
	if (slurp("/proc/cmdline", cmdline, sizeof(cmdline)) <= 0)
		return;
	at = strstr(cmdline, "kcovlab.mode=");
	if (!at)
		return;
	at += strlen("kcovlab.mode=");
	at[strcspn(at, " \n")] = 0;
	snprintf(words, n, "%s", at);
}

static int print_states(char *unsettled, size_t n)
{
	int slots = atomic_load(&shm->nslots), missing = 0;
	size_t len = 0;

	for (int i = 0; i < slots; i++)
		slot_wait(&shm->slots[i], 10000);
	/* All of them stand before the first is read: making one may yet change another. */
	for (int i = 0; i < slots; i++) {
		struct slot *s = &shm->slots[i];

		if (!s->missing[0] && !slot_settle(s, 5000) && len < n - 40)
			len += sprintf(unsettled + len, "%s\"%s\"", len ? ", " : "", s->state);
	}
	for (int i = 0; i < slots; i++) {
		missing += shm->slots[i].missing[0] != 0;
		truth_slot(&shm->slots[i]);
	}
	return missing;
}

/* States whose count isn't what was printed. */
static void check_moved(char *moved, size_t n)
{
	int slots = atomic_load(&shm->nslots);
	size_t len = 0;

	for (int i = 0; i < slots; i++) {
		struct slot *s = &shm->slots[i];
		uint64_t count;

		if (s->counted && !s->volatile_count && (!slot_count(s, &count) || count != s->last_count) && len < n - 40)
			len += sprintf(moved + len, "%s\"%s\"", len ? ", " : "", s->state);
	}
}

static void listen(void)
{
	static char buf[256];
	size_t len = 0;

	for (;;) {
		struct pollfd p = { truth_fd(), POLLIN, 0 };
		ssize_t n;
		char *end;

		/* Nobody has to be reaped in a hurry: a guest that stands is not woken for it. */
		if (poll(&p, 1, -1) < 0)
			continue;
		n = read(truth_fd(), buf + len, sizeof(buf) - 1 - len);
		if (n <= 0) {
			msleep(100);
			continue;
		}
		len += n;
		buf[len] = 0;
		while ((end = strpbrk(buf, "\r\n"))) {
			*end++ = 0;
			command(buf);
			len -= end - buf;
			memmove(buf, end, len + 1);
		}
		if (len == sizeof(buf) - 1)
			len = 0;
		reap();
	}
}

int main(void)
{
	static char words[512], unsettled[2048], moved[2048];
	uint64_t begin;
	int missing = 0, nslots;
	bool states;
	char *word, *save;

	set_up();
	begin = now_ms();
	prctl(PR_SET_NAME, "kcovlab");
	truth_open();
	mode_words(words, sizeof(words));
	states = !strstr(words, "none");
	if (states) {
		usb_start();
		states_local();
		states_dead();
		states_modules();
		states_remote();
		usb_finish();
		missing = print_states(unsettled, sizeof(unsettled));
	}
	nslots = atomic_load(&shm->nslots);
	for (word = strtok_r(words, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		if (!strcmp(word, "none") || !strcmp(word, "stand"))
			continue;
		for (char *p = word; *p; p++)
			if (*p == ':')
				*p = ' ';
		command(word);
	}
	/* The middle process of kc-orphan, at least. */
	reap();
	truth_kernel();
	truth_tasks();
	truth_vmalloc();
	truth_maps();
	check_moved(moved, sizeof(moved));
	truth("\"done\": true, \"states\": %d, \"missing\": %d, \"moved\": [%s], \"unsettled\": [%s], \"tasks\": %lu, \"ms\": %lu", nslots,
	      missing, moved, unsettled, count_tasks(), now_ms() - begin);
	listen();
}
