// SPDX-License-Identifier: LGPL-2.1-or-later
/* A module with code of the kinds that docs/executed-lines.md lists; writes to a file run parts of it. */
#include <linux/debugfs.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/jump_label.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/panic.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/static_call.h>
#include <linux/string.h>
#include <linux/uaccess.h>

struct item {
	struct list_head list;
	char text[16];
	unsigned int size;
};

static LIST_HEAD(items);
static DEFINE_MUTEX(lock);
static DEFINE_STATIC_KEY_FALSE(is_loud);
static struct dentry *directory;
static unsigned int total;

static int count_once(int n)
{
	return n + 1;
}

static int count_twice(int n)
{
	return n + 2;
}

DEFINE_STATIC_CALL(counter, count_once);

/* Through a table of pointers, where the kernel permits these. */
static noinline int choose(char word, int n)
{
	switch (word) {
	case 'a':
		return total + n;
	case 'b':
		return n * 3;
	case 'c':
		total += n;
		break;
	case 'd':
		return count_once(n) * total;
	case 'e':
		if (n > 4)
			return -E2BIG;
		fallthrough;
	case 'f':
		total ^= 5;
		break;
	case 'g':
		while (n-- > 0)
			total += n;
		break;
	default:
		return -EINVAL;
	}
	return total ? 1 : 2;
}

static noinline void __noreturn give_up(const char *text)
{
	if (*text == '!')
		panic("lines: loud %s", text);
	panic("lines: %s", text);
}

static noinline int demand(const char *text, size_t size)
{
	if (unlikely(size > 4096))
		give_up(text);
	if (WARN_ON_ONCE(!size))
		return -ENODATA;
	BUG_ON(text[0] == '\\');
	if (text[0] == '#' || (size > 2 && text[1] == '#'))
		return 0;
	return size > 5 ? 2 : 1;
}

static noinline int say(const char *text)
{
	if (static_branch_unlikely(&is_loud)) {
		pr_info("lines: %s\n", text);
		return strlen(text);
	}
	return static_call(counter)(strlen(text));
}

static noinline struct item *find(const char *text)
{
	struct item *item;

	list_for_each_entry(item, &items, list)
	{
		if (!strcmp(item->text, text))
			return item;
	}
	return NULL;
}

static noinline int add(const char *text, unsigned int size)
{
	struct item *item;
	int error;

	mutex_lock(&lock);
	if (find(text)) {
		error = -EEXIST;
		goto out;
	}
	item = kzalloc(sizeof(*item), GFP_KERNEL);
	if (!item) {
		error = -ENOMEM;
		goto out;
	}
	if (strscpy(item->text, text, sizeof(item->text)) < 0) {
		error = -ENAMETOOLONG;
		goto out_free;
	}
	item->size = clamp(size, 2U, 40U);
	list_add_tail(&item->list, &items);
	mutex_unlock(&lock);
	return 0;

out_free:
	kfree(item);
out:
	mutex_unlock(&lock);
	return error;
}

static noinline int drop(const char *text)
{
	struct item *item;
	int size = -ENOENT;

	mutex_lock(&lock);
	item = find(text);
	if (item) {
		size = item->size;
		list_del(&item->list);
		kfree(item);
	}
	mutex_unlock(&lock);
	cond_resched();
	return size;
}

static noinline int toggle(const char *text)
{
	if (text[0] == '1') {
		static_branch_enable(&is_loud);
		static_call_update(counter, count_twice);
	} else if (text[0] == '0') {
		static_branch_disable(&is_loud);
	} else {
		return -EDOM;
	}
	return 1;
}

/* The kernel replaces code of both, and has entries for them in its table of exceptions. */
static noinline int sum_user(const char __user *data, size_t size)
{
	int sum = 0;
	char one;
	size_t i;

	for (i = 0; i < size; i++) {
		if (get_user(one, data + i))
			return -EFAULT;
		sum += one;
	}
	return sum;
}

static noinline int sum_user_at_once(const int __user *data)
{
	int first, second;

	if (!user_access_begin(data, 2 * sizeof(int)))
		return -EPERM;
	unsafe_get_user(first, data, failed);
	unsafe_get_user(second, data + 1, failed);
	user_access_end();
	return first + second > 0;
failed:
	user_access_end();
	return -EFAULT;
}

static noinline int recurse(int n)
{
	if (n < 2)
		return n;
	return recurse(n - 1) + recurse(n - 2);
}

static noinline __no_sanitize_coverage int choose_unrecorded(int n)
{
	return n & 1 ? n * 5 : total;
}

static noinline int forward(const char *text)
{
	return demand(text, strlen(text));
}

static int (*const handlers[])(const char *) = { say, drop, toggle, forward };

static ssize_t write_command(struct file *file, const char __user *data, size_t size, loff_t *at)
{
	char word[24] = "";
	int result;

	if (size > 64)
		return sum_user(data, size);
	if (size == 8)
		return sum_user_at_once((const int __user *)data);
	if (size < 2 || size >= sizeof(word) || copy_from_user(word, data, size))
		return -EFAULT;
	switch (word[0]) {
	case '+':
		result = add(word + 1, size);
		break;
	case '0' ... '3':
		result = handlers[word[0] - '0'](word + 1);
		break;
	case 'r':
		result = recurse(word[1] - '0');
		break;
	case 'u':
		result = choose_unrecorded(word[1]);
		break;
	default:
		result = choose(word[0], word[1] - '0');
	}
	return result ?: size;
}

static int show_items(char *text, size_t size)
{
	struct item *item;
	int done = 0;

	mutex_lock(&lock);
	list_for_each_entry(item, &items, list) done += scnprintf(text + done, size - done, "%s %u\n", item->text, item->size);
	mutex_unlock(&lock);
	return done;
}

static ssize_t read_items(struct file *file, char __user *data, size_t size, loff_t *at)
{
	char *text = kmalloc(256, GFP_KERNEL);
	ssize_t done;

	if (!text)
		return -ENOMEM;
	done = simple_read_from_buffer(data, size, at, text, show_items(text, 256));
	kfree(text);
	return done;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.read = read_items,
	.write = write_command,
};

static int __init lines_init(void)
{
	directory = debugfs_create_dir("kcovlab_lines", NULL);
	debugfs_create_file("run", 0600, directory, NULL, &operations);
	return PTR_ERR_OR_ZERO(directory);
}

static void __exit lines_exit(void)
{
	struct item *item, *next;

	debugfs_remove(directory);
	list_for_each_entry_safe(item, next, &items, list) kfree(item);
}

module_init(lines_init);
module_exit(lines_exit);
MODULE_DESCRIPTION("Code whose executed lines are compared with those of a processor");
MODULE_LICENSE("GPL");
