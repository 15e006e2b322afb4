// SPDX-License-Identifier: LGPL-2.1-or-later
/* Thousands of threads that do nothing, for measuring how long a walk over all tasks takes. */
#include "crowd.h"

#include "lab.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PER_PROCESS 1000
/* A thread that only waits needs very little memory; a thread of libc would take pages. */
#define STACK 2048

static pid_t *leaders;
static int nleaders;

/* Runs on a small stack and with its creator's thread-local storage: it must not call any other function of libc. */
static int idle(void *arg)
{
	(void)arg;
	for (;;)
		syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
	return 0;
}

static void process(int threads, atomic_int *started)
{
	char *stacks = mmap(NULL, (size_t)threads * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	prctl(PR_SET_NAME, "kc-crowd");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	atomic_fetch_add(started, 1);
	/* The leader is one of them. */
	for (int i = 1; i < threads && stacks != MAP_FAILED; i++) {
		if (clone(idle, stacks + (size_t)(i + 1) * STACK - 64,
			  CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, NULL) < 0)
			break;
		atomic_fetch_add(started, 1);
	}
	atomic_fetch_add(started + 1, 1);
	idle(NULL);
}

void crowd(unsigned int n)
{
	unsigned int processes = (n + PER_PROCESS - 1) / PER_PROCESS;
	atomic_int *counts = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint64_t begin = now_ms(), end = begin + 300000;
	unsigned int left = n, forked = 0;
	unsigned long tasks = count_tasks();
	char text[32];

	snprintf(text, sizeof(text), "%lu", tasks + n + 2000);
	spew("/proc/sys/kernel/threads-max", text);
	snprintf(text, sizeof(text), "%lu", tasks + n + 40000);
	spew("/proc/sys/kernel/pid_max", text);
	leaders = realloc(leaders, (nleaders + processes) * sizeof(*leaders));
	while (left) {
		unsigned int here = left < PER_PROCESS ? left : PER_PROCESS;
		pid_t pid = fork();

		if (!pid)
			process(here, counts);
		if (pid < 0)
			break;
		leaders[nleaders++] = pid;
		forked++;
		left -= here;
	}
	/* Wait until all have started, or no more start because memory has run out. */
	while (atomic_load(&counts[1]) < (int)forked && now_ms() < end)
		msleep(20);
	truth("\"state\": \"threads\", \"asked\": %u, \"started\": %d, \"processes\": %u, \"tasks\": %lu, \"ms\": %lu", n,
	      atomic_load(&counts[0]), forked, count_tasks(), now_ms() - begin);
	munmap(counts, PAGE);
}

void crowd_stop(void)
{
	for (int i = 0; i < nleaders; i++)
		kill(leaders[i], SIGKILL);
	for (int i = 0; i < nleaders; i++)
		waitpid(leaders[i], NULL, 0);
	nleaders = 0;
}
