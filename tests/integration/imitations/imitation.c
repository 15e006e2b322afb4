// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A process that has one generation's KCOV structures in its memory, filled as a kernel of that generation fills them, and says
 * what is true of them: lines TRUTH {json}, with the keys of the lab's (tests/lab/workload/truth.c). What it prints comes from
 * `objects` and `threads` below, which no structure of the kernel's is read for.
 *
 * imitation DUMP SHIFT MACHINE: writes the kernel's memory to the file DUMP. All pointers in it are SHIFT further up than where
 * the process has them, as if KASLR had moved the kernel; on x86-64 that brings them where a kernel is.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

#define PAGE 4096
#define CPUS 3
#define BUCKETS 16
#define WORDS (PAGE / sizeof(word_t))
#define IRQ_WORDS (2 * WORDS)
#define REMOTE_WORDS (WORDS / 2)
#define SPARE (1 << 20)
/* Records of a buffer that are printed. */
#define PRINTED 40
#define USB(bus) ((u64)1 << 56 | (bus))
#define COMMON 0x42
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/*
 * What symbols name lies in two sections, what is per CPU in one of its own, a template of each CPU's copy; what is allocated, in
 * `spare`. These are the kernel's memory, and nothing else is.
 */
extern char __start_kernel[], __stop_kernel[], __start_percpu[], __stop_percpu[];
#define KERNEL __attribute__((section("kernel"), used))
#define PER_CPU __attribute__((section("percpu"), used, aligned(64)))

static uintptr_t shift;
static unsigned char spare[SPARE] __attribute__((aligned(PAGE)));
static size_t used;

/* Between where the kernel sees something and where this process has it. */
#define K(p) ((p) ? (__typeof__(p))((uintptr_t)(p) + shift) : NULL)
#define U(p) ((__typeof__(p))((uintptr_t)(p) - shift))

KERNEL char linux_banner[128] = "Linux version " RELEASE " (nobody@nowhere) #1 SMP";
KERNEL struct uts_namespace init_uts_ns = { .name = { .sysname = "Linux", .release = RELEASE } };
KERNEL unsigned int nr_cpu_ids = CPUS;
KERNEL struct cpumask __cpu_possible_mask = { { (1ul << CPUS) - 1 } };
KERNEL unsigned long __per_cpu_offset[CPUS];
KERNEL struct task_struct init_task;
KERNEL struct list_head vmap_area_list;
KERNEL struct list_head slab_caches;
PER_CPU struct rq runqueues = { .nr_running = 99 };
#ifdef HAS_REMOTE
KERNEL struct hlist_head kcov_remote_map[BUCKETS];
#ifdef SAVED_IN_TASK
KERNEL struct list_head kcov_remote_areas[2];
#define AREA_LIST(index) (&kcov_remote_areas[index])
#else
KERNEL struct list_head kcov_remote_areas;
#define AREA_LIST(index) (&kcov_remote_areas)
#endif
#endif
#ifdef SAVED_PER_CPU
PER_CPU struct kcov_percpu_data kcov_percpu_data = { .saved_mode = 99 };
#endif

static long kcov_ioctl(void *file, unsigned int cmd, unsigned long arg)
{
	return (long)file + cmd + arg;
}
static long tty_ioctl(void *file, unsigned int cmd, unsigned long arg)
{
	return (long)file - cmd - arg;
}
KERNEL struct file_operations kcov_fops = { kcov_ioctl };
KERNEL struct file_operations tty_fops = { tty_ioctl };
#ifdef HAS_DATAFLOW
KERNEL struct file_operations kcov_df_fops = { tty_ioctl };
#endif

/* Who allocates buffers: only their addresses count. */
#define FUNCTION __attribute__((noinline, used))
FUNCTION static int kcov_mmap(int n)
{
	return n * 3 + 1;
}
FUNCTION static int kcov_remote_start(int n)
{
	return n * 5 + 2;
}
FUNCTION static int kcov_init(int n)
{
	return n * 7 + 3;
}
/* What is covered. */
FUNCTION int vfs_read(int n)
{
	return n * 11 + 4;
}
FUNCTION int vfs_write(int n)
{
	return n * 13 + 5;
}
FUNCTION int do_open(int n)
{
	return n * 17 + 6;
}
typedef int covered_fn(int);
static covered_fn *const covered[] = { vfs_read, vfs_write, do_open };
static const char *const covered_names[] = { "vfs_read", "vfs_write", "do_open" };
/* The beginning of the text, for bitmaps. */
extern const char _stext[];

enum format { PC, CMP, UNIQUE, BITMAP };

struct object {
	const char *name, *mode;
	int value;
	enum format format;
	unsigned long size, count;
	bool mapped;
	int owner, sequence;
	bool remote;
	unsigned int remote_size;
	u64 handles[4];
	/* Descriptors of process `tgid`, and of the process that shares it; open though no descriptor is left, for a mapping. */
	int tgid, fds[3], sharer;
	bool no_fd;
	unsigned long vma;
	/* Found out while it is built. */
	struct kcov *k;
	struct file *file;
	char *area;
	int refcount;
};

