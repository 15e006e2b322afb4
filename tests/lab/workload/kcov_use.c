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
	void *p = mmap(NULL, k->size * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, k->fd,
		       0);

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

/*
 * Everything that has to be said is said before the call: what follows it would be recorded. The
 * kernel records the tail of the call itself, hence the store of 0.
 */
int kc_enable(struct slot *s, struct kc *k, enum trace mode)
{
	unsigned long arg = mode == TRACE_CMP ? KCOV_TRACE_CMP : KCOV_TRACE_PC;

	slot_call(s, "KCOV_ENABLE %lu", arg);
	s->mode = mode;
	s->enabled = true;
	s->owner = s->tid;
	if (ioctl(k->fd, KCOV_ENABLE, arg)) {
		s->enabled = false;
		s->mode = TRACE_NONE;
		s->owner = 0;
		/* 524 is the kernel's own ENOTSUPP, which strerror() doesn't know. */
		slot_missing(s, "KCOV_ENABLE %lu: errno %d", arg, errno);
		return -1;
	}
	if (k->area)
		__atomic_store_n(&k->area[0], 0, __ATOMIC_SEQ_CST);
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

int kc_remote_enable(struct slot *s, struct kc *k, enum trace mode, uint32_t area_size,
		     const uint64_t *handles, int n, uint64_t common)
{
	struct kcov_remote_arg *arg = calloc(1, sizeof(*arg) + n * sizeof(arg->handles[0]));

	arg->trace_mode = mode == TRACE_CMP ? KCOV_TRACE_CMP : KCOV_TRACE_PC;
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
	slot_call(s, "KCOV_REMOTE_ENABLE mode=%d area_size=%u num_handles=%d common_handle=0x%lx",
		  mode == TRACE_CMP, area_size, n, common);
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
	return mode == TRACE_CMP ? (size - 1) / 4 : size - 1;
}
