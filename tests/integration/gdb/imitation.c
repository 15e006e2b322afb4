/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * KCOV's structures in a process of user space, filled as a kernel would: what kcov-show reads of them has to be what main() puts there.
 * Members are those of struct task_struct and kernel/kcov.c in v6.12 that kcovdbg reads. It prints what is true as JSON.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef BANNER
#define BANNER "Linux version 6.12.0-imitation (nobody@nowhere) #1 SMP"
#endif
#define BUCKETS 16
#define CPUS 2
#define WORDS 512
#define IN_CTXSW (1u << 30)

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
typedef struct {
	atomic_t refs;
} refcount_t;
typedef struct {
	int slock;
} spinlock_t;

enum kcov_mode { KCOV_MODE_DISABLED, KCOV_MODE_INIT, KCOV_MODE_TRACE_PC, KCOV_MODE_TRACE_CMP, KCOV_MODE_REMOTE };

struct signal_struct {
	int live;
	struct list_head thread_head;
};
struct thread_info {
	unsigned long flags;
	unsigned int cpu;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	int on_cpu;
	unsigned in_execve : 1;
	unsigned in_iowait : 3;
	struct list_head tasks;
	void *mm;
#ifdef OTHER_LAYOUT
	unsigned long only_in_another_build[4];
#endif
	int pid, tgid;
	struct list_head thread_node;
	char comm[16];
	void *files;
	struct signal_struct *signal;
	unsigned int kcov_mode;
	unsigned int kcov_size;
	void *kcov_area;
	struct kcov *kcov;
	unsigned long long kcov_handle;
	int kcov_sequence;
	unsigned int kcov_softirq;
};

struct kcov {
	refcount_t refcount;
	spinlock_t lock;
	enum kcov_mode mode;
	unsigned int size;
	void *area;
	struct task_struct *t;
	bool remote;
	unsigned int remote_size;
	int sequence;
};

struct kcov_remote {
	unsigned long long handle;
	struct kcov *kcov;
	struct hlist_node hnode;
};
struct kcov_remote_area {
	struct list_head list;
	unsigned int size;
};
struct kcov_percpu_data {
	void *irq_area;
	spinlock_t lock;
	unsigned int saved_mode, saved_size;
	void *saved_area;
	struct kcov *saved_kcov;
	int saved_sequence;
};
struct rq {
	unsigned int nr_running;
	struct task_struct *curr, *idle;
};
struct file_operations {
	long (*ioctl)(void *file);
};
struct file {
	const struct file_operations *f_op;
	void *private_data;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
	unsigned long *open_fds;
};
struct files_struct {
	int count;
	struct fdtable *fdt;
};

const char linux_banner[] = BANNER;
unsigned long __per_cpu_offset[CPUS];
unsigned long __cpu_possible_mask = (1ul << CPUS) - 1;

/* What is linked is a template: each CPU has a copy, as far away as its offset says. */
#define PER_CPU __attribute__((section(".data..percpu"), aligned(64)))
PER_CPU struct rq runqueues = { .nr_running = 99 };
PER_CPU struct kcov_percpu_data kcov_percpu_data = { .saved_mode = 99 };
static char instances[CPUS][4096] __attribute__((aligned(64)));
#define THIS_CPU(symbol, cpu) ((__typeof__(&(symbol)))((char *)&(symbol) + __per_cpu_offset[cpu]))

static struct signal_struct init_signals;
struct task_struct init_task = { .tasks = { &init_task.tasks, &init_task.tasks } };
static struct hlist_head kcov_remote_map[BUCKETS];
static struct list_head kcov_remote_areas = { &kcov_remote_areas, &kcov_remote_areas };

static long kcov_ioctl(void *file)
{
	return (long)file;
}

static const struct file_operations kcov_fops = { kcov_ioctl };

static void add(struct list_head *new, struct list_head *head)
{
	new->prev = head->prev;
	new->next = head;
	head->prev->next = new;
	head->prev = new;
}

static void *make(size_t size)
{
	void *found = aligned_alloc(4096, (size + 4095) & ~4095ul);

	return found ? memset(found, 0, (size + 4095) & ~4095ul) : (abort(), NULL);
}

static struct task_struct *make_task(int pid, struct task_struct *leader, const char *comm)
{
	struct task_struct *t = make(sizeof(*t));

	t->pid = pid;
	t->tgid = leader ? leader->pid : pid;
	strncpy(t->comm, comm, sizeof(t->comm) - 1);
	t->kcov_mode = IN_CTXSW;
	t->signal = leader ? leader->signal : make(sizeof(*t->signal));
	if (!leader) {
		t->signal->thread_head = (struct list_head){ &t->signal->thread_head, &t->signal->thread_head };
		add(&t->tasks, &init_task.tasks);
	}
	add(&t->thread_node, &t->signal->thread_head);
	return t;
}

/* On no list. */
static struct task_struct *make_idle(const char *comm)
{
	struct task_struct *t = make(sizeof(*t));

