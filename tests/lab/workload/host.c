// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Programs of the host, run in the guest: the host's file system over 9p (tag `root`), with a tmpfs above it for what is
 * written, and a directory for exchange (tag `exchange`), which the host sees as well. A kernel without 9p has them in its
 * initramfs, under PACKED: files of the exchange go over the line of truth then, by `put` and `get`.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOT "/mnt/root"
#define PACKED "/packed"

static const char *root = ROOT;

static int mounted(const char *source, const char *where, const char *type, const char *options)
{
	mkdir(where, 0755);
	if (!mount(source, where, type, 0, options))
		return 1;
	dprintf(2, "mount %s at %s: %s\n", source, where, strerror(errno));
	return 0;
}

static int set_up_packed(void)
{
	mkdir(PACKED "/tmp", 01777);
	mkdir(PACKED "/tmp/exchange", 0755);
	if (!mounted("devtmpfs", PACKED "/dev", "devtmpfs", NULL) || !mounted("proc", PACKED "/proc", "proc", NULL) ||
	    !mounted("sysfs", PACKED "/sys", "sysfs", NULL) || !mounted("debugfs", PACKED "/sys/kernel/debug", "debugfs", NULL))
		return 0;
	root = PACKED;
	return 1;
}

static int set_up(void)
{
	static int done;

	if (done)
		return 1;
	if (!access(PACKED, F_OK))
		return done = set_up_packed();
	if (!mounted("root", "/mnt/lower", "9p", "trans=virtio,version=9p2000.L,cache=loose,msize=262144") ||
	    !mounted("tmpfs", "/mnt/upper", "tmpfs", NULL))
		return 0;
	mkdir("/mnt/upper/files", 0755);
	mkdir("/mnt/upper/work", 0755);
	if (!mounted("overlay", ROOT, "overlay", "lowerdir=/mnt/lower,upperdir=/mnt/upper/files,workdir=/mnt/upper/work") ||
	    /* Nothing above /tmp: the checkout that the programs belong to may lie there. */
	    !mounted("devtmpfs", ROOT "/dev", "devtmpfs", NULL) || !mounted("proc", ROOT "/proc", "proc", NULL) ||
	    !mounted("sysfs", ROOT "/sys", "sysfs", NULL) || !mounted("debugfs", ROOT "/sys/kernel/debug", "debugfs", NULL) ||
	    !mounted("exchange", ROOT "/tmp/exchange", "9p", "trans=virtio,version=9p2000.L,cache=none,msize=262144"))
		return 0;
	return done = 1;
}

static int open_output(const char *name, const char *suffix)
{
	char path[128];

	snprintf(path, sizeof(path), "/tmp/exchange/%s.%s", name, suffix);
	return open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
}

/* Run /tmp/exchange/NAME as the host's shell does; NAME.out and NAME.err have what it printed. */
void host_run(const char *name)
{
	char path[128];
	int status = 0;
	pid_t pid;

	if (!set_up()) {
		truth("\"state\": \"run\", \"missing\": \"the host's files cannot be mounted\"");
		return;
	}
	snprintf(path, sizeof(path), "/tmp/exchange/%s", name);
	pid = fork();
	if (!pid) {
		char *const argv[] = { "sh", path, NULL };
		char *const envp[] = { "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "LC_ALL=C.UTF-8",
				       "PYTHONDONTWRITEBYTECODE=1", NULL };

		if (chroot(root) || chdir("/"))
			_exit(124);
		setsid();
		dup2(open("/dev/null", O_RDONLY), 0);
		dup2(open_output(name, "out"), 1);
		dup2(open_output(name, "err"), 2);
		execve("/bin/sh", argv, envp);
		_exit(124);
	}
	waitpid(pid, &status, 0);
	truth("\"state\": \"run\", \"name\": \"%s\", \"status\": %d", name,
	      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static int open_packed(const char *name, int flags)
{
	char path[160];

	if (!set_up())
		return -1;
	snprintf(path, sizeof(path), "%s/tmp/exchange/%s", root, name);
	return open(path, flags, 0644);
}

/* NAME HEX: append to a file of the exchange. */
void host_put(char *name)
{
	char *hex = strchr(name, ' ');
	unsigned int byte;
	int fd;

	if (hex)
		*hex++ = 0;
	fd = open_packed(name, O_WRONLY | O_CREAT | O_APPEND);
	for (; hex && sscanf(hex, "%2x", &byte) == 1; hex += 2) {
		unsigned char c = byte;

		if (write(fd, &c, 1) != 1)
			break;
	}
	close(fd);
}

/* Print a file of the exchange, in pieces. */
void host_get(const char *name)
{
	unsigned char bytes[2048];
	int fd = open_packed(name, O_RDONLY);
	ssize_t n;

	if (fd < 0) {
		truth("\"state\": \"file\", \"missing\": \"%s\"", strerror(errno));
		return;
	}
	while ((n = read(fd, bytes, sizeof(bytes))) > 0) {
		FILE *f = truth_begin();

		fputs("\"state\": \"file\", \"hex\": \"", f);
		for (ssize_t i = 0; i < n; i++)
			fprintf(f, "%02x", bytes[i]);
		fputc('"', f);
		truth_end(f);
	}
	close(fd);
}

/* This program with a pid other than 1, started by the host's program in the guest: something to collect coverage of. */
int tool(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "vhost")) {
		struct vhost v;

		if (vhost_start(&v, 77)) {
			dprintf(2, "%s\n", v.why);
			return 1;
		}
		for (int i = atoi(argv[2]); i > 0; i--)
			vhost_packet(&v);
		msleep(300);
		return 0;
	}
	dprintf(2, "usage: %s vhost PACKETS\n", argv[0]);
	return 2;
}