struct thread {
	int pid, tgid;
	const char *comm;
	unsigned int cpu;
	const char *local, *owns;
	u64 handle;
	/* A section of this object's, in an area of its own, with so many records; and what that interrupted. */
	const char *section, *saved;
	unsigned long section_count;
	bool softirq, running, kthread, exiting, never_ran, paused;
	int stale_sequence;
	struct task_struct *t;
	char *area;
};

/* clang-format off */
static struct object objects[] = {
	{ .name = "opened", .mode = "KCOV_MODE_DISABLED", .sequence = 1, .tgid = 40, .fds = { 3 } },
	{ .name = "local", .mode = NAME_TRACE, .value = MODE_TRACE, .size = 2 * WORDS, .count = 7, .mapped = true, .owner = 40,
	  .sequence = 3, .tgid = 40, .fds = { 4 }, .vma = 0x10000 },
	{ .name = "full", .mode = NAME_TRACE, .value = MODE_TRACE, .size = WORDS, .count = WORDS - 1, .mapped = true, .owner = 42,
	  .sequence = 1, .tgid = 40, .fds = { 5, 70 }, .vma = 0x20000 },
	{ .name = "initialised", .mode = NAME_INIT, .value = MODE_INIT, .size = 3 * WORDS, .sequence = 1, .tgid = 40,
	  .fds = { 6 } },
	{ .name = "stopped", .mode = NAME_INIT, .value = MODE_INIT, .size = WORDS, .count = 2, .mapped = true, .sequence = 4,
	  .tgid = 40, .fds = { 7 }, .vma = 0x30000 },
	{ .name = "mapping only", .mode = NAME_INIT, .value = MODE_INIT, .size = WORDS, .count = 1, .mapped = true, .sequence = 2,
	  .tgid = 40, .no_fd = true, .vma = 0x40000 },
	{ .name = "shared", .mode = NAME_INIT, .value = MODE_INIT, .size = WORDS, .mapped = true, .sequence = 1, .tgid = 44,
	  .fds = { 4, 9 }, .sharer = 45, .vma = 0x10000 },
	{ .name = "orphan", .mode = NAME_TRACE, .value = MODE_TRACE, .size = WORDS, .count = 2, .mapped = true, .owner = 43,
	  .sequence = 1, .no_fd = true },
#ifdef MODE_CMP
	{ .name = "compared", .mode = "KCOV_MODE_TRACE_CMP", .value = MODE_CMP, .format = CMP, .size = WORDS, .count = 3,
	  .mapped = true, .owner = 41, .sequence = 1, .tgid = 40, .fds = { 8 }, .vma = 0x50000 },
#endif
#ifdef HAS_REMOTE
	{ .name = "remote", .mode = NAME_TRACE, .value = MODE_TRACE, .size = WORDS, .count = 5, .mapped = true, .owner = 50,
	  .sequence = 6, .remote = true, .remote_size = REMOTE_WORDS, .handles = { USB(1), USB(7), COMMON }, .tgid = 50,
	  .fds = { 3 }, .vma = 0x10000 },
#endif
#ifdef HAS_SOFTIRQ
	{ .name = "interrupted", .mode = NAME_TRACE, .value = MODE_TRACE, .size = WORDS, .count = 4, .mapped = true, .owner = 60,
	  .sequence = 2, .tgid = 60, .fds = { 3 }, .vma = 0x10000 },
#endif
#ifdef HAS_OWNER
	{ .name = "beside", .mode = NAME_TRACE, .value = MODE_TRACE, .size = WORDS, .count = 6, .mapped = true, .owner = 50,
	  .sequence = 1, .tgid = 50, .fds = { 4 }, .vma = 0x20000 },
#endif
#ifdef MODE_UNIQUE
	{ .name = "unique", .mode = "KCOV_MODE_TRACE_UNIQUE_PC", .value = MODE_UNIQUE, .format = UNIQUE, .size = WORDS, .count = 3,
	  .mapped = true, .owner = 71, .sequence = 1, .tgid = 40, .fds = { 11 }, .vma = 0x60000 },
#endif
#ifdef MODE_BITMAP
	{ .name = "bitmap", .mode = "KCOV_MODE_UNIQUE_PC", .value = MODE_BITMAP, .format = BITMAP, .size = WORDS, .count = 3,
	  .mapped = true, .owner = 71, .sequence = 1, .tgid = 40, .fds = { 11 }, .vma = 0x60000 },
#endif
#ifdef FLAG_PAUSED
	{ .name = "paused", .mode = NAME_TRACE, .value = MODE_TRACE, .size = WORDS, .count = 1, .mapped = true, .owner = 71,
	  .sequence = 1, .tgid = 40, .fds = { 11 }, .vma = 0x60000 },
#endif
};
/* clang-format on */

