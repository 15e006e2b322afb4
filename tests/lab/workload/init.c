// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The init of a lab guest: puts KCOV into every state that user space can put it into, and says
 * what is true.
 *
 * TRUTH LINES
 *
 * Output goes to /dev/ttyS1, else to /dev/hvc0, else to /dev/console, raw. Each line is `TRUTH ` and
 * one JSON object with either "state" or "answer", or is the line that ends the beginning:
 *
 *   {"done": true, "states": N, "missing": N, "moved": [...], "unsettled": [...], "tasks": N,
 *    "ms": N}
 *
 * Only init writes, so lines are whole. From `done` on nothing moves until a command comes. "moved"
 * names states whose count has changed since it was printed: none, if all is well. "unsettled"
 * names states that didn't come to rest: none.
 *
 * Addresses, handles, hashes and buffer words are hex strings, counts and ids are numbers. In
 * `comm` a byte of the name is the character with that number (U+0000 to U+00FF); comm_hex has the
 * bytes.
 *
 * STATES: one line each. The keys of a line with a struct kcov (its object is not null):
 *
 *   state         its name; the task's comm is the same, unless `comm` says otherwise
 *   object        the state that made the struct kcov. Lines with the same object are about the
 *                 same struct kcov. null: this task has nothing to do with any, and the line has
 *                 only the keys up to comm_hex, some of the state's own, and `calls`
 *   pid, tid, tgid, comm, comm_hex     as the task itself sees them
 *   fds           this process's descriptors for it. Each of kc-thr's threads lists its own only,
 *                 though they share the table
 *   size          in words; 0: KCOV_INIT_TRACE wasn't called. Sizes differ between objects, except
 *                 kc-full's and kc-over's, and those that are 0
 *   mode          what struct kcov's mode is while a session is in force, else null
 *   trace         the same, also after the session: how the contents are to be read. null: there
 *                 has been none
 *   kcov_mode     what struct kcov's mode must be: DISABLED, INIT, TRACE_PC, TRACE_CMP, or that of a
 *                 posted series
 *   extended      records have types: KCOV_TRACE_PC_EXT
 *   bitmap_words, bits_set     of KCOV_UNIQUE_ENABLE: the words before the count, and what is set in
 *                 them. Once it is disabled the kernel takes their first word for the count, and so
 *                 does `count` here
 *   edges         the records of the second buffer, where edges are collected beside PCs
 *   enabled       a task is attached, by KCOV_ENABLE or KCOV_REMOTE_ENABLE; owner_tid says which
 *                 one, or null
 *   remote        it is by KCOV_REMOTE_ENABLE; remote_size, handles[] (all of them, the common one
 *                 last) and common_handle are as passed
 *   refcount      what struct kcov's reference count must be: 1 for a struct file (however many
 *                 descriptors and mappings show it), 1 for the attached task. Each remote section
 *                 that is running adds 1 to that
 *   sequence      what struct kcov's sequence must be: 1, and 1 more for each session that ended
 *   mapped, map_start, map_length, map_tid     a mapping, in bytes, in the memory of that task.
 *                 false for kc-split, whose mapping has a hole: see there
 *   phys          physical address of the buffer's first page
 *   count         word 0 of the buffer, read through that mapping once the state stood; null
 *                 without a mapping
 *   capacity      records that fit; full: count >= capacity
 *   hash          FNV-1a, 64 bits (offset basis 0xcbf29ce484222325, prime 0x100000001b3), over the
 *                 first `hashed_words` words of the buffer as little-endian bytes: the count word
 *                 and all words of the records that it counts (1 word per PC, 4 per comparison,
 *                 the count clamped to capacity)
 *   records       the words of all counted records, in order, as the kernel wrote them (KASLR
 *                 offset not added back), if they are 400 at most; else `head` and `tail`, the
 *                 first and the last 16 of them
 *   calls         what was called, in order, except that calls made while KCOV was enabled may stand
 *                 before KCOV_ENABLE: to note them there would have been recorded
 * A state that this kernel cannot have is {"state": S, "missing": why}.
 *
 *   kc-none       a task that never used KCOV
 *   kc-open       opened only
 *   kc-highfd     opened only, with a second descriptor from 700 on
 *   kc-init       initialised, never mapped
 *   kc-mapped     mapped, never enabled
 *   kc-odd        enabled; its size is not a whole number of pages, so it cannot be mapped
 *   kc-pc         PC trace, enabled
 *   kc-cmp        comparisons, enabled
 *   kc-full       enabled; filled to the last word exactly (`exact`, `records_per_call`)
 *   kc-over       PC trace, enabled, far too small
 *   kc-over-cmp   the same for comparisons; some words at the end are too few for a record
 *   kc-off        disabled with contents, PCs
 *   kc-off-cmp    disabled with contents, comparisons
 *   kc-again      third session on one descriptor, enabled
 *   kc-closed     enabled, closed, mapped
 *   kc-bare       enabled, closed, never mapped: the task has the only reference
 *   kc-mapping    disabled, closed, mapped
 *   kc-split      two pages unmapped in the middle: `vmas` lists [start, pages, page offset]
 *   kc-dup        enabled, descriptor duplicated
 *   kc-heir       its child: inherited descriptors and mapping, no session
 *   kc-flight     the only descriptor is in flight between two unix sockets (`sockets`)
 *   kc-thr        leader of the threads kc-thr/0 to kc-thr/7, each enabled with its own object
 *   kc-exited     the enabled thread has exited (`exited_tid`), its process has descriptor and
 *                 mapping
 *   kc-hostile    enabled; comm has control sequences for terminals
 *   kc-zombie     exited while enabled, not waited for; the object is its parent's, kc-zparent
 *   kc-zleader    a leader that exited (a zombie) before its thread kc-zleader/t, which is enabled:
 *                 files and memory can be found through the thread only
 *   kc-exiting    stopped by its tracer, kc-tracer, inside exit: no session any more, files and
 *                 memory still there
 *   kc-remote     owner of a common handle that a vhost worker carries. `packets` went through it,
 *                 and the worker's sections have filled the buffer. `vhost`: the device, or null
 *                 and `vhost_missing`. `workers`: their tids; they inherited the kcov_handle too
 *   kc-remote2    the same with comparisons, another area size, and two USB handles of buses that
 *                 don't exist
 *   kc-usb        owner of the handle of dummy_hcd's bus (`bus`), and of two more; filled by
 *                 hub_event and by softirqs when
 *   kc-gadget     was enumerated (`device`, `configured`, `control_requests`); it has two threads
 *   kc-nohandle   remote owner without any handle, area_size 100
 *   kc-parent     remote owner of a common handle
 *   kc-child      its child: has the `kcov_handle`, and kc-parent's descriptor and mapping
 *   kc-orphan     has the `kcov_handle` of an owner that is gone
 *   kc-keep       ran functions of module kcovlab_keep (`text`, `functions`: their addresses)
 *   kc-keep-cmp   the same with comparisons
 *   kc-gone       ran functions of kcovlab_gone, which was unloaded then
 *
 * On kernels that have what these are about, as kcovlab.kcov= on the command line says:
 *
 *   kc-both       collects locally and owns a common handle, at once; the latter's object is
 *   kc-both/r     of the same task. A vhost worker carries the handle
 *   kc-uniq-pc, kc-uniq-edge, kc-uniq-both, kc-uniq-cmp     enabled in these modes
 *   kc-uniq-off   disabled after edges and PCs
 *   kc-unique     KCOV_UNIQUE_ENABLE, enabled
 *   kc-unique-r   the same after KCOV_RESET_TRACE
 *   kc-unique-s   the same with a bitmap too small for most of the kernel
 *   kc-unique-off the same, disabled
 *   kc-ext        KCOV_TRACE_PC_EXT, enabled
 *   kc-ext-off    the same, disabled
 *   kc-ext-remote an owner whose sections record types
 *   df-local      kcov_dataflow, enabled: `dataflow` has its `fd`, `size` (words), `handle`, `map` and, read through that
 *                 mapping, `count` and `words`. `passed`: what was passed to functions in order, [name, arguments, result];
 *                 a list for members of a structure, null where there was none
 *   df-off        the same, disabled
 *   df-both       the same and KCOV, enabled
 *   df-usb        kcov_dataflow with the handle of dummy_hcd's bus
 *
 * `area_sizes` (words) of kc-remote, kc-remote2 and kc-usb: sections in task context used an area
 * of this size, so that at least one of it is cached in kcov_remote_areas now.
 *
 * ABOUT THE SYSTEM, printed last, just before `done`, when everything stands:
 *
 *   kernel        release, version, machine, build_id, cpus_*, symbols (name: address), cmdline
 *   tasks         tids: [tid, tgid, name, task_state] of every task /proc shows, or null if there
 *                 are more than 2000; count. Idle tasks aren't among them. name is what
 *                 /proc/TID/stat has, which for a kworker is longer than its comm
 *   vmalloc       areas whose caller is one of kcov's functions; size includes the guard page;
 *                 user: made for mapping
 *   maps          lines of /proc/PID/maps for KCOV's mappings; fds: [pid, fd] of each descriptor
 *
 * COMMANDS, one per line on the same port, are answered by TRUTH lines of which the last is
 * {"answer": COMMAND, "done": true}, with "error" if the command isn't known.
 *
 *   ping          how many transfers the traffic has done so far, and how many tasks there are
 *   count WHICH   print a state again, found by its name, tid or pid; its contents are read anew
 *   states, kernel, tasks, vmalloc, maps
 *                 print these again
 *   threads N     N more threads in processes of 1000, all asleep (state `threads`: asked, started,
 *                 tasks). 20,000 need a guest of about 1 GiB
 *   traffic usb   kc-traffic: a task with KCOV enabled does USB transfers and system calls, without
 *                 end. Softirqs that give transfers back interrupt it and run sections for kc-usb
 *   traffic usb plain
 *                 kc-traffic-p: the same from a task without KCOV; control transfers only, if
 *                 another task has the interface
 *   traffic usb hub
 *                 kc-traffic-h: a gadget plugged in and out without end, and softirqs on top of
 *                 hub_event's sections. On dummy_hcd.1 if there is one (dummy_hcd.num=2 on the
 *                 kernel's command line; the task then owns that bus's handle), else on
 *                 dummy_hcd.0 for kc-usb, and kc-gadget is ended
 *   traffic vhost kc-traffic-v: packets through a vhost worker without end, for an owner of its own
 *   traffic interrupt
 *                 kc-traffic-i: a task with KCOV enabled that computes in user space, interrupted by a timer without end. Each
 *                 interrupt runs a softirq, then work of the task, which is interrupted again. `recorded` says how many records
 *                 the kernel made in each of these contexts, `functions` what to stop at
 *   inflight hub  kc-mute: a gadget that doesn't answer. hub_event sits inside its remote section
 *                 for four seconds from the answer on, and again and again, with short gaps.
 *                 Controller as above; state `hub-section` says whose the handle is (`held_by`)
 *   inflight vhost
 *                 kc-stuck: a vhost worker (`workers`) that sleeps inside its remote section for
 *                 ever; its refcount includes the section (needs userfaultfd)
 *   lost          kc-lost: the owner of a common handle, interrupted by softirqs' sections again and
 *                 again, and then asleep. Kernels whose owners have no mode lose track of it
 *   bogus         kc-bogus: a disabled buffer whose count word user space has overwritten
 *   scribble      kc-scribble: two records (`scribbled`) that user space has overwritten in the buffer of an
 *                 enabled task; `before` is a page mapped directly before the buffer
 *   reuse         kc-reuse: a buffer whose count was not reset between comparisons and addresses
 *   uring [owner] kc-uring: enabled, with a request that a worker of io_uring executes; or owner
 *                 of a common handle that the worker announces, on kernels where it does
 *   storm SECONDS [PROCESSES]
 *                 many threads do everything at random, eight in each process. State `storm` when it starts ("running":
 *                 true), and again with the counts of operations when it is over
 *   traffic usb plug    as hub, and the handle is left to whoever wants it
 *   run NAME      run the script NAME of the exchange directory with the host's files: state `run` when
 *                 it has ended, with its `status`; see host.c
 *   stop          end what traffic, inflight, bogus, scribble, reuse, uring and threads have started
 *   puzzle NAME   a state in which coverage is missing, or KCOV's state damaged; see puzzle.c
 *   kdump ARGUMENTS
 *                 load a kernel that takes over after a panic, with these on its command line; see
 *                 capture.c
 *   crash [oops|warn|kasan|hung|lockup]
 *                 kc-crash is enabled and triggers a crash by sysrq, or in a module: by a NULL
 *                 dereference, a warning or a report of KASAN's with panic_on_warn, a hung task, a soft lockup. Its line and
 *                 the answer come
 *                 before that: the line is what its state is going to be, with an empty buffer.
 *                 `expect_functions` will be among its records; what follows them there is the
 *                 panic's own output
 *   quit          reboot; QEMU's -no-reboot makes that an exit
 *
 * The kernel's command line may say kcovlab.mode=WORD,WORD,...: `stand` (the states above;
 * implied), `none` (no states), and commands with colons for spaces (threads:20000, traffic:usb),
 * which run before `done`.
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

