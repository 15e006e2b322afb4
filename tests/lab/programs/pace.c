// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Collects in rounds as a fuzzer's executor does. Prints, at the end of each second, the guest's time and the number of rounds
 * in that second. The argument is the number of seconds.
 */
#include <fcntl.h>
#include <linux/kcov.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WORDS 65536

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	int fd = open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC), null = open("/dev/null", O_RDWR);
	double seconds = argc > 1 ? atof(argv[1]) : 10, start = now(CLOCK_MONOTONIC), last = start;
	volatile uint64_t *area;
	long rounds = 0;

	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, WORDS))
		return 1;
	area = mmap(NULL, WORDS * sizeof(*area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (area == MAP_FAILED)
		return 1;
	while (last - start < seconds) {
		if (ioctl(fd, KCOV_ENABLE, KCOV_TRACE_PC))
			return 1;
		area[0] = 0;
		for (int i = 0; i < 50; i++)
			syscall(SYS_write, null, "x", 1);
		if (ioctl(fd, KCOV_DISABLE, 0))
			return 1;
		rounds++;
		if (now(CLOCK_MONOTONIC) - last >= 1) {
			last = now(CLOCK_MONOTONIC);
			printf("%.3f %ld\n", now(CLOCK_REALTIME), rounds);
			fflush(stdout);
			rounds = 0;
		}
	}
	return 0;
}
