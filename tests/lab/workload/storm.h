/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The storm, and what it counts. */
#ifndef KCOVLAB_STORM_H
#define KCOVLAB_STORM_H

#include <stdbool.h>
#include <sys/types.h>

enum storm_op {
	STORM_OPEN,
	STORM_INIT,
	STORM_MMAP,
	STORM_ENABLE,
	STORM_REMOTE_ENABLE,
	STORM_DISABLE,
	STORM_MUNMAP,
	STORM_CLOSE,
	STORM_EXIT,
	STORM_FORK,
	STORM_WORK,
	STORM_REFUSED,
	STORM_OPS
};

extern const char *const storm_op_names[STORM_OPS];

void storm(unsigned int seconds, int processes);
/* Is this child of init's no part of the storm? */
bool storm_foreign(pid_t pid);

#endif
