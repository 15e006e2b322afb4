// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * kdump: a second kernel waits in memory that crashkernel= reserved. It starts when the first panics, with this program as its
 * init, finds the memory of the first one in /proc/vmcore, and writes it to the host's directory (9p, tag `exchange`) in the
 * way that kcovlab.capture= on its command line says:
 *
 *   flattened     what syzkaller runs: makedumpfile -F -c -d 0 /proc/vmcore
 *   filtered      what distributions run: makedumpfile -c -d 31
 *   copy          cp /proc/vmcore
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kexec.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXCHANGE "/mnt/exchange"

static int mount_exchange(void)
{
	mkdir(EXCHANGE, 0755);
	if (!mount("exchange", EXCHANGE, "9p", 0, "trans=virtio,version=9p2000.L,cache=none,msize=262144") || errno == EBUSY)
		return 0;
	return -1;
}

/* Load the kernel and the archive of the exchange directory, to be started by a panic with these arguments. */
bool capture_load(const char *arguments)
{
	int kernel, archive;
	long failed = -1;

	if (mount_exchange())
		return false;
	kernel = open(EXCHANGE "/kernel", O_RDONLY);
	archive = open(EXCHANGE "/capture.cpio", O_RDONLY);
	if (kernel >= 0 && archive >= 0)
		failed = syscall(SYS_kexec_file_load, kernel, archive, strlen(arguments) + 1, arguments, KEXEC_FILE_ON_CRASH);
	truth("\"state\": \"kdump\", \"errno\": %d", failed ? errno : 0);
	close(kernel);
	close(archive);
	return !failed;
}

static int copy(const char *path)
{
	static char buf[1 << 18];
	int from = open("/proc/vmcore", O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	ssize_t n;

	if (from < 0 || to < 0)
		return 1;
	while ((n = read(from, buf, sizeof(buf))) > 0)
		if (write(to, buf, n) != n)
			return 1;
	return n < 0 || close(to);
}

static int run(const char *name, const char *path)
{
	char *const flattened[] = { "makedumpfile", "-F", "-c", "-d", "0", "/proc/vmcore", NULL };
	char *const filtered[] = { "makedumpfile", "-c", "-d", "31", "/proc/vmcore", (char *)path, NULL };
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		if (!strcmp(name, "copy"))
			_exit(copy(path));
		if (!strcmp(name, "flattened")) {
			dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
			execv("/makedumpfile", flattened);
		} else if (!strcmp(name, "filtered")) {
			/* Its progress is for terminals. */
			dup2(open("/dev/null", O_WRONLY), 1);
			execv("/makedumpfile", filtered);
		}
		_exit(127);
	}
	waitpid(pid, &status, 0);
	return status;
}

/* All of the second kernel's work. */
void capture(const char *names)
{
	char path[128], text[64], list[128], *name, *save;

	setenv("TMPDIR", "/tmp", 1);
	if (!mount_exchange()) {
		snprintf(list, sizeof(list), "%s", names);
		for (name = strtok_r(list, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
			uint64_t begin = now_ms();
			int status;
			FILE *f;

			snprintf(path, sizeof(path), EXCHANGE "/%s", name);
			status = run(name, path);
			snprintf(text, sizeof(text), EXCHANGE "/%s.status", name);
			f = fopen(text, "w");
			if (f) {
				fprintf(f, "{\"status\": %d, \"ms\": %lu}\n", status, now_ms() - begin);
				fclose(f);
			}
		}
		umount(EXCHANGE);
	}
	reboot(RB_AUTOBOOT);
}
