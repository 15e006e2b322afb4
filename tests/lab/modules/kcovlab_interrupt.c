// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The contexts that a timer's interrupt on top of user space runs code in, and how much of it KCOV records for the task: the
 * handler, a softirq at its end, and work of the task's own before it returns to user space. That work is interrupted again.
 */
#include <asm/irq_regs.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/interrupt.h>
#include <linux/module.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include <linux/task_work.h>
#include <linux/version.h>

enum context {
	HARDIRQ,
	SOFTIRQ,
	WORK,
	NESTED_HARDIRQ,
	NESTED_SOFTIRQ,
	CONTEXTS,
};

static const char *const names[CONTEXTS] = {
	[HARDIRQ] = "hardirq",
	[SOFTIRQ] = "softirq",
	[WORK] = "work",
	[NESTED_HARDIRQ] = "hardirq_over_work",
	[NESTED_SOFTIRQ] = "softirq_over_work",
};

static struct dentry *directory;
static struct task_struct *task;
static bool pending, working;
static int reached;
/* What was recorded while each context was seen last; -1: it was not yet. */
static long recorded[CONTEXTS];

/* One each, to stop at. */
static noinline void kcovlab_hardirq(void)
{
	WRITE_ONCE(reached, HARDIRQ);
}

static noinline void kcovlab_softirq(void)
{
	WRITE_ONCE(reached, SOFTIRQ);
}

static noinline void kcovlab_work(void)
{
	WRITE_ONCE(reached, WORK);
}

static noinline void kcovlab_hardirq_over_work(void)
{
	WRITE_ONCE(reached, NESTED_HARDIRQ);
}

static noinline void kcovlab_softirq_over_work(void)
{
	WRITE_ONCE(reached, NESTED_SOFTIRQ);
}

static void measure(enum context context)
{
	unsigned long *area = current->kcov_area;
	unsigned long before;

	if (!area)
		return;
	before = READ_ONCE(area[0]);
	switch (context) {
	case HARDIRQ:
		kcovlab_hardirq();
		break;
	case SOFTIRQ:
		kcovlab_softirq();
		break;
	case WORK:
		kcovlab_work();
		break;
	case NESTED_HARDIRQ:
		kcovlab_hardirq_over_work();
		break;
	default:
		kcovlab_softirq_over_work();
	}
	WRITE_ONCE(recorded[context], READ_ONCE(area[0]) - before);
}

static void run_tasklet(struct tasklet_struct *tasklet)
{
	if (current == task)
		measure(READ_ONCE(working) ? NESTED_SOFTIRQ : SOFTIRQ);
}

static DECLARE_TASKLET(tasklet, run_tasklet);
static struct hrtimer timer;

static void start_timer(void)
{
	hrtimer_start(&timer, ms_to_ktime(1), HRTIMER_MODE_REL_PINNED_HARD);
}

static void run_work(struct callback_head *head)
{
	WRITE_ONCE(pending, false);
	measure(WORK);
	start_timer();
	/* Each round records this function again: starting a timer may record any number of others. */
	for (int rounds = 0; rounds < 3 && READ_ONCE(task); rounds++) {
		WRITE_ONCE(working, true);
		mdelay(1);
	}
	WRITE_ONCE(working, false);
}

static struct callback_head work;

static enum hrtimer_restart run_timer(struct hrtimer *expired)
{
	struct pt_regs *regs = get_irq_regs();
	bool nested = READ_ONCE(working);

	if (current != task || (!nested && (READ_ONCE(pending) || !regs || !user_mode(regs)))) {
		hrtimer_forward_now(expired, ms_to_ktime(1));
		return HRTIMER_RESTART;
	}
	measure(nested ? NESTED_HARDIRQ : HARDIRQ);
	tasklet_schedule(&tasklet);
	if (!nested) {
		WRITE_ONCE(pending, true);
		task_work_add(task, &work, TWA_RESUME);
	}
	return HRTIMER_NORESTART;
}

static ssize_t kcovlab_interrupt_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	WRITE_ONCE(task, current);
	start_timer();
	return size;
}

static ssize_t kcovlab_interrupt_read(struct file *file, char __user *data, size_t size, loff_t *at)
{
	char text[200];
	int length = 0;

	for (int i = 0; i < CONTEXTS; i++)
		length += scnprintf(text + length, sizeof(text) - length, "%s\"%s\": %ld", i ? ", " : "", names[i],
				    READ_ONCE(recorded[i]));
	return simple_read_from_buffer(data, size, at, text, length);
}

static int kcovlab_interrupt_release(struct inode *inode, struct file *file)
{
	hrtimer_cancel(&timer);
	WRITE_ONCE(task, NULL);
	return 0;
}

static const struct file_operations kcovlab_interrupt_fops = {
	.owner = THIS_MODULE,
	.read = kcovlab_interrupt_read,
	.write = kcovlab_interrupt_write,
	.release = kcovlab_interrupt_release,
};

static int __init kcovlab_interrupt_init(void)
{
	for (int i = 0; i < CONTEXTS; i++)
		recorded[i] = -1;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 15, 0)
	hrtimer_setup(&timer, run_timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
#else
	hrtimer_init(&timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	timer.function = run_timer;
#endif
	init_task_work(&work, run_work);
	directory = debugfs_create_dir("kcovlab_interrupt", NULL);
	debugfs_create_file("run", 0600, directory, NULL, &kcovlab_interrupt_fops);
	return PTR_ERR_OR_ZERO(directory);
}

static void __exit kcovlab_interrupt_exit(void)
{
	debugfs_remove(directory);
	tasklet_kill(&tasklet);
}

module_init(kcovlab_interrupt_init);
module_exit(kcovlab_interrupt_exit);
MODULE_DESCRIPTION("Code in each context of an interrupt");
MODULE_LICENSE("GPL");
