// SPDX-License-Identifier: LGPL-2.1-or-later
/* TRUTH lines: one JSON object each, written by init only, so that lines never mix. */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/* Buffers with up to this many record words are printed in full. */
#define PRINT_WORDS 400
/* Of longer ones, this many words from each end. */
#define PRINT_ENDS 16

static int tty = -1;
static char *line;
static size_t line_len;

static bool try_tty(const char *path)
{
	struct termios t;
	int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);

	if (fd < 0)
		return false;
	/*
	 * Fails with EIO on a serial port without hardware behind it, which can be opened all the
	 * same.
	 */
	if (tcgetattr(fd, &t)) {
		close(fd);
		return false;
	}
	cfmakeraw(&t);
	t.c_cflag |= CLOCAL | CREAD;
	cfsetspeed(&t, B115200);
	tcsetattr(fd, TCSANOW, &t);
	tty = fd;
	return true;
}

void truth_open(void)
{
	if (!try_tty("/dev/ttyS1") && !try_tty("/dev/hvc0") && !try_tty("/dev/console"))
		tty = 1;
}

int truth_fd(void)
{
	return tty;
}

FILE *truth_begin(void)
{
	FILE *f = open_memstream(&line, &line_len);

	if (!f)
		abort();
	fputs("TRUTH {", f);
	return f;
}

void truth_end(FILE *f)
{
	size_t done = 0;

	fputs("}\n", f);
	fclose(f);
	while (done < line_len) {
		ssize_t n = write(tty, line + done, line_len - done);

		if (n < 0 && errno != EINTR && errno != EAGAIN)
			break;
		if (n > 0)
			done += n;
	}
	free(line);
	line = NULL;
}

void truth(const char *fmt, ...)
{
	FILE *f = truth_begin();
	va_list ap;

	va_start(ap, fmt);
	vfprintf(f, fmt, ap);
	va_end(ap);
	truth_end(f);
}

/* Bytes as the characters U+0000 to U+00FF: any byte string survives, whatever its encoding. */
void json_bytes(FILE *f, const void *bytes, size_t n)
{
	const unsigned char *p = bytes;

	fputc('"', f);
	for (size_t i = 0; i < n; i++) {
		if (p[i] == '"' || p[i] == '\\')
			fprintf(f, "\\%c", p[i]);
		else if (p[i] < 0x20 || p[i] >= 0x7f)
			fprintf(f, "\\u%04x", p[i]);
		else
			fputc(p[i], f);
	}
	fputc('"', f);
}

void json_string(FILE *f, const char *s)
{
	json_bytes(f, s, strlen(s));
}

int slurp(const char *path, char *buf, size_t n)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t done = 0;

	if (fd < 0)
		return -1;
	while (done < n - 1) {
		ssize_t got = read(fd, buf + done, n - 1 - done);

		if (got <= 0)
			break;
		done += got;
	}
	close(fd);
	buf[done] = 0;
	return done;
}

int spew(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = write(fd, text, strlen(text));
	close(fd);
	return n < 0 ? -1 : 0;
}

void msleep(unsigned int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000UL + t.tv_nsec / 1000000;
}

/*
 * Buffers are read out of the memory of whoever has them mapped: no mapping, descriptor or
 * reference of init's own is added to what is observed, and the owner, whose every system call
 * would be recorded, does nothing.
 */
bool read_words(pid_t tid, uint64_t addr, uint64_t *words, size_t n)
{
	char path[64];
	size_t done = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	while (done < n * 8) {
		ssize_t got = pread(fd, (char *)words + done, n * 8 - done, addr + done);

		if (got <= 0)
			break;
		done += got;
	}
	close(fd);
	return done == n * 8;
}

bool slot_count(struct slot *s, uint64_t *count)
{
	uint64_t map = s->mode == TRACE_UNIQ_EDGE ? s->map_edges : s->map;

	return s->map && read_words(s->map_tid, map + (s->enabled ? s->bitmap_words * 8 : 0), count, 1);
}

static uint64_t physical(pid_t tid, uint64_t addr)
{
	char path[64];
	uint64_t entry = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (pread(fd, &entry, 8, addr / PAGE * 8) != 8)
		entry = 0;
	close(fd);
	return entry >> 63 ? (entry & ((1UL << 55) - 1)) * PAGE : 0;
}

/* FNV-1a, 64 bits, over words as little-endian bytes. */
static uint64_t fnv1a(const uint64_t *words, size_t n)
{
	uint64_t h = 0xcbf29ce484222325UL;

	while (n--) {
		uint64_t word = *words++;

		for (size_t i = 0; i < sizeof(word); i++, word >>= 8)
			h = (h ^ (word & 0xff)) * 0x100000001b3UL;
	}
	return h;
}

void json_words(FILE *f, const char *key, const uint64_t *w, size_t n)
{
	fprintf(f, ", \"%s\": [", key);
	for (size_t i = 0; i < n; i++)
		fprintf(f, "%s\"0x%lx\"", i ? ", " : "", w[i]);
	fputc(']', f);
}

static int count_bits(const uint64_t *words, uint64_t n)
{
	int bits = 0;

	while (n--)
		bits += __builtin_popcountl(words[n]);
	return bits;
}

/* Edges that are collected beside PCs. */
static void json_edges(FILE *f, struct slot *s)
{
	uint64_t *words = malloc(s->size * 8);

	if (words && read_words(s->map_tid, s->map_edges, words, s->size) && words[0] < s->size && words[0] <= PRINT_WORDS)
		json_words(f, "edges", words + 1, words[0]);
	free(words);
}