/* clang-format off */
static struct thread threads[] = {
	{ .pid = 0, .comm = "swapper/0", .running = true, .kthread = true },
	{ .pid = 1, .tgid = 1, .comm = "init" },
	{ .pid = 2, .tgid = 2, .comm = "kthreadd", .kthread = true, .cpu = 1 },
	{ .pid = 40, .tgid = 40, .comm = "executor", .local = "local" },
#ifdef MODE_CMP
	{ .pid = 41, .tgid = 40, .comm = "executor/1", .local = "compared", .cpu = 2 },
#else
	{ .pid = 41, .tgid = 40, .comm = "executor/1", .cpu = 2 },
#endif
	{ .pid = 42, .tgid = 40, .comm = "executor/2", .local = "full" },
	{ .pid = 43, .tgid = 40, .comm = "executor/3", .local = "orphan", .cpu = 1 },
#if defined(MODE_UNIQUE) || defined(MODE_BITMAP) || defined(FLAG_PAUSED)
#if defined(MODE_UNIQUE)
	{ .pid = 71, .tgid = 40, .comm = "special", .local = "unique" },
#elif defined(MODE_BITMAP)
	{ .pid = 71, .tgid = 40, .comm = "special", .local = "bitmap" },
#else
	{ .pid = 71, .tgid = 40, .comm = "special", .local = "paused", .paused = true },
#endif
#endif
	{ .pid = 44, .tgid = 44, .comm = "parent", .stale_sequence = 3 },
	{ .pid = 45, .tgid = 45, .comm = "child", .never_ran = true },
	{ .pid = 46, .tgid = 46, .comm = "zombie", .exiting = true },
#ifdef HAS_REMOTE
#ifdef HAS_OWNER
	{ .pid = 50, .tgid = 50, .comm = "owner", .owns = "remote", .local = "beside", .handle = COMMON },
#else
	{ .pid = 50, .tgid = 50, .comm = "owner", .owns = "remote", .handle = COMMON },
#endif
	{ .pid = 51, .tgid = 51, .comm = "owner's child", .handle = COMMON },
	{ .pid = 7, .tgid = 7, .comm = "kworker/2:1", .kthread = true, .cpu = 2, .section = "remote", .section_count = 12 },
#endif
#ifdef HAS_SOFTIRQ
	{ .pid = 60, .tgid = 60, .comm = "busy", .cpu = 1, .running = true, .section = "remote", .section_count = 5,
	  .softirq = true, .saved = "interrupted", .local = NULL },
#endif
};
/* clang-format on */

static struct {
	char *start;
	size_t size;
	const char *caller;
	bool user;
} areas[64];
static int nareas;
static struct {
	char *area;
	unsigned long size;
	int list;
} cached[8];
static int ncached;

static void *allocate(size_t size, size_t align)
{
	used = (used + align - 1) / align * align;
	if (used + size > sizeof(spare))
		abort();
	used += size;
	return spare + used - size;
}

#define NEW(type) ((type *)allocate(sizeof(type), 64))

static void init_list(struct list_head *head)
{
	head->next = head->prev = K(head);
}

static void add_tail(struct list_head *new, struct list_head *head)
{
	struct list_head *last = U(head->prev);

	new->prev = K(last);
	new->next = K(head);
	last->next = K(new);
	head->prev = K(new);
}

static char *vmalloc(size_t size, const char *name, uintptr_t caller, bool user)
{
	struct vmap_area *va = NEW(struct vmap_area);
	struct vm_struct *vm = NEW(struct vm_struct);
	char *start;

	size = (size + PAGE - 1) / PAGE * PAGE;
	start = allocate(size, PAGE);
	/* The guard page. */
	allocate(PAGE, PAGE);
	vm->addr = K(start);
	vm->size = size + PAGE;
	vm->flags = user ? VM_USERMAP : 0;
	vm->caller = (const char *)(caller + shift) + 4;
	va->va_start = (uintptr_t)K(start);
	va->va_end = va->va_start + vm->size;
	va->vm = K(vm);
	add_tail(&va->list, &vmap_area_list);
	areas[nareas].start = start;
	areas[nareas].size = size;
	areas[nareas].caller = name;
	areas[nareas++].user = user;
	return start;
}

static struct object *find_object(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(objects); i++)
		if (name && !strcmp(objects[i].name, name))
			return &objects[i];
	return name ? (abort(), NULL) : NULL;
}

static struct thread *find_thread(int pid)
{
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		if (threads[i].pid == pid)
			return &threads[i];
	abort();
}

/* Buffers. */

static uintptr_t pc_of(unsigned long n)
{
	/* A return address minus what KASLR added; the first posting knew no KASLR. */
#ifdef WORDS_32
	return (uintptr_t)K(covered[n % 3]) + 4;
#else
	return (uintptr_t)covered[n % 3] + 4;
#endif
}

static unsigned long bitmap_words(const struct object *o)
{
	return o->format == UNIQUE ? 16 : 0;
}

static unsigned long capacity_of(enum format format, unsigned long size, unsigned long bitmap)
{
	return format == CMP ? (size * sizeof(word_t) / 8 - 1) / 4 : size - bitmap - 1;
}

