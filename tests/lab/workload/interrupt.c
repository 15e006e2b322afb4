// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A task that computes in user space while a timer interrupts it: no system call makes the records that the kernel then writes.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

void interrupt_traffic(struct slot *s)
{
	bool told = false;
	char text[256];
	struct kc k;
	ssize_t n;
	int fd;

	if (module_load("kcovlab_interrupt") && errno != EEXIST) {
		slot_missing(s, "module kcovlab_interrupt: %s", strerror(errno));
		return;
	}
	module_functions(s, "kcovlab_interrupt");
	fd = open("/sys/kernel/debug/kcovlab_interrupt/run", O_RDWR | O_CLOEXEC);
	if (fd < 0) {
		slot_missing(s, "open: %s", strerror(errno));
		return;
	}
	if (kc_setup(s, &k, 64 * PAGE_WORDS))
		return;
	slot_object(s, &k, 2, 1);
	s->volatile_count = true;
	s->asleep = false;
	if (kc_enable(s, &k, TRACE_PC))
		return;
	for (;;) {
		uint64_t before;

		k.area[0] = 0;
		if (write(fd, "1", 1) != 1)
			return;
		before = k.area[0];
		for (long i = 0; i < 1 << 26 && k.area[0] == before; i++)
			;
		if (told)
			continue;
		n = pread(fd, text, sizeof(text) - 1, 0);
		if (n <= 0)
			return;
		text[n] = 0;
		if (strstr(text, "-1"))
			continue;
		slot_extra(s, ", \"recorded\": {%s}", text);
		told = true;
		atomic_store(&s->ready, 1);
	}
}
