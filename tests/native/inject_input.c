// SPDX-License-Identifier: LGPL-2.1-or-later
/* What inject.c reads of a process that it makes calls in: registers, states of waiting, memory, results. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "given.h"

#ifdef __aarch64__
#define SYSCALL_CODE 0xd4000001
#else
#define SYSCALL_CODE 0x050f
#endif

static struct given given;

static long given_ptrace(int request, ...)
{
	va_list arguments;
	void *data;

	va_start(arguments, request);
	(void)va_arg(arguments, int);
	(void)va_arg(arguments, void *);
	data = va_arg(arguments, void *);
	va_end(arguments);
	if (next_byte(&given) % 16 == 15) {
		errno = ESRCH;
		return -1;
	}
	errno = 0;
	switch (request) {
	case PTRACE_PEEKTEXT:
		/* The instruction of a system call, mostly. */
		return next_byte(&given) % 8 == 7 ? 0 : SYSCALL_CODE;
#ifdef __x86_64__
	case PTRACE_GETREGS:
		fill(&given, data, sizeof(struct user_regs_struct));
		/* 64-bit code, mostly. */
		if (next_byte(&given) % 4)
			((struct user_regs_struct *)data)->cs = 0x33;
		return 0;
#endif
	case PTRACE_GETREGSET:
		fill(&given, ((struct iovec *)data)->iov_base, ((struct iovec *)data)->iov_len);
		return 0;
	case PTRACE_PEEKDATA: {
		long word = 0;

		fill(&given, &word, sizeof(word));
		return word;
	}
	case 0x420a: /* PTRACE_GETSIGMASK */
		fill(&given, data, sizeof(uint64_t));
		return 0;
	}
	return 0;
}

static pid_t given_waitpid(pid_t pid, int *status, int options)
{
	(void)options;
	/* It ends with what is given. */
	if (given.at == given.end) {
		errno = ECHILD;
		return -1;
	}
	if (next_byte(&given) % 4)
		*status = (SIGTRAP | 0x80) << 8 | 0x7f;
	else
		fill(&given, status, sizeof(*status));
	return pid;
}

static ssize_t given_transfer(pid_t pid, const struct iovec *here, unsigned long count, const struct iovec *there,
			      unsigned long there_count, unsigned long flags)
{
	(void)pid;
	(void)count;
	(void)there;
	(void)there_count;
	(void)flags;
	switch (next_byte(&given) % 16) {
	case 14:
		errno = EFAULT;
		return -1;
	case 15:
		errno = ENOSYS;
		return -1;
	case 13:
		return here->iov_len / 2;
	}
	return here->iov_len;
}

static ssize_t given_readv(pid_t pid, const struct iovec *here, unsigned long count, const struct iovec *there,
			   unsigned long there_count, unsigned long flags)
{
	fill(&given, here->iov_base, here->iov_len);
	return given_transfer(pid, here, count, there, there_count, flags);
}

static long given_syscall(long number, ...)
{
	int sockets[2];

	(void)number;
	if (next_byte(&given) % 8 == 7) {
		errno = EPERM;
		return -1;
	}
	/* A descriptor in any case: a socket to nobody. */
	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets))
		return -1;
	close(sockets[1]);
	return sockets[0];
}

#define ptrace given_ptrace
#define waitpid given_waitpid
#define process_vm_readv given_readv
#define process_vm_writev given_transfer
#define syscall given_syscall
#include "inject.c"

void try_inject(const uint8_t *data, size_t size)
{
	struct kcovdbg_interruption interruption;
	int error;

	given = (struct given){ data, data + size };
	error = kcovdbg_inject_enable(1, 1, 0, 0, 0, &interruption);
	/* A process that ended has no buffer enabled. */
	if (interruption.ended && !error)
		abort();
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_inject(data, size);
	return 0;
}
#endif
