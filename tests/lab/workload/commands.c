// SPDX-License-Identifier: LGPL-2.1-or-later
/* What the host can ask for: see the top of init.c. */
#include "crowd.h"
#include "lab.h"
#include "storm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/kcov.h>
#include <linux/reboot.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define HANDLE_URING 0x4207UL

#define MAX_RUNNING 16

/* Processes that a command has started and that `stop` ends. */
static struct slot *running[MAX_RUNNING];
static pid_t running_pid[MAX_RUNNING];
static int nrunning;

bool storm_foreign(pid_t pid)
{
	int n = atomic_load(&shm->nslots);

	for (int i = 0; i < n; i++)
		if (shm->slots[i].pid == pid)
			return true;
	return false;
}

void reap(void)
{
	/*
	 * Only children of init, and orphans. The zombie among the states is a child of the task that made it. Tasks of a
	 * running command are left to `stop`.
	 */
	if (!nrunning)
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
}

static struct slot *start(const char *state, void (*fn)(struct slot *), int argument, int ms)
{
	struct slot *s;

	s = nrunning < MAX_RUNNING ? slot_new(state) : NULL;
	if (!s) {
		truth("\"state\": \"%s\", \"missing\": \"too much is running: stop first\"", state);
		return NULL;
	}
	atomic_store(&s->done_calls, argument);
	running_pid[nrunning] = s->pid = s->tid = spawn(s, fn);
	running[nrunning++] = s;
	slot_wait(s, ms);
	if (s->asleep && !s->volatile_count)
		slot_settle(s, 1000);
	truth_slot(s);
	return s;
}

static void begin(const char *state, void (*fn)(struct slot *))
{
	start(state, fn, 0, 20000);
}

static void stop(void)
{
	for (int i = 0; i < nrunning; i++)
		kill(running_pid[i], SIGKILL);
	for (int i = 0; i < nrunning; i++) {
		waitpid(running_pid[i], NULL, 0);
		running[i]->used = false;
	}
	nrunning = 0;
	crowd_stop();
}

/*
 * A controller for another gadget: the second if there is one, else the first, from which the
 * gadget of the standing states then has to go. kc-usb sees it leave.
 */
static int free_controller(void)
{
	struct slot *old = slot_find("kc-gadget");

	if (usb_dummy_bus(1))
		return 1;
	if (old && !old->missing[0]) {
		kill(old->pid, SIGKILL);
		waitpid(old->pid, NULL, 0);
		old->used = false;
	}
	return 0;
}

static bool traffic(const char *kind)
{
	atomic_store(&shm->traffic, 0);
	if (!strcmp(kind, "usb"))
		start("kc-traffic", usb_traffic_enabled, 0, 5000);
	else if (!strcmp(kind, "usb plain"))
		start("kc-traffic-p", usb_traffic_plain, 0, 5000);
	else if (!strcmp(kind, "usb hub"))
		start("kc-traffic-h", usb_traffic_hub, free_controller(), 5000);
	else if (!strcmp(kind, "usb plug"))
		start("kc-plugging", usb_traffic_plug, free_controller(), 5000);
	else if (!strcmp(kind, "vhost"))
		start("kc-traffic-v", vhost_traffic, 0, 5000);
	else if (!strcmp(kind, "interrupt"))
		start("kc-traffic-i", interrupt_traffic, 0, 20000);
	else
		return false;
	return true;
}

static void inflight_hub(void)
{
	int udc = free_controller();
	struct slot *s = start("kc-mute", udc ? usb_mute_owner : usb_gadget_mute, udc, 5000);

	if (!s || s->missing[0])
		return;
	/* hub_event is in its section from the first request that stays without an answer. */
	for (int i = 0; i < 500 && !atomic_load(&s->done_calls); i++)
		msleep(10);
	truth("\"state\": \"hub-section\", \"bus\": %d, \"handle\": \"0x%lx\", \"held_by\": \"%s\", \"requests\": %d",
	      usb_dummy_bus(udc), 1UL << 56 | usb_dummy_bus(udc), udc ? "kc-mute" : "kc-usb", atomic_load(&s->done_calls));
}

