// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Threads and children, four and two unless told otherwise, whose system calls differ from those of their neighbors.
 * crowd [ROUNDS [THREADS CHILDREN]]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Newer architectures have only the one with an argument. */
#ifndef SYS_getpgrp
#define SYS_getpgrp SYS_getpgid
#endif

static const struct {
	const char *name;
	long number;
} jobs[] = {
	{ "t-getppid", SYS_getppid }, { "t-getpgrp", SYS_getpgrp }, { "t-getsid", SYS_getsid },
	{ "t-getuid", SYS_getuid },   { "c-umask", SYS_umask },	    { "c-sync", SYS_sync },
};

static int rounds;

static void *work(void *arg)
{
	intptr_t job = (intptr_t)arg;

	prctl(PR_SET_NAME, jobs[job].name);
	for (int i = 0; i < rounds; i++)
		syscall(jobs[job].number, 0);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	int thread_count = argc > 3 ? atoi(argv[2]) : 4;
	int child_count = argc > 3 ? atoi(argv[3]) : 2;

	rounds = argc > 1 ? atoi(argv[1]) : 100;
	for (int i = 0; i < thread_count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(intptr_t)(i % 4));
	for (int i = 0; i < child_count; i++) {
		if (!fork()) {
			work((void *)(intptr_t)(4 + i % 2));
			_exit(0);
		}
	}
	for (int i = 0; i < thread_count; i++)
		pthread_join(threads[i], NULL);
	while (wait(NULL) > 0)
		;
	return 0;
}
