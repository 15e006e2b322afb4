// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * All operations at once and in random order, which a live walk must survive. Threads open, size, map, enable, remotely enable,
 * disable, close and exit at random, with so few handles that they collide.
 */
#include "storm.h"

#include "lab.h"

#include <fcntl.h>
#include <linux/kcov.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 8 /* of each process */
#define HOLD 4	  /* objects that a thread juggles with */

const char *const storm_op_names[STORM_OPS] = {
	"open", "init", "mmap", "enable", "remote_enable", "disable", "munmap", "close", "exit", "fork", "work", "refused",
};

static void count(int op, bool ok)
{
	atomic_fetch_add(&shm->storm_ops[ok ? op : STORM_REFUSED], 1);
}

static void remote_enable(struct kc *k, unsigned int *seed)
{
	char room[sizeof(struct kcov_remote_arg) + 4 * sizeof(uint64_t)] = { 0 };
	struct kcov_remote_arg *arg = (void *)room;

	arg->trace_mode = rand_r(seed) % 2;
	arg->area_size = 64 << rand_r(seed) % 6;
	arg->num_handles = rand_r(seed) % 4;
	for (unsigned int i = 0; i < arg->num_handles; i++)
		arg->handles[i] = kcov_remote_handle(KCOV_SUBSYSTEM_USB, 1 + rand_r(seed) % 60);
	if (rand_r(seed) % 2)
		arg->common_handle = kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, 1 + rand_r(seed) % 60);
	count(STORM_REMOTE_ENABLE, !ioctl(k->fd, KCOV_REMOTE_ENABLE, arg));
}

static void step(struct kc *k, unsigned int *seed)
{
	void *p;

	if (k->fd < 0) {
		k->fd = open("/sys/kernel/debug/kcov", O_RDWR | O_CLOEXEC);
		k->size = 0;
		k->area = NULL;
		count(STORM_OPEN, k->fd >= 0);
		return;
	}
	switch (rand_r(seed) % 16) {
	case 0:
	case 1:
	case 2:
		p = (void *)((1 + rand_r(seed) % 16) * PAGE_WORDS);
		if (ioctl(k->fd, KCOV_INIT_TRACE, p)) {
			count(STORM_INIT, false);
		} else {
			k->size = (uintptr_t)p;
			count(STORM_INIT, true);
		}
		break;
	case 3:
	case 4:
		if (k->area || !k->size)
			break;
		p = mmap(NULL, k->size * 8, PROT_READ | PROT_WRITE, MAP_SHARED, k->fd, 0);
		if (p != MAP_FAILED)
			k->area = p;
		count(STORM_MMAP, p != MAP_FAILED);
		break;
	case 5:
	case 6:
	case 7:
		count(STORM_ENABLE, !ioctl(k->fd, KCOV_ENABLE, rand_r(seed) % 2 ? KCOV_TRACE_PC : KCOV_TRACE_CMP));
		break;
	case 8:
	case 9:
		remote_enable(k, seed);
		break;
	case 10:
	case 11:
		count(STORM_DISABLE, !ioctl(k->fd, KCOV_DISABLE, 0));
		break;
	case 12:
		if (!k->area)
			break;
		munmap((void *)k->area, k->size * 8);
		k->area = NULL;
		count(STORM_MUNMAP, true);
		break;
	case 13:
		close(k->fd);
		k->fd = -1;
		if (k->area)
			munmap((void *)k->area, k->size * 8);
		k->area = NULL;
		count(STORM_CLOSE, true);
		break;
	default:
		for (int i = rand_r(seed) % 50; i > 0; i--)
			syscall(SYS_getppid);
		count(STORM_WORK, true);
	}
}

static void *thread(void *arg)
{
	unsigned int seed = (uintptr_t)arg * 2654435761U + getpid();
	struct kc k[HOLD];
	int steps = 50 + rand_r(&seed) % 500;

	for (int i = 0; i < HOLD; i++)
		k[i].fd = -1;
	while (steps-- && !atomic_load(&shm->storm_stop))
		step(&k[rand_r(&seed) % HOLD], &seed);
	/* Half of them leave their descriptors to the process, and none disables what it has enabled. */
	for (int i = 0; i < HOLD; i++)
		if (k[i].fd >= 0 && rand_r(&seed) % 2)
			close(k[i].fd);
	count(STORM_EXIT, true);
	return NULL;
}

/* One generation of threads; its process ends with it, and with it whatever they left open. */
static void generation(unsigned long n)
{
	pthread_t t[THREADS];

	for (unsigned long i = 0; i < THREADS; i++)
		if (pthread_create(&t[i], NULL, thread, (void *)(n * THREADS + i)))
			t[i] = 0;
	for (int i = 0; i < THREADS; i++)
		if (t[i])
			pthread_join(t[i], NULL);
	_exit(0);
}

void storm(unsigned int seconds, int processes)
{
	uint64_t end = now_ms() + seconds * 1000UL;
	unsigned long n = 0;
	int alive = 0;
	FILE *f;

	for (int i = 0; i < STORM_OPS; i++)
		atomic_store(&shm->storm_ops[i], 0);
	atomic_store(&shm->storm_stop, 0);
	truth("\"state\": \"storm\", \"running\": true, \"seconds\": %u, \"processes\": %d, \"threads\": %d", seconds,
	      processes, THREADS);
	while (alive || now_ms() < end) {
		if (now_ms() >= end)
			atomic_store(&shm->storm_stop, 1);
		while (alive < processes && now_ms() < end) {
			pid_t pid = fork();

			if (!pid) {
				prctl(PR_SET_NAME, "kc-storm");
				generation(n);
			}
			if (pid < 0)
				break;
			n++;
			alive++;
			count(STORM_FORK, true);
		}
		for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
			if (!storm_foreign(pid))
				alive--;
		msleep(2);
	}
	f = truth_begin();
	fputs("\"state\": \"storm\", \"running\": false, \"ops\": {", f);
	for (int i = 0; i < STORM_OPS; i++)
		fprintf(f, "%s\"%s\": %lu", i ? ", " : "", storm_op_names[i], atomic_load(&shm->storm_ops[i]));
	fputc('}', f);
	truth_end(f);
}