/* What the kernel's command line says after the name, as one string separated by commas. */
static void told_words(const char *name, char *words, size_t n)
{
	static char cmdline[4096];
	char *at;

	words[0] = 0;
	if (slurp("/proc/cmdline", cmdline, sizeof(cmdline)) <= 0)
		return;
	at = strstr(cmdline, name);
	if (!at)
		return;
	at += strlen(name);
	at[strcspn(at, " \n")] = 0;
	snprintf(words, n, "%s", at);
}

static int print_states(char *unsettled, size_t n)
{
	int slots, missing = 0;
	size_t len = 0;

	/* While one is waited for, it may add others. */
	for (int i = 0; i < atomic_load(&shm->nslots); i++)
		slot_wait(&shm->slots[i], 60000);
	slots = atomic_load(&shm->nslots);
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

		/* Children need not be reaped at once: an idle guest is not woken for that. */
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

int main(int argc, char **argv)
{
	static char words[512], unsettled[2048], moved[2048];
	uint64_t begin;
	int missing = 0, nslots;
	bool states;
	char *word, *save;

	if (getpid() != 1)
		return tool(argc, argv);
	set_up();
	told_words("kcovlab.capture=", words, sizeof(words));
	if (words[0])
		capture(words);
	begin = now_ms();
	prctl(PR_SET_NAME, "kcovlab");
	truth_open();
	told_words("kcovlab.mode=", words, sizeof(words));
	states = !strstr(words, "none");
	if (states) {
		usb_start();
		states_local();
		states_special();
		states_dataflow();
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
	truth("\"done\": true, \"states\": %d, \"missing\": %d, \"moved\": [%s], \"unsettled\": [%s], \"tasks\": %lu, \"ms\": "
	      "%lu",
	      nslots, missing, moved, unsettled, count_tasks(), now_ms() - begin);
	listen();
}