static void fill(char *area, enum format format, unsigned long count, unsigned long bitmap)
{
	word_t *words = (word_t *)area + bitmap;

	if (format == CMP) {
		u64 *wide = (u64 *)area;

		wide[0] = count;
		for (u64 i = 0; i < count; i++) {
			wide[1 + 4 * i] = 2 << 1 | 1;
			wide[2 + 4 * i] = 100 + i;
			wide[3 + 4 * i] = 0xfffffff0 + i;
			wide[4 + 4 * i] = pc_of(i);
		}
	} else if (format == BITMAP) {
		for (unsigned long i = 0; i < count; i++) {
			unsigned long bit = ((uintptr_t)covered[i] + 4 - (uintptr_t)_stext) / 4;

			words[bit / (8 * sizeof(word_t))] |= (word_t)1 << bit % (8 * sizeof(word_t));
		}
	} else {
		if (bitmap)
			*(word_t *)area = 0xe;
		words[0] = count;
		for (unsigned long i = 0; i < count; i++)
			words[1 + i] = pc_of(i);
	}
}

/* Files. */

static struct files_struct *tables[128];
static struct mm_struct *spaces[128];

static void install(int tgid, int fd, struct file *file)
{
	struct files_struct *files = tables[tgid];
	struct fdtable *fdt;

	if (!files) {
		files = tables[tgid] = NEW(struct files_struct);
		fdt = NEW(struct fdtable);
		files->fdt = K(fdt);
		fdt->max_fds = 128;
		fdt->fd = K((struct file **)allocate(128 * sizeof(file), 64));
		fdt->open_fds = K((unsigned long *)allocate(128 / 8, 64));
		fdt->close_on_exec = K((unsigned long *)allocate(128 / 8, 64));
	}
	fdt = U(files->fdt);
	U(fdt->fd)[fd] = K(file);
	U(fdt->open_fds)[fd / (8 * sizeof(long))] |= 1ul << fd % (8 * sizeof(long));
}

static void map(int tgid, unsigned long start, unsigned long size, struct file *file)
{
	struct vm_area_struct *vma = NEW(struct vm_area_struct), **link;

	if (!spaces[tgid])
		spaces[tgid] = NEW(struct mm_struct);
	vma->vm_start = start;
	vma->vm_end = start + size;
	vma->vm_file = K(file);
	for (link = &spaces[tgid]->mmap; *link; link = &U(*link)->vm_next)
		;
	*link = K(vma);
}

static struct file *open_file(struct file_operations *ops, void *private)
{
	struct file *file = NEW(struct file);

	file->f_op = K(ops);
	file->private_data = K(private);
	return file;
}

/* The kernel. */

static void *this_cpu(void *symbol, int cpu)
{
	return U((char *)K(symbol) + __per_cpu_offset[cpu]);
}

static void set_cpu(struct task_struct *t, unsigned int cpu)
{
#ifdef CPU_IN_THREAD_INFO
	t->thread_info.cpu = cpu;
#elif defined(CPU_IN_TASK)
	t->cpu = cpu;
#else
	struct thread_info *info = allocate(2 * PAGE, PAGE);

	info->cpu = cpu;
	t->stack = K((void *)info);
#endif
}

static void build_task(struct thread *me)
{
	struct task_struct *t = me->t = me->pid ? NEW(struct task_struct) : &init_task;
	struct thread *leader = find_thread(me->tgid);

	t->pid = me->pid;
	t->tgid = me->tgid;
	strcpy(t->comm, me->comm);
	set_cpu(t, me->cpu);
	t->on_cpu = me->running;
	t->flags = (me->kthread ? PF_KTHREAD : 0) | (me->exiting ? PF_EXITING : 0);
	T_MODE(t) = me->running || me->never_ran ? 0 : IN_CTXSW;
#ifdef FLAG_PAUSED
	T_MODE(t) |= me->paused ? FLAG_PAUSED : 0;
#endif
	if (leader == me) {
		struct signal_struct *signal = NEW(struct signal_struct);

		t->signal = K(signal);
		init_list(&signal->thread_head);
		if (me->pid)
			add_tail(&t->tasks, &init_task.tasks);
		else
			init_list(&t->tasks);
	} else {
		t->signal = leader->t->signal;
	}
	add_tail(&t->thread_node, &U(t->signal)->thread_head);
	if (!me->kthread && !me->exiting) {
		static struct file *tty;

		tty = tty ? tty : open_file(&tty_fops, NULL);
		if (leader == me)
			install(me->tgid, 0, tty);
		if (!spaces[me->tgid])
			spaces[me->tgid] = NEW(struct mm_struct);
		t->files = K(tables[me->tgid]);
		t->mm = K(spaces[me->tgid]);
	}
#ifdef HAS_REMOTE
	t->kcov_handle = me->handle;
	T_SEQUENCE(t) = me->stale_sequence;
#endif
}

