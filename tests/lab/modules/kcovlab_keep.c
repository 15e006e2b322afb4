// SPDX-License-Identifier: LGPL-2.1-or-later
/* A module with a few functions whose coverage is recorded, and which stays loaded. */
#include <linux/debugfs.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/uaccess.h>

static struct dentry *directory;
static unsigned int total;

/*
 * Not inlined, so that each has a symbol; a loop, a branch and a switch, so that each has more than
 * one point of coverage.
 */
static noinline unsigned int kcovlab_keep_inner(unsigned int n)
{
	switch (n) {
	case 0:
		return 1;
	case 1:
		return total;
	case 0x2bad:
		return 3;
	default:
		return n * 7;
	}
}

static noinline unsigned int kcovlab_keep_middle(unsigned int n)
{
	unsigned int sum = 0;

	while (n--)
		sum += kcovlab_keep_inner(n);
	return sum;
}

static noinline unsigned int kcovlab_keep_outer(unsigned int n)
{
	if (n > 9)
		return 0;
	return kcovlab_keep_middle(n) + kcovlab_keep_inner(n);
}

static ssize_t kcovlab_keep_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	char digit;

	if (!size || get_user(digit, data))
		return -EFAULT;
	if (digit < '0' || digit > '9')
		return -EINVAL;
	WRITE_ONCE(total, kcovlab_keep_outer(digit - '0'));
	return size;
}

static const struct file_operations kcovlab_keep_fops = {
	.owner = THIS_MODULE,
	.write = kcovlab_keep_write,
};

static int __init kcovlab_keep_init(void)
{
	directory = debugfs_create_dir("kcovlab_keep", NULL);
	debugfs_create_file("run", 0200, directory, NULL, &kcovlab_keep_fops);
	return PTR_ERR_OR_ZERO(directory);
}

static void __exit kcovlab_keep_exit(void)
{
	debugfs_remove(directory);
}

module_init(kcovlab_keep_init);
module_exit(kcovlab_keep_exit);
MODULE_DESCRIPTION("Functions for KCOV to record, in a module that stays");
MODULE_LICENSE("GPL");