/* A count that no buffer can have, written by the owner of the buffer. */
static void st_bogus(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 3 * PAGE_WORDS) || kc_enable(s, &k, TRACE_PC))
		return;
	syscall(SYS_getppid);
	kc_disable(s, &k);
	k.area[0] = 0xdeadbeefcafeUL;
	slot_object(s, &k, 1, 2);
	slot_call(s, "count word overwritten");
}

/*
 * User space writes into its buffer, as a stray pointer would: one record becomes an address in the middle of a call, another
 * one becomes a word that is not an address. A page of memory is mapped directly before the buffer, nothing after it.
 */
static void st_scribble(struct slot *s)
{
	const size_t page = PAGE_WORDS * sizeof(uint64_t), length = 4 * page;
	struct kc k;
	char *room;

	if (kc_open(s, &k) || kc_init(s, &k, 4 * PAGE_WORDS))
		return;
	room = mmap(NULL, length + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED || munmap(room + page + length, page) ||
	    mmap(room + page, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, k.fd, 0) == MAP_FAILED) {
		slot_missing(s, "mmap: %s", strerror(errno));
		return;
	}
	k.area = (volatile uint64_t *)(room + page);
	slot_object(s, &k, 2, 1);
	slot_extra(s, ", \"scribbled\": [5, 9], \"before\": \"0x%lx\"", (uintptr_t)room);
	if (kc_enable(s, &k, TRACE_PC))
		return;
	for (int i = 0; i < 3; i++)
		syscall(SYS_getppid);
	k.area[1 + 5] -= 2;
	k.area[1 + 9] = 0x4141414141414141UL;
}

/* Comparisons, then addresses behind them: user space has not reset the count. */
static void st_reuse(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 4 * PAGE_WORDS) || kc_enable(s, &k, TRACE_CMP))
		return;
	for (int i = 0; i < 3; i++)
		syscall(SYS_getppid);
	if (kc_disable(s, &k))
		return;
	slot_object(s, &k, 2, 2);
	s->mode = TRACE_PC;
	s->enabled = true;
	s->owner = s->tid;
	s->volatile_count = true;
	ioctl(k.fd, KCOV_ENABLE, KCOV_TRACE_PC);
}

/* Prepare a request that a worker of io_uring executes: it waits for a writer of a FIFO. Return the ring. */
static int uring_request(struct slot *s)
{
	struct io_uring_params params = { 0 };
	struct io_uring_sqe *entries;
	static const char path[] = "/kc-uring";
	uint32_t *ring;
	int fd;

	fd = syscall(SYS_io_uring_setup, 1, &params);
	if (fd < 0 || (mkfifo(path, 0600) && errno != EEXIST)) {
		slot_missing(s, "io_uring_setup or mkfifo: %s", strerror(errno));
		return -1;
	}
	ring = mmap(NULL, params.sq_off.array + params.sq_entries * sizeof(uint32_t), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_POPULATE, fd, IORING_OFF_SQ_RING);
	entries = mmap(NULL, params.sq_entries * sizeof(*entries), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
		       IORING_OFF_SQES);
	if (ring == MAP_FAILED || entries == MAP_FAILED) {
		slot_missing(s, "mmap of the ring: %s", strerror(errno));
		return -1;
	}
	/* Reading from a pipe would be left to a poll. */
	entries[0].opcode = IORING_OP_OPENAT;
	entries[0].flags = IOSQE_ASYNC;
	entries[0].fd = AT_FDCWD;
	entries[0].addr = (uintptr_t)path;
	entries[0].open_flags = O_RDONLY;
	ring[params.sq_off.array / sizeof(uint32_t)] = 0;
	__atomic_store_n(&ring[params.sq_off.tail / sizeof(uint32_t)], 1, __ATOMIC_SEQ_CST);
	return fd;
}

/* The work of its worker is not part of the coverage of its process. */
static void st_uring(struct slot *s)
{
	struct kc k;
	int fd;

	if (kc_setup(s, &k, 16 * PAGE_WORDS))
		return;
	slot_object(s, &k, 2, 1);
	s->volatile_count = true;
	if ((fd = uring_request(s)) >= 0 && !kc_enable(s, &k, TRACE_PC))
		syscall(SYS_io_uring_enter, fd, 1, 0, 0, NULL, 0);
}

