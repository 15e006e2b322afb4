// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A kernel in small: "system calls" with calls between functions, some of them through pointers. It records what it executes as KCOV
 * does. Each argument is a letter of a call to make. Writes the PCs to standard output, and the comparisons to standard error: count
 * word first, then the records.
 */
typedef unsigned long word;
#define QUIET __attribute__((no_sanitize_coverage, noinline, used))
#define CALL __attribute__((noinline, used))
#define ROOM 4096

static word pcs[ROOM], comparisons[4 * ROOM];

QUIET void __sanitizer_cov_trace_pc(void)
{
	pcs[++pcs[0]] = (word)__builtin_return_address(0);
}

static inline __attribute__((always_inline, no_sanitize_coverage)) void compare(word type, word a, word b, void *from)
{
	word *row = &comparisons[1 + 4 * comparisons[0]++];

	row[0] = type;
	row[1] = a;
	row[2] = b;
	row[3] = (word)from;
}

QUIET void __sanitizer_cov_trace_const_cmp4(unsigned int a, unsigned int b)
{
	compare(5, a, b, __builtin_return_address(0));
}
QUIET void __sanitizer_cov_trace_cmp4(unsigned int a, unsigned int b)
{
	compare(4, a, b, __builtin_return_address(0));
}
QUIET void __sanitizer_cov_trace_const_cmp8(word a, word b)
{
	compare(7, a, b, __builtin_return_address(0));
}
QUIET void __sanitizer_cov_trace_switch(word value, word *cases)
{
	(void)value, (void)cases;
}

volatile int sink;

CALL int deep(int number)
{
	sink = number;
	if (number > 77)
		sink = 1; /* deep line */
	return number * 3;
}
CALL int middle(int number)
{
	sink = number;
	return deep(number + 1) + 1; /* call of deep */
}
CALL int helper(int number)
{
	sink = number;
	if (number == 0x1234)		   /* guard */
		return middle(number) + 2; /* call of middle */
	return number - 1;
}
CALL int pointed(int number)
{
	sink = number;
	return deep(number) ^ 1;
}
CALL int connected(int number)
{
	sink = number;
	return number + 4;
}
QUIET int unseen(int number)
{
	sink = number;
	return number + 5;
}
CALL int lonely(int number)
{
	sink = number;
	return number + 6;
}
/* Inlined below, and with code of its own for a pointer. */
int shared(int number)
{
	if (number > 5)
		sink = number;
	return sink + 7;
}
int (*volatile of_shared)(int number) = shared;

struct operations {
	int (*open)(int number);
	struct {
		int (*connect[2])(int number);
	} inner;
};
/* Volatile, or the compiler would call them directly. */
volatile struct operations ops = { pointed, { { 0, connected } } };

CALL long __x64_sys_one(int number)
{
	sink = 1;
	return helper(number) + unseen(number);
}
CALL long __x64_sys_two(int number)
{
	sink = 2;
	return middle(number) + 1;
}
CALL long __x64_sys_three(int number)
{
	sink = 3;
	return ops.open(number) + ops.inner.connect[1](number) + 1;
}
CALL long __x64_sys_four(int number)
{
	sink = 4;
	return shared(number);
}

QUIET static long system_call(long number, long a, long b, long c)
{
	long result;

	asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

QUIET void start(word *stack)
{
	word i;

	for (i = 2; i <= stack[0]; i++) {
		char letter = *(char *)stack[i];

		if (letter == 'g')
			__x64_sys_one(0x1234);
		if (letter == '1')
			__x64_sys_one(5);
		if (letter == '2')
			__x64_sys_two(6);
		if (letter == '3')
			__x64_sys_three(7);
		if (letter == '4')
			__x64_sys_four(8);
	}
	system_call(1, 1, (long)pcs, 8 * (1 + (long)pcs[0]));
	system_call(1, 2, (long)comparisons, 8 * (1 + 4 * (long)comparisons[0]));
	system_call(60, 0, 0, 0);
}

asm(".globl _start\n.type _start, @function\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall start\n.size _start, . - _start");
