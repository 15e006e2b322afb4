// SPDX-License-Identifier: LGPL-2.1-or-later
/* What the kernel itself tells user space about tasks, symbols and memory. */
#include "lab.h"

#include <ctype.h>
#include <dirent.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Printing more tasks than this on a serial line takes too long. */
#define MANY_TASKS 2000

static const char *const symbols[] = { "_text",
				       "_stext",
				       "_etext",
				       "init_task",
				       "kcov_fops",
				       "kcov_remote_lock",
				       "kcov_remote_map",
				       "kcov_remote_areas",
				       "kcov_percpu_data",
				       "__sanitizer_cov_trace_pc",
				       "kcov_remote_start",
				       "kcov_remote_stop",
				       "kcov_ioctl",
				       "hub_event",
				       NULL };

static void json_symbols(FILE *f)
{
	FILE *in = fopen("/proc/kallsyms", "re");
	static char buf[512];
	const char *sep = "";

	fputs(", \"symbols\": {", f);
	/*
	 * A line is 16 digits, a type and a name. No sscanf: there are a hundred thousand of them.
	 */
	while (in && fgets(buf, sizeof(buf), in)) {
		size_t len = strlen(buf);

		if (len < 21)
			continue;
		buf[16] = buf[len - 1] = 0;
		for (int i = 0; symbols[i]; i++) {
			if (buf[19] != symbols[i][0] || strcmp(symbols[i], buf + 19))
				continue;
			fprintf(f, "%s\"%s\": \"0x%s\"", sep, symbols[i], buf);
			sep = ", ";
		}
	}
	fputc('}', f);
	if (in)
		fclose(in);
}

static void json_build_id(FILE *f)
{
	static char notes[4096];
	int n = slurp("/sys/kernel/notes", notes, sizeof(notes));
	int at = 0;

	while (at + (int)sizeof(Elf64_Nhdr) <= n) {
		Elf64_Nhdr *h = (void *)(notes + at);
		char *name = notes + at + sizeof(*h);
		unsigned char *desc = (void *)(name + (h->n_namesz + 3) / 4 * 4);

		if (h->n_type == NT_GNU_BUILD_ID && h->n_namesz == 4 && !memcmp(name, "GNU", 4)) {
			fputs(", \"build_id\": \"", f);
			for (unsigned int i = 0; i < h->n_descsz; i++)
				fprintf(f, "%02x", desc[i]);
			fputc('"', f);
			return;
		}
		at += sizeof(*h) + (h->n_namesz + 3) / 4 * 4 + (h->n_descsz + 3) / 4 * 4;
	}
}

void truth_kernel(void)
{
	struct utsname u;
	char buf[4096];
	FILE *f = truth_begin();

	uname(&u);
	fprintf(f, "\"state\": \"kernel\", \"release\": ");
	json_string(f, u.release);
	fputs(", \"version\": ", f);
	json_string(f, u.version);
	fprintf(f, ", \"machine\": \"%s\", \"page_size\": %ld, \"cpus_online\": %ld, \"cpus_configured\": %ld", u.machine,
		sysconf(_SC_PAGESIZE), sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_NPROCESSORS_CONF));
	if (slurp("/sys/devices/system/cpu/possible", buf, sizeof(buf)) > 0) {
		buf[strcspn(buf, "\n")] = 0;
		fprintf(f, ", \"cpus_possible\": \"%s\"", buf);
	}
	json_build_id(f);
	json_symbols(f);
	fputs(", \"cmdline\": ", f);
	if (slurp("/proc/cmdline", buf, sizeof(buf)) < 0)
		buf[0] = 0;
	buf[strcspn(buf, "\n")] = 0;
	json_string(f, buf);
	truth_end(f);
}

