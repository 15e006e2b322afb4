// SPDX-License-Identifier: LGPL-2.1-or-later
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "follow.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "inject.h"

/* linux/ptrace.h and sys/ptrace.h cannot both be included, and not every libc has these. */
#define REQUEST_SEIZE 0x4206
#define REQUEST_LISTEN 0x4208
#define REQUEST_SYSCALL_INFO 0x420e
#define EVENT_STOP 128

#define OPTIONS \
	(PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | \
	 PTRACE_O_TRACEEXEC | PTRACE_O_TRACEEXIT)

/* Initialized buffers, kept for later tasks: making a buffer takes as long as clearing it. */
#define SPARE 8

struct task {
	struct kcovdbg_task told; /* Must be first: the part that callers see. */
	struct kcovdbg_kcov kcov;
	size_t open_call; /* Index + 1 of the system call that it is in, 0 outside. */
	int set_up;
	int alive;
	int is_gone; /* The task has been, or is being, reaped. */
};

/* Sent by the command on its pipe when it cannot start. */
struct report {
	int step;
	int error;
};

/* For the first process of the command; prepared before it starts, as it shares the memory of this one. */
struct birth {
	const struct kcovdbg_command *command;
	int kcov;
	int go[2];
	int report;
	char **paths; /* Candidates for the program, in order, ending with NULL. */
	char **shell; /* Arguments of a shell that runs it as a script; the second is its path. */
};

struct kcovdbg_run {
	const struct kcovdbg_command *command;
	const struct kcovdbg_device *device;
	pthread_mutex_t lock; /* Held while tasks change, for threads that send signals. */
	struct task **tasks;
	uint32_t count, room;
	uint32_t alive;
	struct kcovdbg_call *calls;
	size_t call_count, call_room;
	struct kcovdbg_kcov spare[SPARE];
	int spare_count;
	struct kcovdbg_kcov remote;
	struct kcovdbg_copy remote_copy;
	int report;	  /* Read end of the pipe for the reason that the command did not start. */
	int started;	  /* The command's program runs. */
	int leaving_exec; /* The command is at the end of its exec. */
	int pid;
	int step;
	struct birth birth;
	void *stack; /* The stack of the first process until its exec, while it shares this memory. */
};

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int fail(struct kcovdbg_run *run, enum kcovdbg_step step, int error)
{
	run->step = (int)step;
	return error;
}

/* Return an initialized and mapped instance. */
static int get_kcov(struct kcovdbg_run *run, struct kcovdbg_kcov *kcov, enum kcovdbg_step *step)
{
	const struct kcovdbg_command *command = run->command;
	int error;

	if (run->spare_count) {
		*kcov = run->spare[--run->spare_count];
		return 0;
	}
	*step = KCOVDBG_STEP_OPEN;
	error = kcovdbg_open(kcov, run->device, command->path, command->word_size);
	if (error)
		return error;
	kcovdbg_use(kcov, &command->mode);
	*step = KCOVDBG_STEP_INIT;
	error = kcovdbg_init(kcov, command->size);
	if (!error) {
		*step = KCOVDBG_STEP_MAP;
		error = kcovdbg_map(kcov, command->mode.second);
	}
	if (error)
		kcovdbg_close(kcov);
	else
		/* The command does not need its pages. */
		madvise(kcov->reservation, kcov->reserved, MADV_DONTFORK);
	return error;
}

static void put_kcov(struct kcovdbg_run *run, struct kcovdbg_kcov *kcov)
{
	if (kcov->fd >= 0 && run->spare_count < SPARE)
		run->spare[run->spare_count++] = *kcov;
	else
		kcovdbg_close(kcov);
	memset(kcov, 0, sizeof(*kcov));
	kcov->fd = -1;
}

static void forget_records(const struct kcovdbg_run *run, struct kcovdbg_kcov *kcov)
{
	kcovdbg_reset(kcov, run->command->mode.count_at);
}

/* Copy the count word and the records that it counts, as far as they fit the buffer. */
static int copy_out(const struct kcovdbg_kcov *kcov, const void *area, uint64_t count_at, uint8_t record_words,
		    struct kcovdbg_copy *copy)
{
	/* Comparison records have 64-bit words on every architecture. */
	size_t word = record_words > 1 ? 8 : kcov->word_size, bytes = kcov->length - count_at * kcov->word_size;
	uint64_t count = kcovdbg_count(kcov, area, count_at), fit = (bytes / word - 1) / record_words;

