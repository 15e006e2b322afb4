// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Programs of the host's in the guest: the host's file system over 9p (tag `root`), with a tmpfs above it for what is written,
 * and a directory for exchange (tag `exchange`), which the host sees as well.
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

static int mounted(const char *source, const char *where, const char *type, const char *options)
{
	mkdir(where, 0755);
	if (!mount(source, where, type, 0, options))
		return 1;
	dprintf(2, "mount %s at %s: %s\n", source, where, strerror(errno));
	return 0;
}

static int set_up(void)
{
	static int done;

	if (done)
		return 1;
	if (!mounted("root", "/mnt/lower", "9p", "trans=virtio,version=9p2000.L,cache=loose,msize=262144") ||
	    !mounted("tmpfs", "/mnt/upper", "tmpfs", NULL))
		return 0;
	mkdir("/mnt/upper/files", 0755);
	mkdir("/mnt/upper/work", 0755);
	if (!mounted("overlay", ROOT, "overlay", "lowerdir=/mnt/lower,upperdir=/mnt/upper/files,workdir=/mnt/upper/work") ||
	    /* Nothing above /tmp: the checkout that the programs belong to may lie there. */
	    !mounted("devtmpfs", ROOT "/dev", "devtmpfs", NULL) ||
	    !mounted("proc", ROOT "/proc", "proc", NULL) || !mounted("sysfs", ROOT "/sys", "sysfs", NULL) ||
	    !mounted("debugfs", ROOT "/sys/kernel/debug", "debugfs", NULL) ||
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
		truth("\"state\": \"run\", \"missing\": \"the host's files can't be mounted\"");
		return;
	}
	snprintf(path, sizeof(path), "/tmp/exchange/%s", name);
	pid = fork();
	if (!pid) {
		char *const argv[] = { "sh", path, NULL };
		char *const envp[] = { "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", "LC_ALL=C.UTF-8",
				       "PYTHONDONTWRITEBYTECODE=1", NULL };

		if (chroot(ROOT) || chdir("/"))
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

/* This program under another pid than 1, run by the host's in the guest: something to collect coverage of. */
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