	strncpy(t->comm, comm, sizeof(t->comm) - 1);
	t->signal = &init_signals;
	t->thread_node = (struct list_head){ &t->thread_node, &t->thread_node };
	return t;
}

static struct kcov *make_kcov(struct task_struct *t, enum kcov_mode mode, bool remote)
{
	struct kcov *k = make(sizeof(*k));

	k->refcount.refs.counter = 2;
	k->mode = mode;
	k->size = WORDS;
	k->area = make(WORDS * sizeof(long));
	k->t = t;
	k->remote = remote;
	k->sequence = 1;
	t->kcov = k;
	if (remote) {
		t->kcov_mode |= KCOV_MODE_REMOTE;
		return k;
	}
	t->kcov_mode |= mode;
	t->kcov_size = WORDS;
	t->kcov_area = k->area;
	t->kcov_sequence = 1;
	return k;
}

static void give_file(struct task_struct *t, struct kcov *k, int fd)
{
	struct files_struct *files = make(sizeof(*files));
	struct file *file = make(sizeof(*file));

	files->fdt = make(sizeof(*files->fdt));
	files->fdt->max_fds = 64;
	files->fdt->fd = make(64 * sizeof(file));
	files->fdt->open_fds = make(sizeof(long));
	files->fdt->fd[fd] = file;
	*files->fdt->open_fds = 1ul << fd;
	file->f_op = &kcov_fops;
	file->private_data = k;
	t->files = files;
}

static void truth(const struct task_struct *t, const char *mode, const char *role)
{
	const struct kcov *k = t->kcov;
	const unsigned long *area = t->kcov_area ? t->kcov_area : k ? k->area : NULL;

	printf("{\"pid\": %d, \"tgid\": %d, \"comm\": \"%s\", \"task\": \"%p\", \"kcov_mode\": \"%s\", \"kcov_size\": %u, ",
	       t->pid, t->tgid, t->comm, (void *)t, mode, t->kcov_size);
	printf("\"kcov\": \"0x%lx\", \"kcov_area\": \"0x%lx\", \"role\": \"%s\", \"count\": %ld}\n", (unsigned long)k,
	       (unsigned long)t->kcov_area, role, area ? (long)*area : -1);
}

/* What was covered, for the records: the addresses behind calls, as in a kernel. */
__attribute__((noinline)) int covered(int n)
{
	return n * 3 + 1;
}

/* GDB stops here. */
__attribute__((noinline)) void standing(void)
{
	__asm__ volatile("");
}

int main(void)
{
	struct task_struct *leader, *thread, *owner, *worker;
	struct kcov *pc, *cmp, *remote;
	struct kcov_remote *handle = make(sizeof(*handle));
	struct kcov_remote_area *cached = make(WORDS * sizeof(long));
	unsigned long *area;

	init_task.signal = &init_signals;
	init_signals.thread_head = (struct list_head){ &init_signals.thread_head, &init_signals.thread_head };
	add(&init_task.thread_node, &init_signals.thread_head);
	strcpy(init_task.comm, "swapper/0");
	for (int cpu = 0; cpu < CPUS; cpu++) {
		__per_cpu_offset[cpu] = instances[cpu] + 2048 - (char *)&runqueues;
		THIS_CPU(runqueues, cpu)->idle = THIS_CPU(runqueues, cpu)->curr = cpu ? make_idle("swapper/1") : &init_task;
		THIS_CPU(kcov_percpu_data, cpu)->irq_area = make(WORDS * sizeof(long));
	}

	leader = make_task(41, NULL, "syz-executor");
	thread = make_task(42, leader, "thread");
	owner = make_task(53, NULL, "owner");
	worker = make_task(54, NULL, "worker");
	make_task(60, NULL, "plain");

	pc = make_kcov(leader, KCOV_MODE_TRACE_PC, false);
	area = pc->area;
	area[0] = 3;
	area[1] = (unsigned long)covered + 4;
	area[2] = (unsigned long)kcov_ioctl + 4;
	area[3] = (unsigned long)covered + 4;
	give_file(leader, pc, 3);
	cmp = make_kcov(thread, KCOV_MODE_TRACE_CMP, false);
	area = cmp->area;
	memcpy(area, (unsigned long[]){ 1, 5, 7, 9, (unsigned long)covered + 4 }, 5 * sizeof(long));
	remote = make_kcov(owner, KCOV_MODE_TRACE_PC, true);
	remote->remote_size = WORDS;
	owner->kcov_handle = worker->kcov_handle = 0x42;
	handle->handle = 0x42;
	handle->kcov = remote;
	kcov_remote_map[7].first = &handle->hnode;
	handle->hnode.pprev = &kcov_remote_map[7].first;
	cached->size = WORDS;
	add(&cached->list, &kcov_remote_areas);

	truth(leader, "TRACE_PC", "local");
	truth(thread, "TRACE_CMP", "local");
	truth(owner, "REMOTE", "none");
	truth(worker, "DISABLED", "none");
	fflush(stdout);
	standing();
	return covered(0) - 1;
}