	copy->length = word + (count < fit ? count : fit) * record_words * word;
	copy->data = malloc(copy->length);
	if (!copy->data) {
		copy->length = 0;
		return -ENOMEM;
	}
	memcpy(copy->data, (const unsigned char *)area + count_at * kcov->word_size, copy->length);
	return 0;
}

static struct task *find_task(const struct kcovdbg_run *run, int tid)
{
	/* The newest tasks are looked up most often. */
	for (uint32_t i = run->count; i-- > 0;)
		if (run->tasks[i]->told.tid == tid && run->tasks[i]->alive)
			return run->tasks[i];
	return NULL;
}

static struct task *add_task(struct kcovdbg_run *run, int tid)
{
	struct task *task = calloc(1, sizeof(*task)), **tasks = run->tasks;

	if (!task)
		return NULL;
	pthread_mutex_lock(&run->lock);
	if (run->count == run->room) {
		uint32_t room = run->room ? run->room * 2 : 16;

		tasks = realloc(tasks, room * sizeof(struct task *));
		if (!tasks) {
			pthread_mutex_unlock(&run->lock);
			free(task);
			return NULL;
		}
		run->tasks = tasks;
		run->room = room;
	}
	task->told.tid = task->told.tgid = tid;
	task->told.kind = KCOVDBG_KIND_PROCESS;
	task->told.started = now();
	task->kcov.fd = -1;
	task->alive = 1;
	tasks[run->count++] = task;
	run->alive++;
	pthread_mutex_unlock(&run->lock);
	return task;
}

static void read_file(const char *directory, int tid, const char *name, char *buffer, size_t size)
{
	char path[64];
	ssize_t length = 0;
	int fd;

	snprintf(path, sizeof(path), "%s/%d/%s", directory, tid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		length = read(fd, buffer, size - 1);
		close(fd);
	}
	buffer[length > 0 ? length : 0] = 0;
}

static void read_comm(struct task *task)
{
	char comm[32];
	size_t length;

	read_file("/proc", task->told.tid, "comm", comm, sizeof(comm));
	length = strlen(comm);
	if (!length)
		return;
	/* The name ends with a newline, and may contain others. */
	comm[length - 1] = 0;
	memcpy(task->told.comm, comm, sizeof(task->told.comm) - 1);
}

static void find_group(struct task *task)
{
	char status[512], *at;

	read_file("/proc", task->told.tid, "status", status, sizeof(status));
	at = strstr(status, "\nTgid:");
	if (at)
		task->told.tgid = atoi(at + 6);
	if (task->told.kind != KCOVDBG_KIND_COMMAND && task->told.tgid != task->told.tid)
		task->told.kind = KCOVDBG_KIND_THREAD;
}

static void end_task(struct kcovdbg_run *run, struct task *task, int status)
{
	const struct kcovdbg_mode *mode = &run->command->mode;

	if (!task->alive)
		return;
	task->told.status = status;
	task->told.ended = 1;
	task->told.stopped = now();
	if (task->kcov.fd >= 0) {
		if (!task->told.error) {
			int error =
				copy_out(&task->kcov, task->kcov.area, mode->count_at, mode->record_words, &task->told.trace);

			if (!error && task->kcov.second)
				error = copy_out(&task->kcov, task->kcov.second, 0, 1, &task->told.edges);
			if (error) {
				task->told.step = KCOVDBG_STEP_MEMORY;
				task->told.error = -error;
			}
			if (task->open_call)
				run->calls[task->open_call - 1].end =
					kcovdbg_count(&task->kcov, task->kcov.area, mode->count_at);
		}
		put_kcov(run, &task->kcov);
	}
	pthread_mutex_lock(&run->lock);
	task->alive = 0;
	run->alive--;
	pthread_mutex_unlock(&run->lock);
}

/* Send no more signals to a task that is about to be reaped: then its number can be another process's. */
static void stop_signals(struct kcovdbg_run *run, struct task *task)
{
	pthread_mutex_lock(&run->lock);
	task->is_gone = 1;
	pthread_mutex_unlock(&run->lock);
}

