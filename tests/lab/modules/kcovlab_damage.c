// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Does to KCOV's state what bugs of the kernel do, upon a line written to its file:
 *
 *   ref FD        take a reference to the struct kcov of this descriptor and never drop it
 *   forget        make the writer forget the object that it has enabled
 *   open HANDLE   let a kernel worker begin a remote section and never end it
 *   nest HANDLE   begin and end a remote section in the writer's context, where one cannot begin
 *                 while the writer has KCOV enabled: as mac80211 does when it receives a frame
 */
#include <linux/debugfs.h>
#include <linux/err.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kcov.h>
#include <linux/module.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

static struct dentry *directory;
static u64 handle;

/* struct kcov is kernel/kcov.c's own; it begins with its refcount_t. */
static int leak_reference(unsigned int fd)
{
	struct file *file = fget(fd);

	if (!file)
		return -EBADF;
	if (!file->private_data) {
		fput(file);
		return -EINVAL;
	}
	refcount_inc(file->private_data);
	fput(file);
	return 0;
}

/* The order of kcov_stop(): the mode first, as coverage is recorded while it is set. */
static void forget(void)
{
	WRITE_ONCE(current->kcov_mode, 0);
	barrier();
	current->kcov = NULL;
#ifdef CONFIG_KCOV_UNIQUE
	memset(&current->kcov_state, 0, sizeof(current->kcov_state));
#else
	current->kcov_size = 0;
	current->kcov_area = NULL;
#endif
}

static void open_section(struct work_struct *work)
{
	kcov_remote_start(handle);
}

static DECLARE_WORK(opener, open_section);

/* The start warns and returns, and the end then ends the session of the task itself. */
static void nest_section(u64 nested)
{
	kcov_remote_start(nested);
	kcov_remote_stop();
}

static ssize_t kcovlab_damage_write(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	unsigned long long argument = 0;
	char line[64] = "";
	char *word;
	int err = 0;

	if (size >= sizeof(line) || copy_from_user(line, data, size))
		return -EFAULT;
	word = strchr(line, ' ');
	if (word) {
		*word++ = 0;
		err = kstrtoull(word, 0, &argument);
	}
	if (err)
		return err;
	if (!strcmp(line, "ref")) {
		err = leak_reference(argument);
	} else if (!strcmp(line, "forget")) {
		forget();
	} else if (!strcmp(line, "open")) {
		handle = argument;
		schedule_work(&opener);
		flush_work(&opener);
	} else if (!strcmp(line, "nest")) {
		nest_section(argument);
	} else {
		err = -EINVAL;
	}
	return err ? err : size;
}

static const struct file_operations kcovlab_damage_fops = {
	.owner = THIS_MODULE,
	.write = kcovlab_damage_write,
};

static int __init kcovlab_damage_init(void)
{
	directory = debugfs_create_dir("kcovlab_damage", NULL);
	debugfs_create_file("do", 0200, directory, NULL, &kcovlab_damage_fops);
	return PTR_ERR_OR_ZERO(directory);
}

static void __exit kcovlab_damage_exit(void)
{
	debugfs_remove(directory);
}

module_init(kcovlab_damage_init);
module_exit(kcovlab_damage_exit);
MODULE_DESCRIPTION("Does to KCOV's state what bugs do");
MODULE_LICENSE("GPL");
