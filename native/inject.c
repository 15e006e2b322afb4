// SPDX-License-Identifier: LGPL-2.1-or-later
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "inject.h"

#include <elf.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__aarch64__)

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef PTRACE_GETSIGMASK
#define PTRACE_GETSIGMASK 0x420a
#define PTRACE_SETSIGMASK 0x420b
#endif
/* linux/kcmp.h */
#define KCMP_FILES 2

#define RED_ZONE 128

/* Memory below the task's stack, for the arguments of its calls. */
struct scratch {
	int sockets[2];
	struct msghdr message;
	struct iovec vector;
	char byte;
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
};

struct injection {
	int tid;
	int tgid;
	struct user_regs_struct registers;
	unsigned long scratch_at;
	struct kcovdbg_interruption *interruption;
};

#ifdef __x86_64__

#define SYSCALL_LENGTH 2
#define SYSCALL_INSTRUCTION 0x050f
#define SYSCALL_MASK 0xffff
/* Selector of 64-bit code. */
#define USER_CS 0x33

static int get_registers(int tid, struct user_regs_struct *registers)
{
	if (ptrace(PTRACE_GETREGS, tid, NULL, registers))
		return -errno;
	return registers->cs == USER_CS ? 0 : -ENOTSUP;
}

static int set_registers(int tid, struct user_regs_struct *registers)
{
	/* Do not restart a system call. */
	registers->orig_rax = -1;
	return ptrace(PTRACE_SETREGS, tid, NULL, registers) ? -errno : 0;
}

static unsigned long program_counter(const struct user_regs_struct *registers)
{
	return registers->rip;
}

static unsigned long stack_pointer(const struct user_regs_struct *registers)
{
	return registers->rsp;
}

static void prepare(struct user_regs_struct *registers, long number, const unsigned long arguments[4])
{
	registers->rax = number;
	registers->rip -= SYSCALL_LENGTH;
	registers->rdi = arguments[0];
	registers->rsi = arguments[1];
	registers->rdx = arguments[2];
	registers->r10 = arguments[3];
}

static long result_of(const struct user_regs_struct *registers)
{
	return (long)registers->rax;
}

#else

#define SYSCALL_LENGTH 4
#define SYSCALL_INSTRUCTION 0xd4000001 /* svc #0 */
#define SYSCALL_MASK 0xffffffff

static int get_registers(int tid, struct user_regs_struct *registers)
{
	struct iovec vector = { registers, sizeof(*registers) };

	if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &vector))
		return -errno;
	/* 32-bit code has fewer registers. */
	return vector.iov_len == sizeof(*registers) ? 0 : -ENOTSUP;
}

/*
 * The kernel does not restart the system call that created a task. It changes x7 while a task is stopped at a system call, and
 * restores it.
 */
static int set_registers(int tid, struct user_regs_struct *registers)
{
	struct iovec vector = { registers, sizeof(*registers) };

	return ptrace(PTRACE_SETREGSET, tid, (void *)NT_PRSTATUS, &vector) ? -errno : 0;
}

static unsigned long program_counter(const struct user_regs_struct *registers)
{
	return registers->pc;
}

static unsigned long stack_pointer(const struct user_regs_struct *registers)
{
	return registers->sp;
}

static void prepare(struct user_regs_struct *registers, long number, const unsigned long arguments[4])
{
	registers->regs[8] = number;
	registers->pc -= SYSCALL_LENGTH;
	for (int index = 0; index < 4; index++)
		registers->regs[index] = arguments[index];
}

static long result_of(const struct user_regs_struct *registers)
{
	return (long)registers->regs[0];
}

#endif

static int run_to_syscall_stop(struct injection *in)
{
	for (;;) {
		int status, event;

		if (ptrace(PTRACE_SYSCALL, in->tid, NULL, NULL) || waitpid(in->tid, &status, __WALL) < 0)
			return -errno;
		if (!WIFSTOPPED(status)) {
			in->interruption->ended = 1;
			in->interruption->status = status;
			return -ESRCH;
		}
		event = status >> 16;
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			return 0;
		if (!event)
			sigaddset(&in->interruption->signals, WSTOPSIG(status));
	}
}

/* Return the result of the call, or a negative errno if the call could not be made. */
static long call(struct injection *in, long number, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
	struct user_regs_struct registers = in->registers;
	int error;

	prepare(&registers, number, (unsigned long[4]){ a, b, c, d });
	error = set_registers(in->tid, &registers);
	if (!error)
		error = run_to_syscall_stop(in);
	if (!error)
		error = run_to_syscall_stop(in);
	if (!error)
		error = get_registers(in->tid, &registers);
	return error ? error : result_of(&registers);
}

/* Word by word, for kernels without CONFIG_CROSS_MEMORY_ATTACH; both ends are aligned. */
static int transfer_words(const struct injection *in, void *data, size_t length, unsigned long at, int write)
{
	for (size_t done = 0; done < length; done += sizeof(long)) {
		long word;

		memcpy(&word, (char *)data + done, sizeof(word));
		errno = 0;
		if (write)
			ptrace(PTRACE_POKEDATA, in->tid, (void *)(at + done), (void *)word);
		else
			word = ptrace(PTRACE_PEEKDATA, in->tid, (void *)(at + done), NULL);
		if (errno)
			return -errno;
		memcpy((char *)data + done, &word, sizeof(word));
	}
	return 0;
}

_Static_assert(sizeof(struct scratch) % sizeof(long) == 0, "it is transferred in words");