/* Enable KCOV in a new task, before its first instruction. Return whether the task still exists. */
static int set_up(struct kcovdbg_run *run, struct task *task)
{
	const struct kcovdbg_mode *mode = &run->command->mode;
	struct kcovdbg_interruption interruption;
	enum kcovdbg_step step = KCOVDBG_STEP_OPEN;
	int error;

	task->set_up = 1;
	find_group(task);
	read_comm(task);
	error = get_kcov(run, &task->kcov, &step);
	if (error) {
		task->kcov.fd = -1;
	} else {
		step = KCOVDBG_STEP_PASS;
		error = kcovdbg_inject_enable(task->told.tid, task->told.tgid, task->kcov.fd, mode->request, mode->argument,
					      &interruption);
		/* Records of the tracer's work are not part of the trace. */
		forget_records(run, &task->kcov);
		for (int signal = 1; signal < 65; signal++)
			if (sigismember(&interruption.signals, signal) == 1)
				syscall(SYS_tgkill, task->told.tgid, task->told.tid, signal);
	}
	if (error) {
		task->told.step = (int)step;
		task->told.error = -error;
		if (task->kcov.fd >= 0)
			put_kcov(run, &task->kcov);
	}
	if (task->kcov.fd >= 0 || !error || step != KCOVDBG_STEP_PASS)
		return 1;
	if (interruption.ended) {
		end_task(run, task, interruption.status);
		return 0;
	}
	return 1;
}

/* Return the number of the argument of a call that is text, mostly a path, from 1; 0 without any. */
static int text_argument(uint64_t number)
{
	switch (number) {
#ifdef SYS_open
	case SYS_open:
	case SYS_stat:
	case SYS_lstat:
	case SYS_access:
	case SYS_readlink:
	case SYS_unlink:
	case SYS_mkdir:
	case SYS_rmdir:
	case SYS_creat:
	case SYS_chmod:
	case SYS_chown:
	case SYS_rename:
	case SYS_link:
	case SYS_mknod:
#endif
	case SYS_execve:
	case SYS_chdir:
	case SYS_chroot:
	case SYS_truncate:
	case SYS_statfs:
	case SYS_mount:
	case SYS_umount2:
	case SYS_memfd_create:
	case SYS_setxattr:
	case SYS_getxattr:
		return 1;
	case SYS_openat:
	case SYS_openat2:
	case SYS_newfstatat:
	case SYS_statx:
	case SYS_faccessat:
	case SYS_faccessat2:
	case SYS_readlinkat:
	case SYS_unlinkat:
	case SYS_mkdirat:
	case SYS_fchmodat:
	case SYS_fchownat:
	case SYS_renameat2:
	case SYS_execveat:
	case SYS_name_to_handle_at:
		return 2;
	}
	return 0;
}

/* Read up to the end of the word at an address: no call can read more without CONFIG_CROSS_MEMORY_ATTACH. */
static ssize_t peek(int tid, uint64_t address, void *data, size_t length)
{
	size_t skip = address % sizeof(long);
	long word;

	errno = 0;
	word = ptrace(PTRACE_PEEKDATA, tid, (void *)(address - skip), NULL);
	if (errno)
		return -1;
	if (length > sizeof(word) - skip)
		length = sizeof(word) - skip;
	memcpy(data, (char *)&word + skip, length);
	return (ssize_t)length;
}

static void read_text(int tid, uint64_t address, char *text, size_t size)
{
	size_t length = 0;

	/* Page by page: the text may end before an unmapped one. */
	while (length < size - 1) {
		size_t step = 4096 - (address + length) % 4096;
		struct iovec here = { text + length, step < size - 1 - length ? step : size - 1 - length };
		struct iovec there = { (void *)(address + length), here.iov_len };
		ssize_t done = process_vm_readv(tid, &here, 1, &there, 1, 0);

		if (done < 0 && errno == ENOSYS)
			done = peek(tid, address + length, text + length, here.iov_len);
		if (done <= 0)
			break;
		if (memchr(text + length, 0, (size_t)done))
			return;
		length += (size_t)done;
	}
	text[length] = 0;
}

/* In linux/ptrace.h since 5.3. */
struct syscall_info {
	uint8_t op;
	uint8_t pad[3];
	uint32_t arch;
	uint64_t instruction_pointer;
	uint64_t stack_pointer;
	union {
		struct {
			uint64_t nr;
			uint64_t args[6];
		} entry;
		struct {
			int64_t rval;
			uint8_t is_error;
		} exit;
	};
};

