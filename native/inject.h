/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Makes a task that ptrace has stopped enable KCOV for itself. */
#ifndef KCOVDBG_INJECT_H
#define KCOVDBG_INJECT_H

#include <signal.h>
#include <stdint.h>

/* The stops of the task meanwhile, which the caller handles. */
struct kcovdbg_interruption {
	int ended; /* The task died; status is the one that wait() reported. */
	int status;
	sigset_t signals; /* A signal is about to be delivered: SIGSTOP, as all others are blocked. */
};

/*
 * Make a new task, stopped after the system call that created it, call ioctl(fd, request, argument) with a descriptor of this
 * process. No descriptor remains in the task. Returns 0 or a negative errno: -ENOTSUP for a task that this cannot be done with.
 */
int kcovdbg_inject_enable(int tid, int tgid, int fd, unsigned long request, unsigned long argument,
			  struct kcovdbg_interruption *interruption);

#endif
