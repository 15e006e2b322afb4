// SPDX-License-Identifier: LGPL-2.1-or-later
/* Calls of KCOV's ABI, each noted in the slot of the state that makes it. */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcov.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of posted series, which no header has. */
#define KCOV_TRACE_PC_EXT 2
#define KCOV_TRACE_UNIQ_PC 2
#define KCOV_TRACE_UNIQ_EDGE 4
#define KCOV_TRACE_UNIQ_CMP 8
#define KCOV_UNIQUE_ENABLE _IOW('c', 103, unsigned long)
#define KCOV_RESET_TRACE _IO('c', 104)

static const struct {
	const char *needs; /* argument with which kc_has() must be true */
	const char *name;  /* of the kernel's mode */
	unsigned long arg; /* of KCOV_ENABLE */
	unsigned int record_words;
} modes[] = {
	[TRACE_PC] = { NULL, "TRACE_PC", KCOV_TRACE_PC, 1 },
	[TRACE_CMP] = { NULL, "TRACE_CMP", KCOV_TRACE_CMP, 4 },
	[TRACE_PC_EXT] = { "ext-records", "TRACE_PC", KCOV_TRACE_PC_EXT, 1 },
	[TRACE_UNIQ_PC] = { "unique-maps", "TRACE_UNIQ_PC", KCOV_TRACE_UNIQ_PC, 1 },
	[TRACE_UNIQ_EDGE] = { "unique-maps", "TRACE_UNIQ_EDGE", KCOV_TRACE_UNIQ_EDGE, 1 },
	[TRACE_UNIQ_BOTH] = { "unique-maps", "TRACE_UNIQ_PC|TRACE_UNIQ_EDGE", KCOV_TRACE_UNIQ_PC | KCOV_TRACE_UNIQ_EDGE, 1 },
	[TRACE_UNIQ_CMP] = { "unique-maps", "TRACE_UNIQ_CMP", KCOV_TRACE_UNIQ_CMP, 4 },
	[TRACE_UNIQUE] = { "unique-bitmap", "UNIQUE_PC", 0, 1 },
};

bool kc_has(const char *what)
{
	static char cmdline[4096];
	char *at;

	if (!cmdline[0] && slurp("/proc/cmdline", cmdline, sizeof(cmdline)) <= 0)
		return false;
	at = strstr(cmdline, "kcovlab.kcov=");
	if (!at)
		return false;
	at += strlen("kcovlab.kcov=");
	return strcspn(at, " \n") == strlen(what) && !strncmp(at, what, strlen(what));
}

bool kc_mode_known(enum trace mode)
{
	return !modes[mode].needs || kc_has(modes[mode].needs);
}

const char *kc_mode_name(enum trace mode)
{
	return modes[mode].name;
}

unsigned int kc_record_words(enum trace mode)
{
	return mode == TRACE_NONE ? 1 : modes[mode].record_words;
}

enum trace kc_special(void)
{
	static const enum trace special[] = { TRACE_PC_EXT, TRACE_UNIQ_PC, TRACE_UNIQUE };

	for (unsigned int i = 0; i < sizeof(special) / sizeof(special[0]); i++)
		if (kc_mode_known(special[i]))
			return special[i];
	return TRACE_PC;
}

int kc_open(struct slot *s, struct kc *k)
{
	memset(k, 0, sizeof(*k));
	k->fd = open("/sys/kernel/debug/kcov", O_RDWR);
	if (k->fd < 0) {
		slot_missing(s, "open kcov: %s", strerror(errno));
		return -1;
	}
	slot_call(s, "open");
	return 0;
}

int kc_init(struct slot *s, struct kc *k, uint64_t words)
{
	if (ioctl(k->fd, KCOV_INIT_TRACE, words)) {
		slot_missing(s, "KCOV_INIT_TRACE %lu: %s", words, strerror(errno));
		return -1;
	}
	k->size = words;
	slot_call(s, "KCOV_INIT_TRACE %lu", words);
	return 0;
}

int kc_map(struct slot *s, struct kc *k)
{
	void *p = mmap(NULL, k->size * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, k->fd, 0);

	if (p == MAP_FAILED) {
		slot_missing(s, "mmap: %s", strerror(errno));
		return -1;
	}
	k->area = p;
	slot_call(s, "mmap");
	return 0;
}

int kc_setup(struct slot *s, struct kc *k, uint64_t words)
{
	return kc_open(s, k) || kc_init(s, k, words) || kc_map(s, k) ? -1 : 0;
}

