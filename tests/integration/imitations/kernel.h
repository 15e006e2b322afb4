/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the imitations have of a kernel besides KCOV: as much of its structures as a walk over tasks, files, mappings and vmalloc
 * areas follows, with the members' names and order, not all of the members. ROW names the header of a generation.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t u32;
typedef uint64_t u64;

struct list_head {
	struct list_head *next, *prev;
};
struct hlist_node {
	struct hlist_node *next, **pprev;
};
struct hlist_head {
	struct hlist_node *first;
};
typedef struct {
	int counter;
} atomic_t;
typedef struct refcount_struct {
	atomic_t refs;
} refcount_t;
typedef struct spinlock {
	unsigned int slock;
} spinlock_t;
/* Empty without lock debugging. */
typedef struct {
} local_lock_t;

#include ROW

#ifdef FLAG_CTXSW
#define IN_CTXSW FLAG_CTXSW
#else
#define IN_CTXSW 0
#endif
#ifdef WORDS_32
typedef u32 word_t;
#else
typedef unsigned long word_t;
#endif

/* What most rows have; some say otherwise. */
#ifndef MODE_INIT
#define MODE_INIT KCOV_MODE_INIT
#endif
#ifndef NAME_INIT
#define NAME_INIT "KCOV_MODE_INIT"
#endif
#ifndef MODE_TRACE
#define MODE_TRACE KCOV_MODE_TRACE_PC
#endif
#ifndef NAME_TRACE
#define NAME_TRACE "KCOV_MODE_TRACE_PC"
#endif
#ifndef K_COUNT
#define K_COUNT(k) ((k)->refcount.refs.counter)
#endif
#ifndef T_MODE
#define T_MODE(t) ((t)->kcov_mode)
#define T_SIZE(t) ((t)->kcov_size)
#define T_AREA(t) ((t)->kcov_area)
#define T_SEQUENCE(t) ((t)->kcov_sequence)
#define K_MODE(k) ((k)->mode)
#define K_SIZE(k) ((k)->size)
#define K_AREA(k) ((k)->area)
#define K_SEQUENCE(k) ((k)->sequence)
#endif
#ifndef S_SIZE
#define S_SIZE(data) ((data)->saved_size)
#define S_AREA(data) ((data)->saved_area)
#define S_SEQUENCE(data) ((data)->saved_sequence)
#endif

struct thread_info {
	unsigned long flags;
	int preempt_count;
	u32 cpu;
};

struct file_operations {
	long (*unlocked_ioctl)(void *file, unsigned int cmd, unsigned long arg);
};
struct file {
	const struct file_operations *f_op;
	unsigned int f_flags;
	void *private_data;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
	unsigned long *close_on_exec, *open_fds;
};
struct files_struct {
	atomic_t count;
	struct fdtable *fdt;
};
struct vm_area_struct {
	unsigned long vm_start, vm_end;
	struct vm_area_struct *vm_next, *vm_prev;
	unsigned long vm_flags, vm_pgoff;
	struct file *vm_file;
};
/* A list of mappings in all rows, also where the kernel has a tree of them: how these are walked isn't a matter of KCOV's. */
struct mm_struct {
	struct vm_area_struct *mmap;
};
struct signal_struct {
	atomic_t live;
	struct list_head thread_head;
};

struct task_struct {
#ifdef CPU_IN_THREAD_INFO
	struct thread_info thread_info;
#endif
	volatile long state;
	void *stack;
	unsigned int flags;
	int on_cpu;
#ifdef CPU_IN_TASK
	unsigned int cpu;
#endif
	struct list_head tasks;
	struct mm_struct *mm;
	int exit_state;
	int pid, tgid;
	struct list_head thread_node;
	char comm[16];
	struct files_struct *files;
	struct signal_struct *signal;
	TASK_KCOV
	int pagefault_disabled;
};

struct rq {
	unsigned int nr_running;
	struct task_struct *curr, *idle;
};
struct vm_struct {
	struct vm_struct *next;
	void *addr;
	unsigned long size, flags;
	struct page **pages;
	unsigned int nr_pages;
	const void *caller;
};
struct vmap_area {
	unsigned long va_start, va_end;
	struct list_head list;
	struct vm_struct *vm;
};
struct kmem_cache {
	const char *name;
	struct list_head list;
};
struct cpumask {
	unsigned long bits[1];
};
struct new_utsname {
	char sysname[65], nodename[65], release[65], version[65], machine[65], domainname[65];
};
struct uts_namespace {
	struct new_utsname name;
};

#define VM_USERMAP 0x8
#define PF_EXITING 0x4
#define PF_KTHREAD 0x200000

#endif
