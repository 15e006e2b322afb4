// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The init of a guest in which the module kcovlab_scribble overwrites KCOV's fields, while others
 * change them as they may: one thread enables and disables all the time, others open and close
 * objects, and one owns the handle for which the module runs remote sections.
 *
 * Output goes to /dev/ttyS1 or /dev/hvc0 as TRUTH lines, which tests/lab/workload/init.c explains: who is who,
 * then {"done": true}. Lines from there go to the module, "{victim}" being the enabling thread and
 * "{owner}" the descriptor of the owner's object; {"answer": LINE} follows.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcov.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#define WORDS 1024
#define HANDLE 0x42
#define STORM 2

static int tty;
static volatile int victim, owner, owner_fd = -1;

static void say(const char *text)
{
	if (write(tty, text, strlen(text)) < 0)
		abort();
}

static int open_kcov(uint64_t **area)
{
	int fd = open("/sys/kernel/debug/kcov", O_RDWR);

	if (fd < 0 || ioctl(fd, KCOV_INIT_TRACE, WORDS))
		abort();
	*area = mmap(NULL, WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*area == MAP_FAILED)
		abort();
	return fd;
}

static void *enable_and_disable(void *unused)
{
	uint64_t *area;
	int fd = open_kcov(&area);

	prctl(PR_SET_NAME, "kc-victim");
	victim = syscall(SYS_gettid);
	for (;;) {
		area[0] = 0;
		if (!ioctl(fd, KCOV_ENABLE, KCOV_TRACE_PC)) {
			getppid();
			usleep(500);
			ioctl(fd, KCOV_DISABLE, 0);
		}
		usleep(500);
	}
	return unused;
}

static void *storm(void *unused)
{
	prctl(PR_SET_NAME, "kc-storm");
	for (;;) {
		uint64_t *area;
		int fd = open_kcov(&area);

		if (!ioctl(fd, KCOV_ENABLE, rand() % 2 ? KCOV_TRACE_PC : KCOV_TRACE_CMP)) {
			sched_yield();
			ioctl(fd, KCOV_DISABLE, 0);
		}
		munmap(area, WORDS * sizeof(uint64_t));
		close(fd);
		usleep(1000);
	}
	return unused;
}

static void *own(void *unused)
{
	struct kcov_remote_arg arg = { .trace_mode = KCOV_TRACE_PC, .area_size = 512, .common_handle = HANDLE };
	uint64_t *area;
	int fd = open_kcov(&area);

	prctl(PR_SET_NAME, "kc-owner");
	if (ioctl(fd, KCOV_REMOTE_ENABLE, &arg))
		abort();
	owner = syscall(SYS_gettid);
	owner_fd = fd;
	for (;;) {
		area[0] = 0;
		usleep(10000);
	}
	return unused;
}

static void load(const char *path)
{
	int fd = open(path, O_RDONLY);

	if (fd < 0 || syscall(SYS_finit_module, fd, "", 0))
		abort();
	close(fd);
}

static void command(char *line)
{
	char words[128], text[256], *at;
	int fd, err;

	if ((at = strstr(line, "{victim}")))
		snprintf(words, sizeof(words), "%.*s%d%s", (int)(at - line), line, victim, at + strlen("{victim}"));
	else if ((at = strstr(line, "{owner}")))
		snprintf(words, sizeof(words), "%.*s%d%s", (int)(at - line), line, owner_fd, at + strlen("{owner}"));
	else
		snprintf(words, sizeof(words), "%s", line);
	fd = open("/sys/kernel/debug/kcovlab_scribble/do", O_WRONLY);
	err = write(fd, words, strlen(words)) < 0 ? errno : 0;
	close(fd);
	snprintf(text, sizeof(text), err ? "TRUTH {\"answer\": \"%s\", \"error\": %d}\n" : "TRUTH {\"answer\": \"%s\"}\n", line,
		 err);
	say(text);
}

int main(void)
{
	void *(*threads[])(void *) = { enable_and_disable, own, storm, storm };
	struct termios settings;
	char text[256], base[32] = "", *end;
	int fd;
	pthread_t thread;
	size_t len = 0;

	mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	mount("debugfs", "/sys/kernel/debug", "debugfs", 0, NULL);
	tty = open("/dev/ttyS1", O_RDWR | O_NOCTTY);
	/* Machines with one serial port: a console of virtio's. */
	if (tty < 0)
		tty = open("/dev/hvc0", O_RDWR | O_NOCTTY);
	tcgetattr(tty, &settings);
	cfmakeraw(&settings);
	settings.c_cflag |= CLOCAL | CREAD;
	cfsetspeed(&settings, B115200);
	tcsetattr(tty, TCSANOW, &settings);
	load("/modules/kcovlab_scribble.ko");
	for (size_t i = 0; i < sizeof(threads) / sizeof(*threads); i++)
		pthread_create(&thread, NULL, threads[i], NULL);
	while (!victim || owner_fd < 0)
		usleep(1000);
	fd = open("/sys/module/kcovlab_scribble/sections/.text", O_RDONLY);
	base[read(fd, base, sizeof(base) - 1) - 1] = 0;
	snprintf(text, sizeof(text),
		 "TRUTH {\"state\": \"who\", \"victim\": %d, \"owner\": %d, \"text\": \"%s\"}\nTRUTH {\"done\": true}\n",
		 victim, owner, base);
	say(text);
	for (;;) {
		ssize_t n = read(tty, text + len, sizeof(text) - 1 - len);

		if (n <= 0) {
			usleep(10000);
			continue;
		}
		len += n;
		text[len] = 0;
		while ((end = strpbrk(text, "\r\n"))) {
			*end++ = 0;
			if (*text)
				command(text);
			len -= end - text;
			memmove(text, end, len + 1);
		}
	}
}