/* The buffer of edges follows the other one. */
int kc_map_edges(struct slot *s, struct kc *k)
{
	size_t length = k->size * sizeof(uint64_t);
	void *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, k->fd, length);

	if (p == MAP_FAILED) {
		slot_missing(s, "mmap of edges: %s", strerror(errno));
		return -1;
	}
	k->edges = p;
	s->map_edges = (uintptr_t)p;
	slot_call(s, "mmap of edges");
	return 0;
}

volatile uint64_t *kc_count(struct kc *k, enum trace mode)
{
	if (mode == TRACE_UNIQ_EDGE)
		return k->edges;
	return mode == TRACE_UNIQUE ? k->area + k->bitmap_words : k->area;
}

/*
 * Note everything before the call, because anything done after it would be recorded. The kernel records the end of the call
 * itself, hence the store of 0.
 */
int kc_enable(struct slot *s, struct kc *k, enum trace mode)
{
	unsigned long request = mode == TRACE_UNIQUE ? KCOV_UNIQUE_ENABLE : KCOV_ENABLE;
	unsigned long arg = mode == TRACE_UNIQUE ? k->bitmap_words : modes[mode].arg;

	slot_call(s, "%s %lu", mode == TRACE_UNIQUE ? "KCOV_UNIQUE_ENABLE" : "KCOV_ENABLE", arg);
	s->bitmap_words = mode == TRACE_UNIQUE ? k->bitmap_words : 0;
	s->mode = mode;
	s->enabled = true;
	s->owner = s->tid;
	if (ioctl(k->fd, request, arg)) {
		s->enabled = false;
		s->mode = TRACE_NONE;
		s->owner = 0;
		/* 524 is the kernel's own ENOTSUPP, which strerror() doesn't know. */
		slot_missing(s, "KCOV_ENABLE %lu: errno %d", arg, errno);
		return -1;
	}
	if (k->area) {
		for (uint64_t i = 0; i < s->bitmap_words; i++)
			k->area[i] = 0;
		__atomic_store_n(&k->area[s->bitmap_words], 0, __ATOMIC_SEQ_CST);
	}
	if (k->edges)
		__atomic_store_n(&k->edges[0], 0, __ATOMIC_SEQ_CST);
	return 0;
}

/* The kernel zeroes bitmap and count; what follows in the call is recorded. */
int kc_reset(struct slot *s, struct kc *k)
{
	if (ioctl(k->fd, KCOV_RESET_TRACE, 0)) {
		slot_missing(s, "KCOV_RESET_TRACE: %s", strerror(errno));
		return -1;
	}
	return 0;
}

int kc_disable(struct slot *s, struct kc *k)
{
	if (ioctl(k->fd, KCOV_DISABLE, 0)) {
		slot_missing(s, "KCOV_DISABLE: %s", strerror(errno));
		return -1;
	}
	slot_call(s, "KCOV_DISABLE 0");
	s->enabled = false;
	s->owner = 0;
	return 0;
}

int kc_remote_enable(struct slot *s, struct kc *k, enum trace mode, uint32_t area_size, const uint64_t *handles, int n,
		     uint64_t common)
{
	struct kcov_remote_arg *arg = calloc(1, sizeof(*arg) + n * sizeof(arg->handles[0]));

	arg->trace_mode = modes[mode].arg;
	arg->area_size = area_size;
	arg->num_handles = n;
	arg->common_handle = common;
	for (int i = 0; i < n; i++)
		arg->handles[i] = handles[i];
	if (ioctl(k->fd, KCOV_REMOTE_ENABLE, arg)) {
		slot_missing(s, "KCOV_REMOTE_ENABLE: errno %d (%s)", errno, strerror(errno));
		free(arg);
		return -1;
	}
	free(arg);
	slot_call(s, "KCOV_REMOTE_ENABLE mode=%lu area_size=%u num_handles=%d common_handle=0x%lx", modes[mode].arg, area_size,
		  n, common);
	s->mode = mode;
	s->enabled = s->remote = true;
	s->owner = s->tid;
	s->remote_size = area_size;
	for (int i = 0; i < n && i < MAX_HANDLES - 1; i++)
		s->handles[s->nhandles++] = handles[i];
	if (common)
		s->handles[s->nhandles++] = s->common = common;
	return 0;
}

void kc_close(struct slot *s, struct kc *k)
{
	close(k->fd);
	k->fd = -1;
	slot_call(s, "close");
}

/*
 * In records. A comparison takes four words; what is left over at the end of the buffer stays
 * unused.
 */
uint64_t kc_capacity(uint64_t size, enum trace mode)
{
	return (size - 1) / kc_record_words(mode);
}
