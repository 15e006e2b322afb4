// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Overwrites fields of KCOV, upon a line written to its file, and says before who will do it:
 *
 *   mode TID VALUE    the kcov_mode of a task
 *   same TID          the same with the value that it has
 *   ref FD VALUE      the refcount of the writer's object
 *   area ADDRESS      the first word of a free area, by the thread that runs sections, between two
 *
 * The thread kc-sections begins and ends remote sections all the time, for a common handle.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kcov.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/uaccess.h>

#define HANDLE 0x42

static struct dentry *directory;
static struct task_struct *sections;
static unsigned long area;

#define tell(what, at, writer, old, new) \
	pr_warn("SCRIBBLE {\"what\": \"%s\", \"memory\": \"0x%lx\", \"writer\": \"0x%lx\", \"old\": \"0x%lx\", \"new\": " \
		"\"0x%lx\"}\n", \
		what, (unsigned long)(at), (unsigned long)(writer), (unsigned long)(old), (unsigned long)(new))

static noinline void kcovlab_scribble_mode(struct task_struct *task, unsigned int value)
{
	WRITE_ONCE(task->kcov_mode, value);
}

static noinline void kcovlab_scribble_refcount(refcount_t *count, int value)
{
	refcount_set(count, value);
}

static noinline void kcovlab_scribble_area(unsigned long *word, unsigned long value)
{
	WRITE_ONCE(*word, value);
}

static int scribble_mode(pid_t tid, const char *what, bool same, unsigned int value)
{
	struct pid *pid = find_get_pid(tid);
	struct task_struct *task = get_pid_task(pid, PIDTYPE_PID);

	put_pid(pid);
	if (!task)
		return -ESRCH;
	/* Nothing else writes between what is said and what is done, on one CPU. */
	preempt_disable();
	if (same)
		value = task->kcov_mode;
	tell(what, &task->kcov_mode, kcovlab_scribble_mode, task->kcov_mode, value);
	kcovlab_scribble_mode(task, value);
	preempt_enable();
	put_task_struct(task);
	return 0;
}

/* struct kcov is kernel/kcov.c's own; it begins with its refcount_t. */
static int scribble_refcount(unsigned int fd, int value)
{
	struct file *file = fget(fd);
	refcount_t *count;

	if (!file)
		return -EBADF;
	count = file->private_data;
	preempt_disable();
	tell("ref", count, kcovlab_scribble_refcount, refcount_read(count), value);
	kcovlab_scribble_refcount(count, value);
	preempt_enable();
	fput(file);
	return 0;
}

static int run_sections(void *unused)
{
	while (!kthread_should_stop()) {
		kcov_remote_start(HANDLE);
		cond_resched();
		kcov_remote_stop();
		if (area) {
			tell("area", area, kcovlab_scribble_area, *(unsigned long *)area, 0x5ca1ab1e);
			kcovlab_scribble_area((unsigned long *)area, 0x5ca1ab1e);
			area = 0;
		}
		usleep_range(500, 1000);
	}
	return 0;
}

static ssize_t kcovlab_scribble_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	unsigned long first = 0, second = 0;
	char line[64] = "", word[16];
	int err;

	if (size >= sizeof(line) || copy_from_user(line, data, size))
		return -EFAULT;
	if (sscanf(line, "%15s %li %li", word, &first, &second) < 2)
		return -EINVAL;
	if (!strcmp(word, "mode") || !strcmp(word, "same")) {
		err = scribble_mode(first, word[0] == 'm' ? "mode" : "same", word[0] == 's', second);
	} else if (!strcmp(word, "ref")) {
		err = scribble_refcount(first, second);
	} else if (!strcmp(word, "area")) {
		area = first;
		err = 0;
	} else {
		err = -EINVAL;
	}
	return err ?: size;
}

static const struct file_operations kcovlab_scribble_fops = {
	.owner = THIS_MODULE,
	.write = kcovlab_scribble_write,
};

static int kcovlab_scribble_init(void)
{
	sections = kthread_run(run_sections, NULL, "kc-sections");
	if (IS_ERR(sections))
		return PTR_ERR(sections);
	directory = debugfs_create_dir("kcovlab_scribble", NULL);
	debugfs_create_file("do", 0200, directory, NULL, &kcovlab_scribble_fops);
	return 0;
}

static void kcovlab_scribble_exit(void)
{
	debugfs_remove(directory);
	kthread_stop(sections);
}

module_init(kcovlab_scribble_init);
module_exit(kcovlab_scribble_exit);
MODULE_DESCRIPTION("Overwrites fields of KCOV");
MODULE_LICENSE("GPL");
