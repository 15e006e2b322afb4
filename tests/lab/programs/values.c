// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Two threads and a child make calls with known arguments. Each writes TID WHICH WHO RESULT for a call to the file that the first
 * argument names. With a second argument, each waits for so many microseconds after a call, and 20 times as long after the last one.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 40

static int account;
static unsigned int pause_us;

static void *call(void *first)
{
	for (int i = 0; i < ROUNDS; i++) {
		int who = (int)(long)first + i;
		/* Of a number that getpriority() does not know it returns at once, and no record is made. */
		int which = i % 2 ? 5 + i : 0;
		long result = syscall(SYS_getpriority, which, i % 2 ? who : 0);

		dprintf(account, "%ld %d %d %ld\n", syscall(SYS_gettid), which, i % 2 ? who : 0, result < 0 ? -errno : result);
		usleep(pause_us);
	}
	for (int i = 0; i < 20; i++)
		usleep(pause_us);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	pid_t child;

	account = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644) : 1;
	pause_us = argc > 2 ? atoi(argv[2]) : 0;
	if (account < 0 || pthread_create(&thread, NULL, call, (void *)1000))
		return 1;
	child = fork();
	if (!child) {
		call((void *)2000);
		_exit(0);
	}
	call((void *)3000);
	pthread_join(thread, NULL);
	return waitpid(child, NULL, 0) == child ? 0 : 1;
}
