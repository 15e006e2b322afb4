// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Fills a buffer and empties it, and has a number of remote sections run meanwhile; both so slowly that a monitor sees each of
 * them. Prints how many there were, and how many records the largest round would have taken.
 */
#include <fcntl.h>
#include <linux/kcov.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 512
#define REMOTE_WORDS 65536
#define HANDLE 0x5ec7
#define STAYS_FULL 1200
#define STAYS_EMPTY 800

static volatile uint64_t *make_buffer(int *fd, unsigned long words)
{
	void *area;

	*fd = open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC);
	if (*fd < 0 || ioctl(*fd, KCOV_INIT_TRACE, words))
		exit(1);
	area = mmap(NULL, words * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (area == MAP_FAILED)
		exit(1);
	return area;
}

/* Own the sections until they are done. */
static void own(const char *sections)
{
	struct kcov_remote_arg *arg = calloc(1, sizeof(*arg));
	pid_t child;
	int fd, file;

	prctl(PR_SET_NAME, "rounds-own");
	make_buffer(&fd, REMOTE_WORDS);
	arg->trace_mode = KCOV_TRACE_PC;
	arg->area_size = 4096;
	arg->common_handle = kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, HANDLE);
	file = open("/sys/kernel/debug/kcovlab_sections/run", O_WRONLY | O_CLOEXEC);
	if (file < 0 || ioctl(fd, KCOV_REMOTE_ENABLE, arg))
		exit(2);
	child = fork();
	if (!child) {
		prctl(PR_SET_NAME, "rounds-run");
		_exit(write(file, sections, 1) != 1);
	}
	waitpid(child, NULL, 0);
	exit(0);
}

int main(int argc, char **argv)
{
	int fills = argc > 1 ? atoi(argv[1]) : 3;
	volatile uint64_t *area;
	int status, fd;
	pid_t owner;

	owner = fork();
	if (!owner)
		own(argc > 2 ? argv[2] : "3");
	prctl(PR_SET_NAME, "rounds-fill");
	area = make_buffer(&fd, WORDS);
	if (ioctl(fd, KCOV_ENABLE, KCOV_TRACE_PC))
		return 3;
	for (int i = 0; i < fills; i++) {
		area[0] = 0;
		usleep(STAYS_EMPTY * 1000);
		while (area[0] < WORDS - 1)
			syscall(SYS_getppid);
		usleep(STAYS_FULL * 1000);
	}
	area[0] = 0;
	ioctl(fd, KCOV_DISABLE, 0);
	waitpid(owner, &status, 0);
	printf("{\"pid\": %d, \"full\": %d, \"words\": %d, \"owner\": %d, \"sections\": %d, \"status\": %d}\n", getpid(), fills,
	       WORDS, owner, argc > 2 ? atoi(argv[2]) : 3, status);
	return 0;
}
