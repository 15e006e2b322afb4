// SPDX-License-Identifier: LGPL-2.1-or-later
/* What follow.c reads of the processes that it follows: their names, files, mappings, system calls, and texts in their memory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <unistd.h>

#include "given.h"

static struct given given;

static int given_open(const char *path, int flags)
{
	(void)path;
	(void)flags;
	return next_byte(&given) ? dup(0) : -1;
}

static ssize_t given_read(int fd, void *buffer, size_t size)
{
	(void)fd;
	return next_byte(&given) == 255 ? -1 : (ssize_t)take(&given, buffer, next_byte(&given) % (size + 1));
}

static FILE *given_fopen(const char *path, const char *mode)
{
	size_t left = given.end - given.at;

	(void)path;
	(void)mode;
	return left ? fmemopen((void *)given.at, left, "r") : NULL;
}

static ssize_t given_readlinkat(int folder, const char *name, char *text, size_t size)
{
	(void)folder;
	(void)name;
	return next_byte(&given) == 255 ? -1 : (ssize_t)take(&given, text, next_byte(&given) % (size + 1));
}

static ssize_t given_readv(pid_t pid, const struct iovec *here, unsigned long count, const struct iovec *there,
			   unsigned long there_count, unsigned long flags)
{
	(void)pid;
	(void)count;
	(void)there;
	(void)there_count;
	(void)flags;
	switch (next_byte(&given) % 8) {
	case 0:
		errno = EFAULT;
		return -1;
	case 1:
		errno = ENOSYS;
		return -1;
	case 2:
		return take(&given, here->iov_base, next_byte(&given) % (here->iov_len + 1));
	default:
		return take(&given, here->iov_base, here->iov_len);
	}
}

static long given_ptrace(int request, ...)
{
	va_list arguments;
	size_t size;
	void *data;

	va_start(arguments, request);
	(void)va_arg(arguments, int);
	size = (size_t)va_arg(arguments, void *);
	data = request == PTRACE_PEEKDATA ? NULL : va_arg(arguments, void *);
	va_end(arguments);
	/* PTRACE_GET_SYSCALL_INFO */
	if (request == 0x420e) {
		fill(&given, data, size);
		return size;
	}
	errno = next_byte(&given) % 4 ? 0 : EIO;
	size = 0;
	fill(&given, &size, sizeof(size));
	return (long)size;
}

#define open given_open
#define read given_read
#define fopen given_fopen
#define readlinkat given_readlinkat
#define process_vm_readv given_readv
#define ptrace given_ptrace
#include "follow.c"

#define CHECK(condition) \
	do { \
		if (!(condition)) \
			abort(); \
	} while (0)

void try_follow(const uint8_t *data, size_t size)
{
	static uint64_t area[64];
	struct kcovdbg_command command = { 0 };
	struct task task = { .told = { .tid = 1 }, .kcov = { .area = (unsigned char *)area, .word_size = 8 } },
		    *tasks[] = { &task };
	struct kcovdbg_run run = { .command = &command, .tasks = tasks, .count = 1 };
	char text[300];
	size_t i;

	given = (struct given){ data, data + size };
	read_comm(&task);
	CHECK(memchr(task.told.comm, 0, sizeof(task.told.comm)));
	find_group(&task);
	for (i = 0; i < 8 && given.at < given.end; i++) {
		uint64_t address = 0;

		fill(&given, &address, sizeof(address));
		read_text(1, address, text, sizeof(text));
		CHECK(memchr(text, 0, sizeof(text)));
		note_call(&run, &task);
	}
	CHECK(run.call_count <= 8 && task.open_call <= run.call_count);
	for (i = 0; i < run.call_count; i++)
		CHECK(memchr(run.calls[i].text, 0, sizeof(run.calls[i].text)));
	uses_device("/dev/null", getpid());
	free(run.calls);
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_follow(data, size);
	return 0;
}
#endif