#define OP_ENTRY 1
#define OP_EXIT 2
/* linux/audit.h: __AUDIT_ARCH_64BIT */
#define ARCH_64BIT 0x80000000U

static void note_call(struct kcovdbg_run *run, struct task *task)
{
	struct syscall_info info;
	struct kcovdbg_call *call;
	uint64_t position;

	if (task->kcov.fd < 0 || ptrace(REQUEST_SYSCALL_INFO, task->told.tid, (void *)sizeof(info), &info) <= 0)
		return;
	position = kcovdbg_count(&task->kcov, task->kcov.area, run->command->mode.count_at);
	if (info.op == OP_EXIT) {
		if (task->open_call) {
			call = &run->calls[task->open_call - 1];
			call->end = position;
			call->result = info.exit.rval;
			call->returned = 1;
			task->open_call = 0;
		}
		return;
	}
	if (info.op != OP_ENTRY)
		return;
	if (run->call_count == run->call_room) {
		size_t room = run->call_room ? run->call_room * 2 : 256;

		call = realloc(run->calls, room * sizeof(*call));
		if (!call)
			return;
		run->calls = call;
		run->call_room = room;
	}
	call = &run->calls[run->call_count++];
	memset(call, 0, sizeof(*call));
	while (call->task < run->count && run->tasks[call->task] != task)
		call->task++;
	call->number = (uint32_t)info.entry.nr;
	memcpy(call->arguments, info.entry.args, sizeof(call->arguments));
	call->compat = sizeof(long) == 8 && !(info.arch & ARCH_64BIT);
	call->first = call->end = position;
	call->text_argument = call->compat ? 0 : (uint8_t)text_argument(info.entry.nr);
	if (call->text_argument)
		read_text(task->told.tid, call->arguments[call->text_argument - 1], call->text, sizeof(call->text));
	task->open_call = run->call_count;
}

static void resume(struct kcovdbg_run *run, struct task *task, int signal)
{
	/* The trace starts after the end of the command's exec. */
	int stepwise = run->command->syscalls || (run->leaving_exec && task == run->tasks[0]);

	ptrace(stepwise ? PTRACE_SYSCALL : PTRACE_CONT, task->told.tid, NULL, (void *)(long)signal);
}

/* A thread that calls exec becomes the leader of its group; all others have exited, the leader without a stop. */
static void change_leader(struct kcovdbg_run *run, int tid)
{
	struct task *leader = find_task(run, tid), *task;
	unsigned long old = 0;

	ptrace(PTRACE_GETEVENTMSG, tid, NULL, &old);
	if (!old || (int)old == tid)
		return;
	task = find_task(run, (int)old);
	if (leader)
		end_task(run, leader, 0);
	if (task)
		task->told.tid = task->told.tgid = tid;
}

static void handle_new(struct kcovdbg_run *run, struct task *parent)
{
	unsigned long tid = 0;
	struct task *child;

	if (ptrace(PTRACE_GETEVENTMSG, parent->told.tid, NULL, &tid) || !tid)
		return;
	child = find_task(run, (int)tid);
	if (!child)
		child = add_task(run, (int)tid);
	if (child)
		child->told.parent = parent->told.tid;
}

/* A task cannot enable KCOV itself, as this program has enabled it. At its exit the task still has files and memory. */
static int uses_device(const char *device, int tid)
{
	struct stat wanted, found;
	struct dirent *entry;
	char text[512];
	DIR *folder;
	FILE *maps;
	int uses = 0;

	if (stat(device, &wanted))
		return 0;
	snprintf(text, sizeof(text), "/proc/%d/fd", tid);
	folder = opendir(text);
	while (folder && !uses && (entry = readdir(folder))) {
		/* Compare names first: asking for a file's inode may take a request to a server. */
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, text, sizeof(text) - 1);

		text[length > 0 ? length : 0] = '\0';
		uses = !strcmp(basename(text), basename(device)) && !fstatat(dirfd(folder), entry->d_name, &found, 0) &&
		       found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino;
	}
	if (folder)
		closedir(folder);
	snprintf(text, sizeof(text), "/proc/%d/maps", tid);
	maps = uses ? NULL : fopen(text, "re");
	while (maps && !uses && fgets(text, sizeof(text), maps)) {
		unsigned int major, minor;
		unsigned long inode;

		uses = sscanf(text, "%*s %*s %*s %x:%x %lu", &major, &minor, &inode) == 3 && inode == wanted.st_ino &&
		       makedev(major, minor) == wanted.st_dev;
	}
	if (maps)
		fclose(maps);
	return uses;
}

