// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A program as users write it to collect a command's coverage without a tool. Prints seconds from fork to the end, and the
 * count.
 */
#include <fcntl.h>
#include <linux/kcov.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	double started = now();
	size_t words, used;
	uint64_t *area, *copy;
	int fd, status;
	pid_t pid;

	if (argc < 3)
		return 2;
	words = strtoul(argv[1], NULL, 0);
	fd = open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, words))
		return 125;
	area = mmap(NULL, words * sizeof(*area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (area == MAP_FAILED)
		return 125;
	pid = fork();
	if (!pid) {
		if (ioctl(fd, KCOV_ENABLE, KCOV_TRACE_PC))
			_exit(125);
		__atomic_store_n(&area[0], 0, __ATOMIC_SEQ_CST);
		execvp(argv[2], argv + 2);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	used = __atomic_load_n(&area[0], __ATOMIC_ACQUIRE);
	copy = malloc((used + 1) * sizeof(*copy));
	memcpy(copy, area, (used + 1) * sizeof(*copy));
	munmap(area, words * sizeof(*area));
	close(fd);
	printf("%.6f %zu\n", now() - started, used);
	free(copy);
	return WEXITSTATUS(status);
}
