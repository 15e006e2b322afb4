// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Maps KCOV's buffer privately, which the kernel accepts: once it has written to a page, it no longer sees what the kernel
 * writes there. Prints its count, and keeps the buffer until it is killed.
 */
#include <fcntl.h>
#include <linux/kcov.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORDS 4096

int main(void)
{
	int fd = open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC);
	uint64_t *area;

	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, WORDS))
		return 1;
	area = mmap(NULL, WORDS * sizeof(*area), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	if (area == MAP_FAILED)
		return 1;
	area[0] = 0;
	if (ioctl(fd, KCOV_ENABLE, KCOV_TRACE_PC))
		return 1;
	syscall(SYS_getppid);
	if (ioctl(fd, KCOV_DISABLE, 0))
		return 1;
	printf("{\"pid\": %d, \"fd\": %d, \"count\": %ju}\n", getpid(), fd, (uintmax_t)area[0]);
	fflush(stdout);
	close(1);
	for (;;)
		pause();
}