static void json_buffer(FILE *f, struct slot *s)
{
	uint64_t *all = s->map ? malloc(s->size * 8) : NULL, *words = all;
	uint64_t capacity, count, used, phys, size = s->size;
	uint64_t map = s->mode == TRACE_UNIQ_EDGE ? s->map_edges : s->map;

	if (!words || !read_words(s->map_tid, map, words, size)) {
		free(words);
		fputs(", \"count\": null, \"full\": null, \"hash\": null, \"hashed_words\": null", f);
		return;
	}
	if (s->mode == TRACE_UNIQUE)
		fprintf(f, ", \"bitmap_words\": %lu, \"bits_set\": %d", s->bitmap_words, count_bits(words, s->bitmap_words));
	if (s->mode == TRACE_UNIQUE && !s->enabled) {
		/* The kernel takes all of it for a trace again: the count is what the bitmap starts with. */
		fprintf(f, ", \"count\": %lu, \"full\": null, \"hash\": null, \"hashed_words\": null", words[0]);
		s->last_count = words[0];
		s->counted = true;
		free(all);
		return;
	}
	words += s->bitmap_words;
	size -= s->bitmap_words;
	capacity = kc_capacity(size, s->mode);
	count = words[0];
	used = (count > capacity ? capacity : count) * kc_record_words(s->mode);
	s->last_count = count;
	s->counted = true;
	phys = physical(s->map_tid, map);
	fprintf(f, ", \"count\": %lu, \"capacity\": %lu, \"full\": %s", count, capacity, count >= capacity ? "true" : "false");
	fprintf(f, ", \"hash\": \"0x%016lx\", \"hashed_words\": %lu", fnv1a(words, 1 + used), 1 + used);
	if (phys)
		fprintf(f, ", \"phys\": \"0x%lx\"", phys);
	if (used <= PRINT_WORDS) {
		json_words(f, "records", words + 1, used);
	} else {
		json_words(f, "head", words + 1, PRINT_ENDS);
		json_words(f, "tail", words + 1 + used - PRINT_ENDS, PRINT_ENDS);
	}
	if (s->mode == TRACE_UNIQ_BOTH)
		json_edges(f, s);
	free(all);
}

static const char *trace_name(enum trace mode)
{
	static char name[64];

	if (mode == TRACE_NONE)
		return "null";
	snprintf(name, sizeof(name), "\"%s\"", kc_mode_name(mode));
	return name;
}

/* What struct kcov's own mode has to be. */
static const char *kcov_mode(struct slot *s)
{
	if (s->enabled)
		return trace_name(s->mode);
	return s->size ? "\"INIT\"" : "\"DISABLED\"";
}

static void json_object(FILE *f, struct slot *s)
{
	fprintf(f, ", \"fds\": [");
	for (int i = 0; i < s->nfds; i++)
		fprintf(f, "%s%d", i ? ", " : "", s->fds[i]);
	fprintf(f, "], \"size\": %lu, \"mode\": %s", s->size, s->enabled ? trace_name(s->mode) : "null");
	fprintf(f, ", \"kcov_mode\": %s", kcov_mode(s));
	fprintf(f, ", \"trace\": %s, \"extended\": %s", trace_name(s->mode), s->mode == TRACE_PC_EXT ? "true" : "false");
	fprintf(f, ", \"enabled\": %s, \"remote\": %s", s->enabled ? "true" : "false", s->remote ? "true" : "false");
	if (s->owner)
		fprintf(f, ", \"owner_tid\": %d", s->owner);
	else
		fprintf(f, ", \"owner_tid\": null");
	fprintf(f, ", \"remote_size\": %u, \"handles\": [", s->remote_size);
	for (int i = 0; i < s->nhandles; i++)
		fprintf(f, "%s\"0x%lx\"", i ? ", " : "", s->handles[i]);
	fprintf(f, "], \"common_handle\": \"0x%lx\"", s->common);
	fprintf(f, ", \"refcount\": %d, \"sequence\": %d", s->refcount, s->sequence);
	if (s->map)
		fprintf(f, ", \"mapped\": true, \"map_start\": \"0x%lx\", \"map_length\": %lu, \"map_tid\": %d", s->map,
			s->size * 8, s->map_tid);
	else
		fprintf(f, ", \"mapped\": false, \"map_start\": null, \"map_length\": 0, \"map_tid\": null");
	json_buffer(f, s);
}

void truth_slot(struct slot *s)
{
	size_t comm_len = strnlen((char *)s->comm, sizeof(s->comm));
	FILE *f = truth_begin();

	fprintf(f, "\"state\": \"%s\"", s->state);
	if (s->missing[0]) {
		fputs(", \"missing\": ", f);
		json_string(f, s->missing);
		truth_end(f);
		return;
	}
	fprintf(f, ", \"object\": ");
	if (s->object[0])
		json_string(f, s->object);
	else
		fputs("null", f);
	fprintf(f, ", \"pid\": %d, \"tid\": %d, \"tgid\": %d, \"comm\": ", s->pid, s->tid, s->pid);
	json_bytes(f, s->comm, comm_len);
	fputs(", \"comm_hex\": \"", f);
	for (size_t i = 0; i < comm_len; i++)
		fprintf(f, "%02x", s->comm[i]);
	fputc('"', f);
	if (s->object[0])
		json_object(f, s);
	json_dataflow(f, s);
	if (s->nworkers) {
		fputs(", \"workers\": [", f);
		for (int i = 0; i < s->nworkers; i++)
			fprintf(f, "%s%d", i ? ", " : "", s->workers[i]);
		fputc(']', f);
	}
	fprintf(f, "%s, \"calls\": [%s]", s->extra, s->calls);
	truth_end(f);
}
