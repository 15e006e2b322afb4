// SPDX-License-Identifier: LGPL-2.1-or-later
/* Remote sections that last: as many as are written to a file, in the task that writes. */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/kcov.h>
#include <linux/module.h>
#include <linux/uaccess.h>

/* A number, and from 7.2 on a structure that has it. */
#define HANDLE ((typeof(kcov_common_handle())){ 0x5ec7 })
#define LASTS_MS 1000
#define PAUSE_MS 600

static struct dentry *directory;
static unsigned int total;

static noinline void kcovlab_sections_work(unsigned int n)
{
	while (n--)
		WRITE_ONCE(total, total + n);
}

static ssize_t kcovlab_sections_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	char digit;

	if (!size || get_user(digit, data))
		return -EFAULT;
	for (; digit > '0' && digit <= '9'; digit--) {
		kcov_remote_start_common(HANDLE);
		kcovlab_sections_work(20);
		msleep(LASTS_MS);
		kcov_remote_stop();
		msleep(PAUSE_MS);
	}
	return size;
}

static const struct file_operations kcovlab_sections_fops = {
	.owner = THIS_MODULE,
	.write = kcovlab_sections_write,
};

static int __init kcovlab_sections_init(void)
{
	directory = debugfs_create_dir("kcovlab_sections", NULL);
	debugfs_create_file("run", 0200, directory, NULL, &kcovlab_sections_fops);
	return PTR_ERR_OR_ZERO(directory);
}

static void __exit kcovlab_sections_exit(void)
{
	debugfs_remove(directory);
}

module_init(kcovlab_sections_init);
module_exit(kcovlab_sections_exit);
MODULE_DESCRIPTION("Remote sections that last");
MODULE_LICENSE("GPL");