static void build_object(struct object *o)
{
	struct kcov *k = o->k = NEW(struct kcov);

	o->file = open_file(&kcov_fops, k);
	/* One file, however many descriptors and mappings show it. */
	o->refcount = o->no_fd && !o->vma ? 0 : 1;
	for (int i = 0; i < 3 && o->fds[i]; i++) {
		install(o->tgid, o->fds[i], o->file);
		if (o->sharer)
			install(o->sharer, o->fds[i], o->file);
	}
	K_MODE(k) = o->value;
	K_SIZE(k) = o->size;
#ifdef ALLOCATED_EARLY
	if (o->size)
		o->area = vmalloc(o->size * sizeof(word_t), "kcov_ioctl", (uintptr_t)kcov_ioctl, true);
#else
	if (o->mapped)
		o->area = vmalloc(o->size * sizeof(word_t), "kcov_mmap", (uintptr_t)kcov_mmap, true);
#endif
	if (o->area)
		fill(o->area, o->format, o->count, bitmap_words(o));
	K_AREA(k) = K(o->area);
	if (o->vma) {
		map(o->tgid, o->vma, o->size * sizeof(word_t), o->file);
		if (o->sharer)
			map(o->sharer, o->vma, o->size * sizeof(word_t), o->file);
#ifdef VMA_REFERENCES
		o->refcount += o->sharer ? 2 : 1;
#endif
	}
	if (o->owner) {
		k->t = K(find_thread(o->owner)->t);
		o->refcount++;
	}
#ifdef HAS_REMOTE
	K_SEQUENCE(k) = o->sequence;
	k->remote = o->remote;
	k->remote_size = o->remote_size;
#endif
#ifdef HAS_PC_RANGE
	k->pc_range.start = o->owner ? 0x1000 : 0;
	k->pc_range.end = o->owner ? 0xfffff000 : 0;
#endif
#ifdef HAS_STATE
	K_STATE(k).trace_size = o->size - bitmap_words(o);
	K_STATE(k).trace = K((unsigned long *)o->area) + bitmap_words(o);
	K_STATE(k).bitmap_size = bitmap_words(o) * 8 * sizeof(long);
	K_STATE(k).bitmap = bitmap_words(o) ? K((unsigned long *)o->area) : NULL;
	if (!o->area)
		K_STATE(k).trace = NULL;
#endif
}

static void start(struct task_struct *t, struct object *o, char *area, unsigned long size)
{
	T_MODE(t) |= o->value;
	T_SIZE(t) = size;
	T_AREA(t) = K(area);
	t->kcov = K(o->k);
#ifdef HAS_REMOTE
	T_SEQUENCE(t) = o->sequence;
#endif
#ifdef HAS_STATE
	if (area == o->area) {
		T_STATE(t) = K_STATE(o->k);
		T_SEQUENCE(t) = o->sequence;
	} else {
		T_STATE(t).trace = K((unsigned long *)area);
		T_STATE(t).trace_size = size;
	}
#endif
}

static void build_sessions(struct thread *me)
{
	struct task_struct *t = me->t;
	struct object *o = find_object(me->owns);

	if (o) {
#ifdef HAS_OWNER
		t->kcov_remote = K(o->k);
#else
		t->kcov = K(o->k);
#endif
#ifdef MODE_REMOTE
		T_MODE(t) |= MODE_REMOTE;
#endif
	}
	o = find_object(me->local);
	if (o)
		start(t, o, o->area, o->size);
#ifdef HAS_REMOTE
	o = find_object(me->section);
	if (!o)
		return;
	/* A section in flight holds a reference. */
	o->refcount++;
#ifdef HAS_SOFTIRQ
	if (me->softirq) {
		me->area = vmalloc(IRQ_WORDS * sizeof(word_t), "kcov_init", (uintptr_t)kcov_init, false);
		t->kcov_softirq = 1;
#ifdef CPU_IN_THREAD_INFO
		t->thread_info.preempt_count = 0x100;
#endif
	}
#endif
	if (!me->area)
		me->area = vmalloc(o->remote_size * sizeof(word_t), "kcov_remote_start", (uintptr_t)kcov_remote_start, false);
	fill(me->area, PC, me->section_count, 0);
	start(t, o, me->area, me->softirq ? IRQ_WORDS : o->remote_size);
#endif
}

#ifdef SAVED_PER_CPU
static void build_saved(int cpu)
{
	struct kcov_percpu_data *data = this_cpu(&kcov_percpu_data, cpu);

	memset(data, 0, sizeof(*data));
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
		struct thread *me = &threads[i];
		struct object *o = find_object(me->saved);

		if (!o || me->cpu != (unsigned int)cpu)
			continue;
		data->irq_area = K(me->area);
		data->saved_mode = o->value;
		S_SIZE(data) = o->size;
		S_AREA(data) = K(o->area);
		data->saved_kcov = K(o->k);
		S_SEQUENCE(data) = o->sequence;
#ifdef HAS_STATE
		S_STATE(data) = K_STATE(o->k);
#endif
	}
	if (!data->irq_area) {
		char *area = vmalloc(IRQ_WORDS * sizeof(word_t), "kcov_init", (uintptr_t)kcov_init, false);

		data->irq_area = K(area);
		cached[ncached].area = area;
		cached[ncached].size = IRQ_WORDS;
		cached[ncached++].list = 2 + cpu;
	}
}
#endif

