// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Dereferences NULL three calls deep inside a write(): a crash whose last steps are in whatever KCOV
 * buffer the writer has. Or warns, reads what it has freed, sleeps for ever or loops for ever: crashes by what watches for that.
 */
#include <linux/debugfs.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

static struct dentry *directory;
/* Nobody sets it; volatile, so that the compiler can't tell. */
static int *volatile nothing;

/* A step before the fault in each function, so that each has coverage of its own. */
static noinline int kcovlab_oops_inner(int n)
{
	int *from = nothing;

	if (n & 1)
		from += n;
	return READ_ONCE(*from) + n;
}

static noinline int kcovlab_oops_middle(int n)
{
	int sum = 0;

	while (n)
		sum += kcovlab_oops_inner(n--);
	return sum;
}

static noinline int kcovlab_oops_outer(int n)
{
	if (n > 9)
		return 0;
	return kcovlab_oops_middle(n) + 1;
}

static noinline void kcovlab_oops_warn(void)
{
	WARN(1, "kcovlab_oops\n");
}

static noinline int kcovlab_oops_kasan(void)
{
	int *freed = kmalloc(sizeof(*freed), GFP_KERNEL);

	if (!freed || !IS_ENABLED(CONFIG_KASAN))
		return -EOPNOTSUPP;
	WRITE_ONCE(*freed, 1);
	kfree(freed);
	return READ_ONCE(*(volatile int *)freed);
}

static noinline void kcovlab_oops_hung(void)
{
	set_current_state(TASK_UNINTERRUPTIBLE);
	schedule();
}

static noinline void kcovlab_oops_lockup(void)
{
	while (!READ_ONCE(nothing))
		cpu_relax();
}

static ssize_t kcovlab_oops_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	char digit;

	if (!size || get_user(digit, data))
		return -EFAULT;
	switch (digit) {
	case 'w':
		kcovlab_oops_warn();
		return size;
	case 'k':
		return kcovlab_oops_kasan();
	case 'h':
		kcovlab_oops_hung();
		return size;
	case 'l':
		kcovlab_oops_lockup();
		return size;
	}
	return kcovlab_oops_outer(digit - '0') ? size : -EINVAL;
}

static const struct file_operations kcovlab_oops_fops = {
	.owner = THIS_MODULE,
	.write = kcovlab_oops_write,
};

static int __init kcovlab_oops_init(void)
{
	directory = debugfs_create_dir("kcovlab_oops", NULL);
	debugfs_create_file("run", 0200, directory, NULL, &kcovlab_oops_fops);
	return PTR_ERR_OR_ZERO(directory);
}

static void __exit kcovlab_oops_exit(void)
{
	debugfs_remove(directory);
}

module_init(kcovlab_oops_init);
module_exit(kcovlab_oops_exit);
MODULE_DESCRIPTION("A NULL dereference three calls deep, for KCOV to record");
MODULE_LICENSE("GPL");