static void each_task(void (*fn)(FILE *, int tgid, int tid), FILE *f, unsigned long *count)
{
	DIR *proc = opendir("/proc");
	struct dirent *d, *e;

	while (proc && (d = readdir(proc))) {
		char path[300];
		DIR *tasks;

		if (!isdigit(d->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/task", d->d_name);
		tasks = opendir(path);
		while (tasks && (e = readdir(tasks))) {
			if (!isdigit(e->d_name[0]))
				continue;
			if (fn)
				fn(f, atoi(d->d_name), atoi(e->d_name));
			(*count)++;
		}
		if (tasks)
			closedir(tasks);
	}
	if (proc)
		closedir(proc);
}

static bool first_task;

static void json_task(FILE *f, int tgid, int tid)
{
	char path[64], buf[1024], *end, *start;

	/*
	 * status and comm escape or cut at newlines differently; stat has the raw bytes between the
	 * first opening and the last closing bracket. Kernel threads show the name of their work
	 * there, which is longer than comm: cut as the kernel's member is.
	 */
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", tgid, tid);
	if (slurp(path, buf, sizeof(buf)) <= 0)
		return;
	start = strchr(buf, '(');
	end = strrchr(buf, ')');
	if (!start || !end)
		return;
	fprintf(f, "%s[%d, %d, ", first_task ? "" : ", ", tid, tgid);
	json_bytes(f, start + 1, end - start - 1);
	fprintf(f, ", \"%c\"]", end[2]);
	first_task = false;
}

unsigned long count_tasks(void)
{
	unsigned long n = 0;

	each_task(NULL, NULL, &n);
	return n;
}

void truth_tasks(void)
{
	unsigned long n = count_tasks();
	FILE *f = truth_begin();

	fprintf(f,
		"\"state\": \"tasks\", \"count\": %lu, \"fields\": [\"tid\", \"tgid\", \"name\", \"task_state\"], \"tids\": ",
		n);
	if (n > MANY_TASKS) {
		fputs("null", f);
	} else {
		n = 0;
		first_task = true;
		fputc('[', f);
		each_task(json_task, f, &n);
		fputc(']', f);
	}
	truth_end(f);
}

void truth_vmalloc(void)
{
	FILE *in = fopen("/proc/vmallocinfo", "re");
	FILE *f = truth_begin();
	char buf[512], caller[128];
	unsigned long start, end, size;
	bool first = true;

	fputs("\"state\": \"vmalloc\"", f);
	if (!in) {
		fputs(", \"missing\": \"no /proc/vmallocinfo\"", f);
		truth_end(f);
		return;
	}
	/* size includes the guard page; caller is symbol+offset/length. */
	fputs(", \"areas\": [", f);
	while (fgets(buf, sizeof(buf), in)) {
		buf[strcspn(buf, "\n")] = 0;
		if (!strstr(buf, " kcov_") || sscanf(buf, "%lx-%lx %lu %127s", &start, &end, &size, caller) != 4)
			continue;
		fprintf(f, "%s{\"start\": \"0x%lx\", \"end\": \"0x%lx\", \"size\": %lu, \"caller\": \"%s\", \"user\": %s}",
			first ? "" : ", ", start, end, size, caller, strstr(buf, " user") ? "true" : "false");
		first = false;
	}
	fputc(']', f);
	fclose(in);
	truth_end(f);
}

static void json_maps(FILE *f, const char *pid, bool *first)
{
	char path[300], buf[512];
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	in = fopen(path, "re");
	while (in && fgets(buf, sizeof(buf), in)) {
		size_t len;

		buf[strcspn(buf, "\n")] = 0;
		len = strlen(buf);
		if (len < 5 || strcmp(buf + len - 5, "/kcov"))
			continue;
		fprintf(f, "%s{\"pid\": %s, \"line\": ", *first ? "" : ", ", pid);
		json_string(f, buf);
		fputc('}', f);
		*first = false;
	}
	if (in)
		fclose(in);
}

/* Processes' descriptors and mappings of KCOV, as /proc names them. */
void truth_maps(void)
{
	DIR *proc = opendir("/proc");
	FILE *f = truth_begin();
	struct dirent *d, *e;
	bool first = true;

	fputs("\"state\": \"maps\", \"maps\": [", f);
	while (proc && (d = readdir(proc)))
		if (isdigit(d->d_name[0]))
			json_maps(f, d->d_name, &first);
	fputs("], \"fds\": [", f);
	first = true;
	rewinddir(proc);
	while (proc && (d = readdir(proc))) {
		char path[300];
		DIR *fds;

		if (!isdigit(d->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/fd", d->d_name);
		fds = opendir(path);
		while (fds && (e = readdir(fds))) {
			char link[600], to[256];
			ssize_t n;

			snprintf(link, sizeof(link), "%s/%s", path, e->d_name);
			n = readlink(link, to, sizeof(to) - 1);
			if (n < 5)
				continue;
			to[n] = 0;
			if (strcmp(to + n - 5, "/kcov"))
				continue;
			fprintf(f, "%s[%s, %s]", first ? "" : ", ", d->d_name, e->d_name);
			first = false;
		}
		if (fds)
			closedir(fds);
	}
	fputc(']', f);
	if (proc)
		closedir(proc);
	truth_end(f);
}