static int transfer(struct injection *in, void *data, size_t length, unsigned long at, int write)
{
	struct iovec here = { data, length }, there = { (void *)at, length };
	ssize_t done =
		write ? process_vm_writev(in->tid, &here, 1, &there, 1, 0) : process_vm_readv(in->tid, &here, 1, &there, 1, 0);

	if (done < 0 && errno == ENOSYS)
		return transfer_words(in, data, length, at, write);
	if (done < 0)
		return -errno;
	return (size_t)done == length ? 0 : -EFAULT;
}

static int send_descriptor(int socket, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	char byte = 0;
	struct iovec vector = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Return a descriptor of this process for the same file as a descriptor of the task. */
static int take_descriptor(const struct injection *in, int theirs)
{
	int process, taken;

	/* pidfd_getfd() uses the table of the leader of the thread group. */
	if (in->tid != in->tgid && syscall(SYS_kcmp, in->tid, in->tgid, KCMP_FILES, 0, 0) > 0)
		return -ENOTSUP;
	process = syscall(SYS_pidfd_open, in->tgid, 0);
	if (process < 0)
		return -errno;
	taken = syscall(SYS_pidfd_getfd, process, theirs, 0);
	if (taken < 0)
		taken = -errno;
	close(process);
	return taken;
}

/*
 * Let the task make a socket pair, take one end of it, and receive the descriptor over it. This works in every namespace and
 * with any privileges of the task, and needs no inherited file.
 */
static long pass_descriptor(struct injection *in, int fd)
{
	unsigned long at = in->scratch_at;
	struct scratch scratch;
	long result, theirs = -EPROTO;
	int socket, error;

	result = call(in, SYS_socketpair, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, at + offsetof(struct scratch, sockets));
	if (result < 0)
		return result;
	error = transfer(in, &scratch, sizeof(scratch), at, 0);
	if (error)
		return error;
	socket = take_descriptor(in, scratch.sockets[1]);
	error = socket < 0 ? socket : send_descriptor(socket, fd);
	if (!error) {
		scratch.vector = (struct iovec){ (void *)(at + offsetof(struct scratch, byte)), 1 };
		scratch.message = (struct msghdr){
			.msg_iov = (void *)(at + offsetof(struct scratch, vector)),
			.msg_iovlen = 1,
			.msg_control = (void *)(at + offsetof(struct scratch, control)),
			.msg_controllen = sizeof(scratch.control),
		};
		error = transfer(in, &scratch, sizeof(scratch), at, 1);
	}
	if (!error) {
		result = call(in, SYS_recvmsg, scratch.sockets[0], at + offsetof(struct scratch, message), MSG_CMSG_CLOEXEC, 0);
		error = result < 0 ? (int)result : transfer(in, &scratch, sizeof(scratch), at, 0);
	}
	if (!error && scratch.control.header.cmsg_type == SCM_RIGHTS) {
		int number;

		memcpy(&number, CMSG_DATA(&scratch.control.header), sizeof(number));
		theirs = number;
	}
	if (socket >= 0)
		close(socket);
	/* Close the sockets in any case. */
	if (!in->interruption->ended)
		call(in, SYS_close, scratch.sockets[0], 0, 0, 0);
	if (!in->interruption->ended)
		call(in, SYS_close, scratch.sockets[1], 0, 0, 0);
	return error ? error : theirs;
}

int kcovdbg_inject_enable(int tid, int tgid, int fd, unsigned long request, unsigned long argument,
			  struct kcovdbg_interruption *interruption)
{
	struct injection in = { .tid = tid, .tgid = tgid, .interruption = interruption };
	unsigned char saved[sizeof(struct scratch)];
	uint64_t mask, all = ~0ULL;
	long result, theirs;
	long instruction;
	int error;

	memset(interruption, 0, sizeof(*interruption));
	sigemptyset(&interruption->signals);
	error = get_registers(tid, &in.registers);
	if (error)
		return error;
	errno = 0;
	instruction = ptrace(PTRACE_PEEKTEXT, tid, (void *)(program_counter(&in.registers) - SYSCALL_LENGTH), NULL);
	if (errno || (instruction & SYSCALL_MASK) != SYSCALL_INSTRUCTION)
		return -ENOTSUP;
	in.scratch_at = (stack_pointer(&in.registers) - RED_ZONE - sizeof(struct scratch)) & ~15UL;
	error = transfer(&in, saved, sizeof(saved), in.scratch_at, 0);
	if (error)
		return error;
	/* No handler may run in between. */
	if (ptrace(PTRACE_GETSIGMASK, tid, (void *)sizeof(mask), &mask) ||
	    ptrace(PTRACE_SETSIGMASK, tid, (void *)sizeof(all), &all))
		return -errno;
	theirs = pass_descriptor(&in, fd);
	error = theirs < 0 ? (int)theirs : 0;
	if (!error) {
		result = call(&in, SYS_ioctl, theirs, request, argument, 0);
		error = result < 0 ? (int)result : 0;
	}
	if (theirs >= 0 && !interruption->ended)
		call(&in, SYS_close, theirs, 0, 0, 0);
	if (interruption->ended)
		return error ? error : -ESRCH;
	transfer(&in, saved, sizeof(saved), in.scratch_at, 1);
	set_registers(tid, &in.registers);
	ptrace(PTRACE_SETSIGMASK, tid, (void *)sizeof(mask), &mask);
	return error;
}

#else

int kcovdbg_inject_enable(int tid, int tgid, int fd, unsigned long request, unsigned long argument,
			  struct kcovdbg_interruption *interruption)
{
	(void)tid;
	(void)tgid;
	(void)fd;
	(void)request;
	(void)argument;
	memset(interruption, 0, sizeof(*interruption));
	sigemptyset(&interruption->signals);
	return -ENOTSUP;
}

#endif
