// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The device of the posted kcov_dataflow, told dataflow. Nothing but the calls made here is recorded.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcov.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DF_INIT_TRACK _IOR('d', 1, unsigned long)
#define DF_ENABLE _IO('d', 100)
#define DF_DISABLE _IO('d', 101)
#define DF_REMOTE_ENABLE _IOW('d', 102, uint64_t)

static int set_up(struct slot *s, uint64_t words)
{
	void *p;

	s->df_fd = open("/sys/kernel/debug/kcov_dataflow", O_RDWR);
	if (s->df_fd < 0 || ioctl(s->df_fd, DF_INIT_TRACK, words)) {
		slot_missing(s, "kcov_dataflow: %s", strerror(errno));
		return -1;
	}
	p = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_SHARED, s->df_fd, 0);
	if (p == MAP_FAILED) {
		slot_missing(s, "mmap: %s", strerror(errno));
		return -1;
	}
	s->df_map = (uintptr_t)p;
	s->df_size = words;
	return 0;
}

/* Calls whose arguments and results are said as well: numbers, 64 bits. */
static void work(struct slot *s)
{
	struct rlimit core = { 4096, 8192 }, got;
	long r;

	r = syscall(SYS_getpriority, PRIO_PROCESS, 0);
	slot_extra(s, ", \"passed\": [[\"getpriority\", [%d, 0], %ld]", PRIO_PROCESS, r);
	r = syscall(SYS_getpriority, 7, 77);
	slot_extra(s, ", [\"getpriority\", [7, 77], null]");
	r = syscall(SYS_setrlimit, RLIMIT_CORE, &core);
	slot_extra(s, ", [\"do_prlimit\", [%d, [4096, 8192]], %ld]", RLIMIT_CORE, r);
	r = syscall(SYS_getrlimit, RLIMIT_CORE, &got);
	slot_extra(s, ", [\"do_prlimit\", [%d, [null, null]], %ld]]", RLIMIT_CORE, r);
}

static void enable(struct slot *s)
{
	s->df_enabled = !ioctl(s->df_fd, DF_ENABLE, 0);
	if (!s->df_enabled)
		slot_missing(s, "KCOV_DF_ENABLE: %s", strerror(errno));
}

static void st_local(struct slot *s)
{
	if (set_up(s, PAGE_WORDS))
		return;
	enable(s);
	work(s);
}

static void st_off(struct slot *s)
{
	if (set_up(s, 2 * PAGE_WORDS))
		return;
	enable(s);
	work(s);
	s->df_enabled = false;
	ioctl(s->df_fd, DF_DISABLE, 0);
}

/* KCOV and the device at once. */
static void st_both(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 59 * PAGE_WORDS) || set_up(s, 3 * PAGE_WORDS))
		return;
	slot_object(s, &k, 2, 1);
	enable(s);
	work(s);
	kc_enable(s, &k, TRACE_PC);
}

/* Holds the handle of dummy_hcd's bus. */
static void st_usb(struct slot *s)
{
	uint64_t handle = kcov_remote_handle(KCOV_SUBSYSTEM_USB, usb_dummy_bus(0));

	if (set_up(s, 4 * PAGE_WORDS))
		return;
	if (ioctl(s->df_fd, DF_REMOTE_ENABLE, &handle))
		slot_missing(s, "KCOV_DF_REMOTE_ENABLE: %s", strerror(errno));
	s->df_handle = handle;
}

/* Before anything is plugged in. */
void dataflow_usb(void)
{
	if (kc_has("dataflow"))
		slot_wait(spawn_state("df-usb", st_usb), 5000);
}

void states_dataflow(void)
{
	if (!kc_has("dataflow"))
		return;
	spawn_state("df-local", st_local);
	spawn_state("df-off", st_off);
	spawn_state("df-both", st_both);
}

void json_dataflow(FILE *f, struct slot *s)
{
	uint64_t words[PAGE_WORDS];

	if (!s->df_size)
		return;
	fprintf(f, ", \"dataflow\": {\"fd\": %d, \"size\": %lu, \"enabled\": %s, \"handle\": \"0x%lx\", \"map\": \"0x%lx\"",
		s->df_fd, s->df_size, s->df_enabled ? "true" : "false", s->df_handle, s->df_map);
	if (read_words(s->tid, s->df_map, words, PAGE_WORDS)) {
		fprintf(f, ", \"count\": %lu", words[0]);
		if (words[0] < PAGE_WORDS)
			json_words(f, "words", words + 1, words[0]);
	}
	fputc('}', f);
}