static void handle_stop(struct kcovdbg_run *run, int tid, int status)
{
	int signal = WSTOPSIG(status), event = status >> 16;
	struct task *task = find_task(run, tid);
	unsigned long code = 0;

	if (event == PTRACE_EVENT_EXEC) {
		change_leader(run, tid);
		task = find_task(run, tid);
	}
	if (!task)
		task = add_task(run, tid);
	if (!task) {
		ptrace(PTRACE_CONT, tid, NULL, NULL);
		return;
	}
	task->told.stops++;
	switch (event) {
	case PTRACE_EVENT_CLONE:
	case PTRACE_EVENT_FORK:
	case PTRACE_EVENT_VFORK:
		handle_new(run, task);
		resume(run, task, 0);
		return;
	case PTRACE_EVENT_EXEC:
		read_comm(task);
		if (task == run->tasks[0] && !run->started)
			run->started = run->leaving_exec = 1;
		resume(run, task, 0);
		return;
	case PTRACE_EVENT_EXIT:
		task->told.stops--;
		task->told.uses_kcov = (uint8_t)uses_device(run->command->path, tid);
		if (task == run->tasks[0]) {
			resume(run, task, 0);
			return;
		}
		/*
		 * The kernel has disabled KCOV for it (do_exit()). Until its tracer has waited for it, its parent could not, although
		 * its pidfd is readable.
		 */
		read_comm(task);
		ptrace(PTRACE_GETEVENTMSG, tid, NULL, &code);
		end_task(run, task, (int)code);
		ptrace(PTRACE_DETACH, tid, NULL, NULL);
		return;
	case EVENT_STOP:
		if (!task->set_up) {
			if (set_up(run, task))
				resume(run, task, 0);
		} else if (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU) {
			ptrace(REQUEST_LISTEN, tid, NULL, NULL);
		} else {
			resume(run, task, 0);
		}
		return;
	case 0:
		break;
	default:
		resume(run, task, 0);
		return;
	}
	if (signal != (SIGTRAP | 0x80)) {
		resume(run, task, signal);
		return;
	}
	if (run->leaving_exec && task == run->tasks[0]) {
		run->leaving_exec = 0;
		/* The system call whose end the trace begins with. */
		task->told.stops = 1;
		forget_records(run, &task->kcov);
	} else if (run->command->syscalls) {
		note_call(run, task);
	}
	resume(run, task, 0);
}

/* Not instrumented: a sanitizer's state for this thread is that of the parent. */
#define BEFORE_EXEC __attribute__((no_sanitize_address, no_sanitize_thread))

#ifdef __x86_64__

/* Do not use libc's function: the first process shares errno with this thread. */
static long BEFORE_EXEC direct(long number, long a, long b, long c, long d)
{
	register long fourth __asm__("r10") = d;
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
	return result;
}

/* Handlers of this process must not run in it; ignored signals remain ignored. */
static void BEFORE_EXEC reset_handlers(void)
{
	/* As the kernel defines it. */
	struct {
		unsigned long handler, flags, restorer, mask;
	} now, standard = { 0 };

	for (int number = 1; number < 65; number++)
		if (!direct(SYS_rt_sigaction, number, 0, (long)&now, sizeof(now.mask)) && now.handler > 1)
			direct(SYS_rt_sigaction, number, (long)&standard, 0, sizeof(standard.mask));
	/* Python ignores these. */
	direct(SYS_rt_sigaction, SIGPIPE, (long)&standard, 0, sizeof(standard.mask));
	direct(SYS_rt_sigaction, SIGXFSZ, (long)&standard, 0, sizeof(standard.mask));
}

#else

static long direct(long number, long a, long b, long c, long d)
{
	long result = syscall(number, a, b, c, d);

	return result < 0 ? -errno : result;
}

static void BEFORE_EXEC reset_handlers(void)
{
	struct sigaction now;

	for (int number = 1; number < 65; number++)
		if (!sigaction(number, NULL, &now) && now.sa_handler != SIG_IGN)
			signal(number, SIG_DFL);
	/* Python ignores these. */
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_DFL);
}

#endif

