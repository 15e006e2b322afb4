/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Runs a command with one KCOV instance per task, threads and children too.
 *
 * KCOV has to be enabled by the very task that is to be traced. The command does that itself before its exec. A task that it
 * creates is stopped by ptrace before its first instruction, and made to call what takes a descriptor from us, enables KCOV
 * with it and closes it again: KCOV needs the descriptor no longer then, and the command never sees it. System calls aren't
 * stopped unless they are asked for: between creating tasks, signals and exec the command runs at full speed.
 *
 * Everything is done by the calling thread, which must be free of other children: it is the tracer, the command's parent and
 * the owner of the remote handles. When it dies, the kernel kills all that it traces.
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
	KCOVDBG_STEP_PASS,	/* Handing the descriptor to a new task. */
	KCOVDBG_STEP_MEMORY,
};

enum kcovdbg_kind {
	KCOVDBG_KIND_COMMAND,
	KCOVDBG_KIND_PROCESS,
	KCOVDBG_KIND_THREAD,
};

struct kcovdbg_command {
	const char *path;		/* Of KCOV's device. */
	const struct kcovdbg_device *device;	/* NULL: the kernel. */
	char *const *argv;
	char *const *envp;
	struct kcovdbg_mode mode;
	uint64_t size;			/* Of each buffer, in words of the kernel. */
	uint8_t word_size;
	uint8_t syscalls;		/* Stop at system calls. */
	int32_t stdout_fd;		/* What the command has as standard output; -1: ours. */
	uint64_t signal_mask;		/* What the command has blocked: bit 0 is signal 1. */
	/* Remote coverage, when there is a handle. */
	uint32_t remote_mode;
	uint32_t remote_area_size;
	uint32_t handle_count;
	const uint64_t *handles;
	uint64_t common_handle;
	uint32_t settle_ms;		/* How long background work may go on after the command's end. */
};

/* A buffer that was copied when its task had ended: from the count word on, as much as is used. */
struct kcovdbg_copy {
	void *data;
	size_t length;			/* In bytes. */
};

struct kcovdbg_task {
	int32_t tid;
	int32_t tgid;
	int32_t parent;			/* The task that created it; 0: unknown, or ours. */
	int32_t kind;
	int32_t step;			/* Where following it failed, */
	int32_t error;			/* and the errno; 0: it was followed. */
	int32_t status;			/* As wait() says it. */
	uint8_t ended;
	char comm[16];
	uint64_t stops;			/* How often ptrace stopped it. */
	double started;			/* CLOCK_MONOTONIC, seconds. */
	double stopped;
	struct kcovdbg_copy trace;
	struct kcovdbg_copy edges;
};

/* One system call of one task, and which of the task's records it made. */
struct kcovdbg_call {
	uint32_t task;			/* Index. */
	uint32_t number;
	uint64_t arguments[6];
	int64_t result;
	uint8_t returned;		/* 0: the task ended in it. */
	uint8_t compat;			/* The number is of the architecture's 32-bit table. */
	uint8_t text_argument;		/* Number of the argument that is text, from 1; 0: none. */
	uint64_t first;
	uint64_t end;
	char text[96];
};

struct kcovdbg_run;

struct kcovdbg_run *kcovdbg_run_new(const struct kcovdbg_command *command);
/* Run the command to its end, and that of all it created. The fields of the command must live as long. */
int kcovdbg_run_follow(struct kcovdbg_run *run);
/* From any thread: send a signal to the command; SIGINT and SIGKILL: to all that it created. */
void kcovdbg_run_signal(struct kcovdbg_run *run, int signal);
/* Where it failed. */
int kcovdbg_run_step(const struct kcovdbg_run *run);
uint32_t kcovdbg_run_task_count(const struct kcovdbg_run *run);
const struct kcovdbg_task *kcovdbg_run_task(const struct kcovdbg_run *run, uint32_t index);
size_t kcovdbg_run_call_count(const struct kcovdbg_run *run);
const struct kcovdbg_call *kcovdbg_run_call(const struct kcovdbg_run *run, size_t index);
const struct kcovdbg_copy *kcovdbg_run_remote(const struct kcovdbg_run *run);
/* The process id of the command once it runs, else 0. From any thread. */
int kcovdbg_run_pid(const struct kcovdbg_run *run);
void kcovdbg_run_free(struct kcovdbg_run *run);
/* cdef end */

#endif
