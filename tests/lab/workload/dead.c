// SPDX-License-Identifier: LGPL-2.1-or-later
/* States of tasks that are exiting or have exited: zombies, leaders without threads, tasks stopped in exit. */
#include "lab.h"

#include <linux/kcov.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct slot *zombie, *leader, *exiting;

/*
 * Collects, exits, and nobody waits for it. Its exit disabled the object, which its parent still
 * has open and mapped.
 */
static void st_zombie_parent(struct slot *s)
{
	struct kc k;
	siginfo_t info;
	pid_t pid;

	if (kc_setup(s, &k, 30 * PAGE_WORDS))
		return;
	slot_object(s, &k, 1, 2);
	slot_call(s, "fork");
	pid = fork();
	if (!pid) {
		slot_comm(zombie, "kc-zombie");
		zombie->asleep = false;
		if (kc_enable(zombie, &k, TRACE_PC))
			_exit(1);
		syscall(SYS_getppid);
		zombie->enabled = false;
		zombie->owner = 0;
		syscall(SYS_exit_group, 0);
	}
	waitid(P_PID, pid, &info, WEXITED | WNOWAIT);
	slot_call(zombie, "exit");
	slot_extra(zombie, ", \"task_state\": \"Z\", \"exited_from\": \"%s\"", s->state);
	atomic_store(&zombie->ready, 1);
	/* The contents came from the zombie's session. */
	s->mode = TRACE_PC;
	slot_extra(s, ", \"zombie\": %d", pid);
}

static void *leader_thread(void *arg)
{
	struct slot *s = arg;
	struct kc k;

	slot_comm(s, "kc-zleader/t");
	/*
	 * The leader's exit is over when it is a zombie: only then is this the only thread with
	 * files and memory.
	 */
	while (!atomic_load(&leader->done_calls))
		msleep(1);
	msleep(20);
	if (kc_setup(s, &k, 31 * PAGE_WORDS))
		stand(s);
	slot_object(s, &k, 2, 1);
	if (!kc_enable(s, &k, TRACE_PC))
		syscall(SYS_getppid);
	stand(s);
}

/*
 * A thread group whose leader has exited: its files and memory can be seen through the other thread
 * only.
 */
static void st_leader(struct slot *s)
{
	struct slot *t = slot_new("kc-zleader/t");
	pthread_t thread;

	leader = s;
	if (pthread_create(&thread, NULL, leader_thread, t)) {
		slot_missing(s, "pthread_create");
		return;
	}
	s->asleep = false;
	slot_call(s, "exit of the leader alone");
	slot_extra(s, ", \"task_state\": \"Z\"");
	atomic_store(&s->ready, 1);
	atomic_store(&s->done_calls, 1);
	syscall(SYS_exit, 0);
}

static void exiting_child(struct slot *s)
{
	struct kc k;

	ptrace(PTRACE_TRACEME, 0, 0, 0);
	raise(SIGSTOP);
	if (!kc_setup(s, &k, 32 * PAGE_WORDS)) {
		slot_object(s, &k, 1, 2);
		if (!kc_enable(s, &k, TRACE_PC)) {
			syscall(SYS_getppid);
			s->enabled = false;
			s->owner = 0;
		}
	}
	syscall(SYS_exit_group, 0);
}

/*
 * Stopped by its tracer inside exit: KCOV has let go of the task, which still has its files and its
 * memory.
 */
static void st_tracer(struct slot *s)
{
	int status;
	pid_t pid;

	exiting->asleep = false;
	pid = spawn(exiting, exiting_child);
	exiting->pid = exiting->tid = pid;
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) || ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACEEXIT) ||
	    ptrace(PTRACE_CONT, pid, 0, 0) || waitpid(pid, &status, 0) != pid ||
	    status >> 8 != (SIGTRAP | PTRACE_EVENT_EXIT << 8))
		slot_missing(exiting, "ptrace gave status 0x%x", status);
	slot_call(exiting, "exit, stopped at PTRACE_EVENT_EXIT");
	slot_extra(exiting, ", \"task_state\": \"t\"");
	atomic_store(&exiting->ready, 1);
	slot_extra(s, ", \"tracee\": %d", pid);
}

void states_dead(void)
{
	zombie = slot_new("kc-zombie");
	spawn_state("kc-zparent", st_zombie_parent);
	spawn_state("kc-zleader", st_leader);
	exiting = slot_new("kc-exiting");
	spawn_state("kc-tracer", st_tracer);
}