/* As execvpe() does. */
static int BEFORE_EXEC execute(const struct birth *birth)
{
	const struct kcovdbg_command *command = birth->command;
	int error = ENOENT, denied = 0;

	for (char **path = birth->paths; *path; path++) {
		error = (int)-direct(SYS_execve, (long)*path, (long)command->argv, (long)command->envp, 0);
		if (error == ENOEXEC) {
			birth->shell[1] = *path;
			error = (int)-direct(SYS_execve, (long)birth->shell[0], (long)birth->shell, (long)command->envp, 0);
		}
		if (error == EACCES)
			denied = 1;
		else if (error != ENOENT && error != ENOTDIR && error != ESTALE && error != ENODEV && error != ETIMEDOUT)
			return error;
	}
	return denied ? EACCES : error;
}

/* The command's first process until its exec, with all signals blocked. It never returns. */
static int BEFORE_EXEC be_command(void *argument)
{
	const struct birth *birth = argument;
	const struct kcovdbg_command *command = birth->command;
	struct report report = { KCOVDBG_STEP_ENABLE, 0 };
	uint64_t mask = command->signal_mask;
	char byte;

	direct(SYS_close, birth->go[1], 0, 0, 0);
	/* Before it is traced, it must die with this process as well. */
	direct(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
	if (direct(SYS_read, birth->go[0], (long)&byte, 1, 0) != 1)
		direct(SYS_exit_group, 125, 0, 0, 0);
	direct(SYS_prctl, PR_SET_PDEATHSIG, 0, 0, 0);
	if (command->stdout_fd >= 0 && command->stdout_fd != 1)
		direct(SYS_dup3, command->stdout_fd, 1, 0, 0);
	reset_handlers();
	direct(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof(mask));
	/* The kernel collects, as for all tasks of the command: they have no fake device. */
	report.error = (int)-direct(SYS_ioctl, birth->kcov, (long)command->mode.request, (long)command->mode.argument, 0);
	if (report.error <= 0) {
		report.step = KCOVDBG_STEP_EXEC;
		report.error = execute(birth);
	}
	direct(SYS_write, birth->report, (long)&report, sizeof(report), 0);
	direct(SYS_exit_group, 125, 0, 0, 0);
	return 125;
}

static void free_paths(struct birth *birth)
{
	for (char **path = birth->paths; path && *path; path++)
		free(*path);
	free(birth->paths);
	free(birth->shell);
	birth->paths = birth->shell = NULL;
}

/* List the candidates for a program: its name, or in the directories of PATH, where an empty one is the current directory. */
static int find_paths(struct birth *birth)
{
	char *const *argv = birth->command->argv;
	const char *name = argv[0], *folders = getenv("PATH");
	size_t count = 1, number = 0, words = 0;

	if (strchr(name, '/') || !*name)
		folders = "";
	else if (!folders)
		folders = "/bin:/usr/bin";
	for (const char *at = folders; *at; at++)
		count += *at == ':';
	while (argv[words])
		words++;
	birth->paths = calloc(count + 1, sizeof(*birth->paths));
	birth->shell = calloc(words + 2, sizeof(*birth->shell));
	if (!birth->paths || !birth->shell)
		goto failed;
	birth->shell[0] = (char *)"/bin/sh";
	memcpy(birth->shell + 2, argv + 1, words * sizeof(*argv));
	while (number < count) {
		size_t length = strcspn(folders, ":");

		if (asprintf(&birth->paths[number], "%.*s%s%s", (int)length, folders, length ? "/" : "", name) < 0) {
			birth->paths[number] = NULL;
			goto failed;
		}
		number++;
		folders += length + 1;
	}
	return 0;

failed:
	free_paths(birth);
	return -ENOMEM;
}

#define STACK_SIZE 65536

/*
 * Start the first process, with all signals blocked. If possible it shares the memory of this process until its exec, which would
 * otherwise unmap a copy of Python's memory with coverage enabled, for as long as a short command runs.
 */
static int give_birth(struct kcovdbg_run *run, struct birth *birth)
{
	sigset_t all, before;
	int pid;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
#ifdef __x86_64__
	run->stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (run->stack == MAP_FAILED) {
		run->stack = NULL;
		pid = -1;
	} else {
		pid = clone(be_command, (char *)run->stack + STACK_SIZE, CLONE_VM | SIGCHLD, birth);
	}
#else
	(void)run;
	pid = fork();
	if (!pid)
		_exit(be_command(birth));
#endif
	pid = pid < 0 ? -errno : pid;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return pid;
}

static int start(struct kcovdbg_run *run)
{
	enum kcovdbg_step step = KCOVDBG_STEP_OPEN;
	struct task *task;
	struct birth *birth = &run->birth;
	int report[2], error, pid;

	task = add_task(run, 0);
	if (!task)
		return fail(run, KCOVDBG_STEP_MEMORY, -ENOMEM);
	task->told.kind = KCOVDBG_KIND_COMMAND;
	task->set_up = 1;
	error = get_kcov(run, &task->kcov, &step);
	if (error) {
		task->kcov.fd = -1;
		task->alive = 0;
		run->alive = 0;
		return fail(run, step, error);
	}
	birth->command = run->command;
	birth->kcov = task->kcov.fd;
	error = find_paths(birth);
	if (error || pipe2(birth->go, O_CLOEXEC)) {
		task->alive = 0;
		run->alive = 0;
		return error ? fail(run, KCOVDBG_STEP_MEMORY, error) : fail(run, KCOVDBG_STEP_FORK, -errno);
	}
	if (pipe2(report, O_CLOEXEC)) {
		error = -errno;
		close(birth->go[0]);
		close(birth->go[1]);
		task->alive = 0;
		run->alive = 0;
		return fail(run, KCOVDBG_STEP_FORK, error);
	}
	birth->report = report[1];
	pid = give_birth(run, birth);
	error = pid < 0 ? pid : 0;
	close(birth->go[0]);
	close(report[1]);
	run->report = report[0];
	if (error) {
		run->step = KCOVDBG_STEP_FORK;
	} else {
		task->told.tid = task->told.tgid = pid;
		__atomic_store_n(&run->pid, pid, __ATOMIC_RELEASE);
		if (ptrace(REQUEST_SEIZE, pid, NULL, (void *)(long)OPTIONS)) {
			error = fail(run, KCOVDBG_STEP_SEIZE, -errno);
			stop_signals(run, task);
			kill(pid, SIGKILL);
			waitpid(pid, NULL, __WALL);
		}
	}
	if (!error && write(birth->go[1], "", 1) != 1)
		/* The process has died: wait() reports that. */
		errno = 0;
	close(birth->go[1]);
	if (error) {
		task->alive = 0;
		run->alive = 0;
		kcovdbg_close(&task->kcov);
	}
	return error;
}

static int start_remote(struct kcovdbg_run *run)
{
	const struct kcovdbg_command *command = run->command;
	enum kcovdbg_step step = KCOVDBG_STEP_OPEN;
	int error;

	error = kcovdbg_open(&run->remote, run->device, command->path, command->word_size);
	if (!error) {
		kcovdbg_use(&run->remote, &command->mode);
		step = KCOVDBG_STEP_INIT;
		error = kcovdbg_init(&run->remote, command->size);
	}
	if (!error) {
		step = KCOVDBG_STEP_MAP;
		error = kcovdbg_map(&run->remote, 0);
	}
	if (!error) {
		madvise(run->remote.reservation, run->remote.reserved, MADV_DONTFORK);
		step = KCOVDBG_STEP_REMOTE_ENABLE;
		error = kcovdbg_remote_enable(&run->remote, command->remote_mode, command->remote_area_size, command->handles,
					      command->handle_count, command->common_handle);
	}
	return error ? fail(run, step, error) : 0;
}

/* Sections write their records when they end: wait for those in flight. */
static void finish_remote(struct kcovdbg_run *run)
{
	const struct kcovdbg_command *command = run->command;
	const struct timespec pause = { 0, 20 * 1000 * 1000 };
	uint64_t count, last = kcovdbg_count(&run->remote, run->remote.area, 0);
	double end = now() + command->settle_ms * 1e-3;
	int quiet = 0;

	while (now() < end && quiet < 5) {
		nanosleep(&pause, NULL);
		count = kcovdbg_count(&run->remote, run->remote.area, 0);
		/* The first section may not have ended yet. */
		quiet = count == last && count ? quiet + 1 : 0;
		last = count;
	}
	kcovdbg_disable(&run->remote);
	copy_out(&run->remote, run->remote.area, 0, command->remote_mode == 1 ? 4 : 1, &run->remote_copy);
}

static void wait_for_all(struct kcovdbg_run *run)
{
	while (run->alive) {
		siginfo_t info = { 0 };
		struct task *task;
		int status, tid;

		/* Do not reap the task yet: until then its name can be read. */
		if (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WNOWAIT | __WALL | __WNOTHREAD)) {
			if (errno == EINTR)
				continue;
			break;
		}
		tid = info.si_pid;
		task = find_task(run, tid);
		if (task && info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED) {
			read_comm(task);
			stop_signals(run, task);
		}
		if (waitpid(tid, &status, __WALL | __WNOTHREAD) < 0)
			continue;
		if (WIFSTOPPED(status))
			handle_stop(run, tid, status);
		else if (task)
			end_task(run, task, status);
	}
}