/* Its ring takes the common handle, which its worker announces from 7.3 on. */
static void st_uring_owner(struct slot *s)
{
	struct kc k;
	int fd;

	if (kc_setup(s, &k, 16 * PAGE_WORDS) ||
	    kc_remote_enable(s, &k, TRACE_PC, 4 * PAGE_WORDS, NULL, 0, kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, HANDLE_URING)))
		return;
	slot_object(s, &k, 2, 1);
	s->volatile_count = true;
	if ((fd = uring_request(s)) >= 0)
		syscall(SYS_io_uring_enter, fd, 1, 0, 0, NULL, 0);
}

/* Ways to crash by module kcovlab_oops, each with the setting that makes a panic of it. */
static const struct {
	const char *how;
	const char *text;
	const char *setting;
	const char *value;
} crashes[] = {
	{ "oops", "3", "/proc/sys/kernel/panic_on_oops", "1" },	     { "warn", "w", "/proc/sys/kernel/panic_on_warn", "1" },
	{ "kasan", "k", "/proc/sys/kernel/panic_on_warn", "1" },     { "hung", "h", "/proc/sys/kernel/hung_task_panic", "1" },
	{ "lockup", "l", "/proc/sys/kernel/softlockup_panic", "1" },
};

static int find_crash(const char *how)
{
	for (size_t i = 0; i < sizeof(crashes) / sizeof(*crashes); i++)
		if (!strcmp(crashes[i].how, how))
			return i;
	return -1;
}

/* Both are opened and loaded before: what counts is what the crash itself executes. */
static int open_crash(struct slot *s, int which, const char **text)
{
	if (which < 0) {
		*text = "c";
		slot_extra(s, ", \"expect_functions\": [\"__handle_sysrq\", \"sysrq_handle_crash\", \"panic\"]");
		return open("/proc/sysrq-trigger", O_WRONLY);
	}
	*text = crashes[which].text;
	if (module_load("kcovlab_oops") && errno != EEXIST)
		return -1;
	if (spew(crashes[which].setting, crashes[which].value))
		return -1;
	/* Seconds; without them the detectors take minutes. */
	spew("/proc/sys/kernel/hung_task_timeout_secs", "2");
	spew("/proc/sys/kernel/watchdog_thresh", "2");
	if (which)
		slot_extra(s, ", \"expect_functions\": [\"kcovlab_oops_write\", \"kcovlab_oops_%s\"]", crashes[which].how);
	else
		slot_extra(s, ", \"expect_functions\": [\"kcovlab_oops_write\", \"kcovlab_oops_outer\", "
			      "\"kcovlab_oops_middle\", \"kcovlab_oops_inner\"]");
	return open("/sys/kernel/debug/kcovlab_oops/run", O_WRONLY);
}

static void st_crash(struct slot *s)
{
	int which = atomic_exchange(&s->done_calls, 0) - 1;
	const char *text;
	int fd = open_crash(s, which, &text);
	struct kc k;

	/* Large, because the panic's own output is recorded as well, after what led to it. */
	if (fd < 0 || kc_setup(s, &k, 2048 * PAGE_WORDS)) {
		slot_missing(s, "no /proc/sysrq-trigger, no module, or this kernel does not panic so");
		return;
	}
	slot_object(s, &k, 2, 1);
	s->mode = TRACE_PC;
	s->enabled = true;
	s->owner = s->tid;
	/* init prints this and then lets go. */
	atomic_store(&s->ready, 1);
	while (!atomic_load(&s->done_calls))
		msleep(1);
	kc_enable(s, &k, TRACE_PC);
	syscall(SYS_getppid);
	if (write(fd, text, 1) != 1)
		_exit(1);
}

