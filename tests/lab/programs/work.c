// SPDX-License-Identifier: LGPL-2.1-or-later
/* Short and long system calls of one thread. The argument is the number of rounds. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1000;
	char buffer[4096];
	struct stat st;

	for (int i = 0; i < rounds; i++) {
		int fd = open("/proc/self/stat", O_RDONLY);

		if (fd >= 0) {
			if (read(fd, buffer, sizeof(buffer)) < 0)
				return 1;
			close(fd);
		}
		stat("/tmp", &st);
		for (int j = 0; j < 10; j++)
			syscall(SYS_getppid);
	}
	return 0;
}