#ifdef SAVED_IN_TASK
static void build_saved_task(struct thread *me)
{
	struct object *o = find_object(me->saved);

	if (!o)
		return;
	me->t->kcov_saved_mode = o->value;
	me->t->kcov_saved_size = o->size;
	me->t->kcov_saved_area = K(o->area);
	me->t->kcov_saved_kcov = K(o->k);
	me->t->kcov_saved_sequence = o->sequence;
}
#endif

#ifdef HAS_REMOTE
/* hash_min() of a u64 for 16 buckets: hash_long(). */
static unsigned int bucket_of(u64 handle)
{
#if __SIZEOF_LONG__ == 8
	return (handle * 0x61C8864680B583EBull) >> 60;
#else
	return ((u32)handle * 0x61C88647u) >> 28;
#endif
}

static void build_handle(struct object *o, u64 handle)
{
	struct kcov_remote *entry = NEW(struct kcov_remote);
	struct hlist_head *head = &kcov_remote_map[bucket_of(handle)];

	entry->handle = handle;
	entry->kcov = K(o->k);
	entry->hnode.next = head->first;
	if (head->first)
		U(head->first)->pprev = K(&entry->hnode.next);
	head->first = K(&entry->hnode);
	entry->hnode.pprev = K(&head->first);
}

static void build_cached(unsigned long size, int list)
{
	char *area = list ? vmalloc(size * sizeof(word_t), "kcov_init", (uintptr_t)kcov_init, false)
			  : vmalloc(size * sizeof(word_t), "kcov_remote_start", (uintptr_t)kcov_remote_start, false);
	struct kcov_remote_area *overlay = (struct kcov_remote_area *)area;

	overlay->size = size;
	add_tail(&overlay->list, AREA_LIST(list));
	cached[ncached].area = area;
	cached[ncached].size = size;
	cached[ncached++].list = list;
}
#endif

#ifdef HAS_DATAFLOW
/* The other device's state beside KCOV's own: a session of task 44, which has no coverage of its own. */
static void build_dataflow(void)
{
	struct kcov_dataflow *df = NEW(struct kcov_dataflow);
	struct task_struct *t = find_thread(44)->t;
	char *area = allocate(PAGE, PAGE);

	df->refcount.refs.counter = 2;
	df->size = WORDS;
	df->area = K(area);
	df->t = K(t);
	t->kcov_df_area = K(area);
	t->kcov_df_size = WORDS;
	t->kcov_df_enabled = true;
#ifdef DATAFLOW_POINTER
	t->kcov_df_seq = 9;
	t->kcov_df = K(df);
#else
	t->kcov_dataflow_seq = 9;
#endif
	install(44, 20, open_file(&kcov_df_fops, df));
}
#endif

static void build(void)
{

	init_list(&vmap_area_list);
	init_list(&slab_caches);
	for (int cpu = 0; cpu < CPUS; cpu++)
		__per_cpu_offset[cpu] = (uintptr_t)allocate(__stop_percpu - __start_percpu, 64) - (uintptr_t)__start_percpu;
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		build_task(&threads[i]);
	for (size_t i = 0; i < ARRAY_SIZE(objects); i++)
		build_object(&objects[i]);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		build_sessions(&threads[i]);
	for (int cpu = 0; cpu < CPUS; cpu++) {
		struct rq *rq = this_cpu(&runqueues, cpu);
		struct task_struct *idle = cpu ? NEW(struct task_struct) : &init_task;

		rq->nr_running = 1;
		rq->idle = rq->curr = K(idle);
		if (cpu) {
			strcpy(idle->comm, "swapper/0");
			idle->comm[8] += cpu;
			set_cpu(idle, cpu);
			idle->on_cpu = 1;
			idle->flags = PF_KTHREAD;
			idle->signal = init_task.signal;
			init_list(&idle->thread_node);
			init_list(&idle->tasks);
		}
		for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
			if (threads[i].pid && threads[i].running && threads[i].cpu == (unsigned int)cpu) {
				rq->curr = K(threads[i].t);
				idle->on_cpu = 0;
				T_MODE(idle) |= IN_CTXSW;
			}
#ifdef SAVED_PER_CPU
		build_saved(cpu);
#endif
	}
#ifdef HAS_REMOTE
	for (int i = 0; i < BUCKETS; i++)
		kcov_remote_map[i].first = NULL;
	init_list(AREA_LIST(0));
#ifdef SAVED_IN_TASK
	init_list(AREA_LIST(1));
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		build_saved_task(&threads[i]);
	build_cached(IRQ_WORDS, 1);
	build_cached(IRQ_WORDS, 1);
#endif
	build_cached(REMOTE_WORDS, 0);
	build_cached(WORDS, 0);
	for (size_t i = 0; i < ARRAY_SIZE(objects); i++)
		for (int j = 0; j < 4 && objects[i].handles[j]; j++)
			build_handle(&objects[i], objects[i].handles[j]);
#endif
#ifdef HAS_DATAFLOW
	build_dataflow();
#endif
	for (size_t i = 0; i < ARRAY_SIZE(objects); i++)
		K_COUNT(objects[i].k) = objects[i].refcount;
}

