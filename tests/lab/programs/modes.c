// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A program as users write it to collect a command's coverage in any mode: the numbers are arguments. Writes the buffer to
 * FILE, and with a second one (of edges, behind the first) that to FILE.edges, as they are.
 */
#include <fcntl.h>
#include <linux/kcov.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int save(const char *path, const void *data, size_t size)
{
	FILE *file = fopen(path, "w");

	return !file || fwrite(data, 1, size, file) != size || fclose(file);
}

int main(int argc, char **argv)
{
	unsigned long request, argument, words, bitmap, second;
	uint64_t *area, *edges = NULL;
	char path[256];
	int fd, status;

	if (argc < 8)
		return 2;
	request = strtoul(argv[1], NULL, 0);
	argument = strtoul(argv[2], NULL, 0);
	words = strtoul(argv[3], NULL, 0);
	bitmap = strtoul(argv[4], NULL, 0);
	second = strtoul(argv[5], NULL, 0);
	fd = open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC);
	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, words))
		return 125;
	area = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (second)
		edges = mmap(NULL, words * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, words * 8);
	if (area == MAP_FAILED || edges == MAP_FAILED)
		return 125;
	if (!fork()) {
		if (ioctl(fd, request, argument))
			_exit(124);
		__atomic_store_n(&area[bitmap], 0, __ATOMIC_SEQ_CST);
		if (edges)
			__atomic_store_n(edges, 0, __ATOMIC_SEQ_CST);
		execv(argv[7], argv + 7);
		_exit(127);
	}
	wait(&status);
	snprintf(path, sizeof(path), "%s.edges", argv[6]);
	if (save(argv[6], area, words * 8) || (edges && save(path, edges, words * 8)))
		return 126;
	return WEXITSTATUS(status);
}
