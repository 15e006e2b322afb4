/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Runs a command with a KCOV instance for each task, threads and children included.
 *
 * KCOV must be enabled by the task to be traced. The first process of the command does so before its exec. Each task that it
 * creates is stopped by ptrace before its first instruction, and made to receive a descriptor, enable KCOV with it, and close
 * it: KCOV does not need it any longer, and the command never sees it. System calls are not stopped unless requested: apart from
 * creating tasks, signals and exec the command runs at full speed.
 *
 * All of it is done by the calling thread, which must have no other children: it is the tracer, the parent of the command, and
 * the owner of the remote handles. When it dies, the kernel kills all tasks that it traces.
 */
#ifndef KCOVDBG_FOLLOW_H
#define KCOVDBG_FOLLOW_H

#include <stddef.h>
#include <stdint.h>

#include "collector.h"

/* cdef */
enum kcovdbg_step {
	KCOVDBG_STEP_OPEN,
	KCOVDBG_STEP_INIT,
	KCOVDBG_STEP_MAP,
	KCOVDBG_STEP_ENABLE,
	KCOVDBG_STEP_REMOTE_ENABLE,
	KCOVDBG_STEP_FORK,
	KCOVDBG_STEP_SEIZE,
	KCOVDBG_STEP_EXEC,
	KCOVDBG_STEP_PASS, /* Pass the descriptor to a new task. */
	KCOVDBG_STEP_MEMORY,
};

enum kcovdbg_kind {
	KCOVDBG_KIND_COMMAND,
	KCOVDBG_KIND_PROCESS,
	KCOVDBG_KIND_THREAD,
};

struct kcovdbg_command {
	const char *path;		     /* Of KCOV's device. */
	const struct kcovdbg_device *device; /* NULL: the kernel. */
	char *const *argv;
	char *const *envp;
	struct kcovdbg_mode mode;
	uint64_t size; /* Of each buffer, in words of the kernel. */
	uint8_t word_size;
	uint8_t syscalls;     /* Stop at system calls. */
	int32_t stdout_fd;    /* Standard output of the command; -1: that of this process. */
	uint64_t signal_mask; /* Signals that the command has blocked: bit 0 is signal 1. */
	/* Remote coverage, when there is a handle. */
	uint32_t remote_mode;
	uint32_t remote_area_size;
	uint32_t handle_count;
	const uint64_t *handles;
	uint64_t common_handle;
	uint32_t settle_ms; /* Time for background work after the end of the command. */
};

/* The used part of a buffer, from the count word, copied when its task ended. */
struct kcovdbg_copy {
	void *data;
	size_t length; /* In bytes. */
};

struct kcovdbg_task {
	int32_t tid;
	int32_t tgid;
	int32_t parent; /* The task that created it; 0: unknown, or this one. */
	int32_t kind;
	int32_t step;	/* The step at which following the task failed, */
	int32_t error;	/* and its errno; 0: followed. */
	int32_t status; /* The status that wait() reported. */
	uint8_t ended;
	uint8_t uses_kcov; /* Whether the task itself had the device open or mapped when it exited. */
	char comm[16];
	uint64_t stops; /* Number of its ptrace stops, without that of its exit, in which KCOV is disabled. */
	double started; /* CLOCK_MONOTONIC, seconds. */
	double stopped;
	struct kcovdbg_copy trace;
	struct kcovdbg_copy edges;
};

/* A system call of a task, and the records of the task that it made. */
struct kcovdbg_call {
	uint32_t task; /* Index of the task. */
	uint32_t number;
	uint64_t arguments[6];
	int64_t result;
	uint8_t returned;      /* 0: the task ended in it. */
	uint8_t compat;	       /* The number is one of the architecture's 32-bit table. */
	uint8_t text_argument; /* Number of the argument that is text, from 1; 0: none. */
	uint64_t first;
	uint64_t end;
	char text[96];
};

struct kcovdbg_run;

struct kcovdbg_run *kcovdbg_run_new(const struct kcovdbg_command *command);
/* Run the command until all its tasks have ended. The fields of the command must remain valid. */
int kcovdbg_run_follow(struct kcovdbg_run *run);
/* Send a signal to the command, from any thread; SIGINT and SIGKILL to all its tasks. */
void kcovdbg_run_signal(struct kcovdbg_run *run, int signal);
/* The step that failed. */
int kcovdbg_run_step(const struct kcovdbg_run *run);
uint32_t kcovdbg_run_task_count(const struct kcovdbg_run *run);
const struct kcovdbg_task *kcovdbg_run_task(const struct kcovdbg_run *run, uint32_t index);
size_t kcovdbg_run_call_count(const struct kcovdbg_run *run);
const struct kcovdbg_call *kcovdbg_run_call(const struct kcovdbg_run *run, size_t index);
const struct kcovdbg_copy *kcovdbg_run_remote(const struct kcovdbg_run *run);
/* The process ID of the command once it runs, otherwise 0. From any thread. */
int kcovdbg_run_pid(const struct kcovdbg_run *run);
void kcovdbg_run_free(struct kcovdbg_run *run);
/* cdef end */

#endif
