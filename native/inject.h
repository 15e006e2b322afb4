/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Makes a task that ptrace has stopped enable KCOV for itself. */
#ifndef KCOVDBG_INJECT_H
#define KCOVDBG_INJECT_H

#include <signal.h>
#include <stdint.h>

/* What happened to the task meanwhile, for whoever handles its stops. */
struct kcovdbg_interruption {
	int ended;	/* It died; status is wait()'s. */
	int status;
	sigset_t signals;	/* That were about to be delivered: SIGSTOP, as all others are blocked. */
};

/*
 * Have a new task that stands right behind the system call which created it call ioctl(fd, request, argument) with our
 * descriptor. It has no further descriptor afterwards. Returns 0 or a negative errno: -ENOTSUP where this isn't a task that
 * we can do that with.
 */
int kcovdbg_inject_enable(int tid, int tgid, int fd, unsigned long request, unsigned long argument,
			  struct kcovdbg_interruption *interruption);

#endif