static void crash(const char *how)
{
	struct slot *s = slot_new("kc-crash");

	if (!s)
		return;
	atomic_store(&s->done_calls, find_crash(how) + 1);
	s->pid = s->tid = spawn(s, st_crash);
	slot_wait(s, 5000);
	/* The buffer is still empty: nothing in this guest can print what it will hold after the crash. */
	truth_slot(s);
	truth("\"answer\": \"crash%s%s\", \"done\": true", *how ? " " : "", how);
	tcdrain(truth_fd());
	msleep(200);
	atomic_store(&s->done_calls, 1);
	for (;;)
		msleep(1000);
}

static void again(const char *name)
{
	struct slot *s = slot_find(name);

	if (s && s->used)
		truth_slot(s);
	else
		truth("\"state\": null, \"missing\": \"no such state\"");
}

static bool run(char *line)
{
	char *arg = strchr(line, ' ');

	if (arg)
		*arg++ = 0;
	else
		arg = line + strlen(line);
	if (!strcmp(line, "ping")) {
		truth("\"state\": \"ping\", \"traffic\": %lu, \"tasks\": %lu", atomic_load(&shm->traffic), count_tasks());
	} else if (!strcmp(line, "count") && *arg) {
		again(arg);
	} else if (!strcmp(line, "states")) {
		for (int i = 0; i < atomic_load(&shm->nslots); i++)
			if (shm->slots[i].used)
				truth_slot(&shm->slots[i]);
	} else if (!strcmp(line, "kernel")) {
		truth_kernel();
	} else if (!strcmp(line, "tasks")) {
		truth_tasks();
	} else if (!strcmp(line, "vmalloc")) {
		truth_vmalloc();
	} else if (!strcmp(line, "maps")) {
		truth_maps();
	} else if (!strcmp(line, "threads") && atoi(arg) > 0) {
		crowd(atoi(arg));
	} else if (!strcmp(line, "traffic")) {
		return traffic(arg);
	} else if (!strcmp(line, "inflight") && !strcmp(arg, "vhost")) {
		start("kc-stuck", vhost_inflight, 0, 5000);
	} else if (!strcmp(line, "inflight") && !strcmp(arg, "hub")) {
		inflight_hub();
	} else if (!strcmp(line, "lost")) {
		start("kc-lost", usb_lost_owner, 0, 20000);
	} else if (!strcmp(line, "bogus")) {
		start("kc-bogus", st_bogus, 0, 5000);
	} else if (!strcmp(line, "scribble")) {
		start("kc-scribble", st_scribble, 0, 5000);
	} else if (!strcmp(line, "uring")) {
		start("kc-uring", strcmp(arg, "owner") ? st_uring : st_uring_owner, 0, 5000);
	} else if (!strcmp(line, "reuse")) {
		start("kc-reuse", st_reuse, 0, 5000);
	} else if (!strcmp(line, "puzzle") && *arg) {
		return puzzle(arg, begin);
	} else if (!strcmp(line, "storm") && atoi(arg) > 0) {
		const char *processes = strchr(arg, ' ');

		storm(atoi(arg), processes ? atoi(processes) : 4);
	} else if (!strcmp(line, "run") && *arg) {
		host_run(arg);
	} else if (!strcmp(line, "put") && *arg) {
		host_put(arg);
	} else if (!strcmp(line, "get") && *arg) {
		host_get(arg);
	} else if (!strcmp(line, "stop")) {
		stop();
	} else if (!strcmp(line, "crash")) {
		crash(arg);
	} else if (!strcmp(line, "kdump")) {
		return capture_load(arg);
	} else if (!strcmp(line, "quit")) {
		truth("\"answer\": \"quit\", \"done\": true");
		tcdrain(truth_fd());
		sync();
		reboot(RB_AUTOBOOT);
	} else {
		return false;
	}
	return true;
}

void command(char *line)
{
	char whole[128];
	bool known;
	FILE *f;

	line[strcspn(line, "\r\n")] = 0;
	if (!*line)
		return;
	snprintf(whole, sizeof(whole), "%s", line);
	known = run(line);
	f = truth_begin();
	fputs("\"answer\": ", f);
	json_string(f, whole);
	fprintf(f, ", \"done\": true%s", known ? "" : ", \"error\": \"unknown command\"");
	truth_end(f);
}