int kcovdbg_run_follow(struct kcovdbg_run *run)
{
	const struct kcovdbg_command *command = run->command;
	int has_remote = command->handle_count || command->common_handle, error = 0;
	struct report report;

	if (has_remote)
		error = start_remote(run);
	if (!error)
		error = start(run);
	if (!error) {
		wait_for_all(run);
		if (!run->started && read(run->report, &report, sizeof(report)) == sizeof(report))
			error = fail(run, (enum kcovdbg_step)report.step, -report.error);
	}
	if (has_remote) {
		if (!error)
			finish_remote(run);
		kcovdbg_close(&run->remote);
	}
	while (run->spare_count)
		kcovdbg_close(&run->spare[--run->spare_count]);
	if (run->report >= 0)
		close(run->report);
	run->report = -1;
	free_paths(&run->birth);
	if (run->stack)
		munmap(run->stack, STACK_SIZE);
	run->stack = NULL;
	__atomic_store_n(&run->pid, 0, __ATOMIC_RELEASE);
	return error;
}

void kcovdbg_run_signal(struct kcovdbg_run *run, int signal)
{
	int pid = __atomic_load_n(&run->pid, __ATOMIC_ACQUIRE);

	pthread_mutex_lock(&run->lock);
	for (uint32_t i = 0; i < run->count; i++) {
		const struct task *task = run->tasks[i];

		/* As a terminal sends an interrupt to all of them. */
		if (task->alive && !task->is_gone && task->told.tgid > 0 && task->told.tid == task->told.tgid &&
		    (signal == SIGKILL || signal == SIGINT || task->told.tgid == pid))
			kill(task->told.tgid, signal);
	}
	pthread_mutex_unlock(&run->lock);
}

