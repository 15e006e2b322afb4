// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Collects endlessly, with another order of calls in each round, and resets the count after each: two reads of the buffer
 * rarely give the same. Prints where the buffer is, and runs until it is killed.
 */
#include <fcntl.h>
#include <linux/kcov.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORDS 4096

int main(void)
{
	static const long calls[] = { SYS_getppid, SYS_getuid, SYS_getsid, SYS_getpgid };
	int fd = open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC);
	volatile uint64_t *area;

	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, WORDS))
		return 1;
	area = mmap(NULL, WORDS * sizeof(*area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (area == MAP_FAILED)
		return 1;
	printf("{\"pid\": %d, \"fd\": %d}\n", getpid(), fd);
	fflush(stdout);
	close(1);
	if (ioctl(fd, KCOV_ENABLE, KCOV_TRACE_PC))
		return 1;
	for (;;) {
		area[0] = 0;
		for (int i = 0; i < 20; i++)
			syscall(calls[random() % 4], 0);
	}
}
