// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Print the rights that a process and its child have: the user, the error of writing to a file, the error of opening KCOV, and
 * the number of descriptors and mappings of KCOV. With a user ID, give up the rights for those of that user first.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int try_open(const char *path, int flags)
{
	int fd = open(path, flags);

	if (fd < 0)
		return errno;
	close(fd);
	return 0;
}

static int count_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	char target[256];
	int found = 0;

	while (folder && (entry = readdir(folder))) {
		ssize_t length = readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1);

		target[length > 0 ? length : 0] = 0;
		found += strstr(target, "kcov") && !strstr(target, "kcovdbg");
	}
	return folder ? found : -1;
}

static int count_mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int found = 0;

	while (maps && fgets(line, sizeof(line), maps))
		found += strstr(line, "debug/kcov") != NULL;
	return maps ? found : -1;
}

static void report(const char *who, const char *path)
{
	printf("{\"who\": \"%s\", \"user\": %d, \"write\": %d, \"device\": %d, \"descriptors\": %d, \"mappings\": %d}\n", who,
	       geteuid(), try_open(path, O_WRONLY), try_open("/sys/kernel/debug/kcov", O_RDWR), count_descriptors(),
	       count_mappings());
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int user = argc > 2 ? atoi(argv[2]) : -1;

	if (argc < 2)
		return 2;
	if (user >= 0 && (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user)))
		return 3;
	report("parent", argv[1]);
	if (!fork()) {
		report("child", argv[1]);
		_exit(0);
	}
	return wait(NULL) < 0;
}
