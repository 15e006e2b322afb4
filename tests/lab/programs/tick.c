// SPDX-License-Identifier: LGPL-2.1-or-later
/* A few system calls every second until it is killed, so that a collector's buffer grows for minutes while it is read. */
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
	for (;;) {
		for (int i = 0; i < 5; i++)
			syscall(SYS_getppid);
		sleep(1);
	}
}