/* What is true. */

#define HEX "\"0x%" PRIxPTR "\""
#define ADDRESS(p) ((uintptr_t)K(p))

static void print_buffer(const char *area, enum format format, unsigned long size, unsigned long count, unsigned long bitmap)
{
	unsigned long capacity = capacity_of(format, size, bitmap);

	printf(", \"area\": " HEX, ADDRESS(area));
	if (!area) {
		printf(", \"count\": null, \"full\": null, \"records\": [], \"capacity\": ");
		if (size)
			printf("%lu", capacity);
		else
			printf("null");
		return;
	}
	if (format == BITMAP)
		printf(", \"count\": null, \"capacity\": null, \"full\": null");
	else
		printf(", \"count\": %lu, \"capacity\": %lu, \"full\": %s", count, capacity,
		       count >= capacity ? "true" : "false");
	printf(", \"records\": [");
	for (unsigned long i = 0; i < count && i < PRINTED; i++) {
		/* The address of the record's function in this kernel's memory, a call later. */
		uintptr_t address = (uintptr_t)K(covered[i % 3]) + 4;

		/* A bit stands for four bytes. */
		if (format == BITMAP)
			address -= (address - shift - (uintptr_t)_stext) % 4;
		printf("%s{\"address\": " HEX ", \"function\": \"%s\"", i ? ", " : "", address, covered_names[i % 3]);
		if (format == CMP)
			printf(", \"arg1\": \"0x%lx\", \"arg2\": \"0x%llx\", \"size\": 4, \"const\": true", 100 + i,
			       0xfffffff0ull + i);
		printf("}");
	}
	printf("]");
}

static void print_object(const struct object *o)
{
	printf("TRUTH {\"state\": \"object\", \"object\": \"%s\", \"kcov\": " HEX ", \"tgid\": %d, \"fds\": [", o->name,
	       ADDRESS(o->k), o->tgid);
	for (int i = 0; i < 3 && o->fds[i]; i++)
		printf("%s%d", i ? ", " : "", o->fds[i]);
	printf("], \"size\": %lu, \"kcov_mode\": \"%s\", \"enabled\": %s", o->size, o->mode + strlen("KCOV_MODE_"),
	       o->owner ? "true" : "false");
	if (o->owner)
		printf(", \"owner_tid\": %d, \"comm\": \"%s\", \"t\": " HEX, o->owner, find_thread(o->owner)->comm,
		       ADDRESS(find_thread(o->owner)->t));
	else
		printf(", \"owner_tid\": null, \"comm\": null, \"t\": \"0x0\"");
#ifdef HAS_REMOTE
	printf(", \"remote\": %s, \"remote_size\": %u, \"sequence\": %d", o->remote ? "true" : "false", o->remote_size,
	       o->sequence);
#else
	printf(", \"remote\": null, \"remote_size\": null, \"sequence\": null");
#endif
	printf(", \"handles\": [");
	for (int i = 0; i < 4 && o->handles[i]; i++) {
#ifdef HAS_REMOTE
		printf("%s{\"handle\": \"0x%" PRIx64 "\", \"bucket\": %u}", i ? ", " : "", o->handles[i],
		       bucket_of(o->handles[i]));
#endif
	}
	printf("], \"refcount\": %d, \"mapped\": %s, \"map_start\": \"0x%lx\", \"sharer\": %d", o->refcount,
	       o->vma ? "true" : "false", o->vma, o->sharer);
	print_buffer(o->area, o->format, o->size, o->count, bitmap_words(o));
	printf("}\n");
}

static const char *mode_name(const struct thread *me)
{
	const struct object *o = find_object(me->section ? me->section : me->local);

	if (o)
		return o->mode + strlen("KCOV_MODE_");
#ifdef MODE_REMOTE
	if (me->owns)
		return "REMOTE";
#endif
	return "DISABLED";
}

static void print_thread(const struct thread *me)
{
	const struct object *o = find_object(me->section ? me->section : me->local), *owned = find_object(me->owns);
	const struct object *shown = o ? o : owned;
	const char *area = me->section ? me->area : o ? o->area : NULL;
	unsigned long size = me->section ? (me->softirq ? IRQ_WORDS : o->remote_size) : o ? o->size : 0;

	printf("TRUTH {\"state\": \"task\", \"task\": " HEX ", \"pid\": %d, \"tgid\": %d, \"comm\": \"%s\", \"cpu\": %u",
	       ADDRESS(me->t), me->pid, me->tgid, me->comm, me->cpu);
	printf(", \"kcov_mode\": \"%s\", \"kcov_size\": %lu, \"kcov_area\": " HEX ", \"kcov\": " HEX, mode_name(me), size,
	       ADDRESS(area),
#ifdef HAS_OWNER
	       ADDRESS(o ? o->k : NULL));
	printf(", \"kcov_remote\": " HEX, ADDRESS(owned ? owned->k : NULL));
#else
	       ADDRESS(shown ? shown->k : NULL));
	printf(", \"kcov_remote\": null");