struct kcovdbg_run *kcovdbg_run_new(const struct kcovdbg_command *command)
{
	struct kcovdbg_run *run = calloc(1, sizeof(*run));

	if (!run)
		return NULL;
	run->command = command;
	run->device = command->device ? command->device : kcovdbg_kernel();
	run->report = run->remote.fd = -1;
	pthread_mutex_init(&run->lock, NULL);
	return run;
}

int kcovdbg_run_step(const struct kcovdbg_run *run)
{
	return run->step;
}

int kcovdbg_run_pid(const struct kcovdbg_run *run)
{
	return __atomic_load_n(&run->pid, __ATOMIC_ACQUIRE);
}

uint32_t kcovdbg_run_task_count(const struct kcovdbg_run *run)
{
	return run->count;
}

const struct kcovdbg_task *kcovdbg_run_task(const struct kcovdbg_run *run, uint32_t index)
{
	return index < run->count ? &run->tasks[index]->told : NULL;
}

size_t kcovdbg_run_call_count(const struct kcovdbg_run *run)
{
	return run->call_count;
}

const struct kcovdbg_call *kcovdbg_run_call(const struct kcovdbg_run *run, size_t index)
{
	return index < run->call_count ? &run->calls[index] : NULL;
}

const struct kcovdbg_copy *kcovdbg_run_remote(const struct kcovdbg_run *run)
{
	return &run->remote_copy;
}

void kcovdbg_run_free(struct kcovdbg_run *run)
{
	if (!run)
		return;
	for (uint32_t i = 0; i < run->count; i++) {
		free(run->tasks[i]->told.trace.data);
		free(run->tasks[i]->told.edges.data);
		if (run->tasks[i]->kcov.device)
			kcovdbg_close(&run->tasks[i]->kcov);
		free(run->tasks[i]);
	}
	free(run->tasks);
	free(run->calls);
	free(run->remote_copy.data);
	pthread_mutex_destroy(&run->lock);
	free(run);
}