#endif
#ifdef HAS_REMOTE
	printf(", \"kcov_handle\": \"0x%" PRIx64 "\", \"kcov_sequence\": %d, \"owns_remote\": %s", me->handle,
	       o ? o->sequence : me->stale_sequence, owned ? "true" : "false");
#else
	printf(", \"kcov_handle\": null, \"kcov_sequence\": null, \"owns_remote\": null");
#endif
#ifdef HAS_SOFTIRQ
	printf(", \"kcov_softirq\": %d", me->softirq);
#else
	printf(", \"kcov_softirq\": null");
#endif
#ifdef FLAG_CTXSW
	printf(", \"in_ctxsw\": %s", me->running || me->never_ran ? "false" : "true");
#else
	printf(", \"in_ctxsw\": null");
#endif
	printf(", \"role\": \"%s\", \"beneath\": %s, \"paused\": %s",
	       me->softirq   ? "softirq-section"
	       : me->section ? "remote-section"
	       : me->local   ? "local"
			     : "none",
	       me->saved ? "\"local\"" : "null", me->paused ? "true" : "false");
	if (shown)
		print_buffer(area ? area : shown->area, me->section ? PC : shown->format, area ? size : shown->size,
			     me->section ? me->section_count : shown->count, me->section ? 0 : bitmap_words(shown));
	else
		printf(", \"count\": null, \"full\": null");
	printf("}\n");
	o = find_object(me->saved);
	if (o)
		printf("TRUTH {\"state\": \"saved\", \"pid\": %d, \"cpu\": %u, \"comm\": \"%s\", \"saved_mode\": \"%s\", "
		       "\"saved_size\": %lu, "
		       "\"saved_area\": " HEX ", \"saved_kcov\": " HEX ", \"saved_sequence\": %d}\n",
		       me->pid, me->cpu, me->comm, o->mode + strlen("KCOV_MODE_"), o->size, ADDRESS(o->area), ADDRESS(o->k),
		       o->sequence);
	if (me->section)
		printf("TRUTH {\"state\": \"area\", \"area\": " HEX
		       ", \"size\": %lu, \"list\": \"%s\", \"how\": \"in-use\", \"pid\": %d, "
		       "\"cpu\": %u}\n",
		       ADDRESS(me->area), size, me->softirq ? "irq" : "task", me->pid, me->cpu);
}

static void print_truth(const char *machine)
{
	printf("TRUTH {\"state\": \"kernel\", \"release\": \"%s\", \"machine\": \"%s\", \"kaslr_offset\": \"0x%" PRIxPTR
	       "\", \"word_size\": %zu}\n",
	       RELEASE, machine, shift, sizeof(long));
	for (size_t i = 0; i < ARRAY_SIZE(objects); i++)
		print_object(&objects[i]);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		print_thread(&threads[i]);
	for (int i = 0; i < ncached; i++) {
		printf("TRUTH {\"state\": \"area\", \"area\": " HEX
		       ", \"size\": %lu, \"list\": \"%s\", \"how\": \"cached\", \"pid\": null, ",
		       ADDRESS(cached[i].area), cached[i].size, cached[i].list ? "irq" : "task");
		if (cached[i].list >= 2)
			printf("\"cpu\": %d}\n", cached[i].list - 2);
		else
			printf("\"cpu\": null}\n");
	}
	printf("TRUTH {\"state\": \"vmalloc\", \"areas\": [");
	for (int i = 0; i < nareas; i++)
		printf("%s{\"start\": " HEX ", \"size\": %zu, \"caller\": \"%s\", \"user\": %s}", i ? ", " : "",
		       ADDRESS(areas[i].start), areas[i].size, areas[i].caller, areas[i].user ? "true" : "false");
	printf("]}\n");
}

/* A dump of the kernel's memory: for each piece a line that says where it is, then its bytes. */
static void write_piece(FILE *f, const char *start, size_t size)
{
	fprintf(f, "%" PRIxPTR " %zu\n", ADDRESS(start), size);
	if (fwrite(start, 1, size, f) != size)
		abort();
}

/* A debugger stops here. */
FUNCTION void standing(void)
{
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	FILE *f;

	if (argc != 4)
		return 2;
	shift = strtoull(argv[2], NULL, 0);
	strcpy(init_uts_ns.name.machine, argv[3]);
	build();
	f = fopen(argv[1], "w");
	if (!f)
		return 1;
	write_piece(f, __start_kernel, __stop_kernel - __start_kernel);
	write_piece(f, __start_percpu, __stop_percpu - __start_percpu);
	write_piece(f, (char *)spare, (used + PAGE - 1) / PAGE * PAGE);
	if (fclose(f))
		return 1;
	print_truth(argv[3]);
	fflush(stdout);
	standing();
	return 0;
}
