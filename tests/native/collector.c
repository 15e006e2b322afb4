// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The collector against a fake device behind the same table of calls, to be compiled with sanitizers; and the runner against
 * real processes that "enable" a file in memory, by a request that every file takes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "array.h"
#include "collector.h"
#include "follow.h"

/* KCOV_RESET_TRACE of a posted series. */
#define RESET_TRACE 0x6368

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			abort(); \
		} \
	} while (0)

/* What the fake kernel does about the next call. */
static int fail_open, fail_ioctl, opened, closed;
static unsigned long requests[16], arguments[16];
static int request_count;
static size_t fake_size, bitmap_words;

static int fake_open(const char *path)
{
	CHECK(!strcmp(path, "/fake"));
	if (fail_open) {
		errno = fail_open;
		return -1;
	}
	opened++;
	return memfd_create("kcov", MFD_CLOEXEC);
}

static int fake_ioctl(int fd, unsigned long request, unsigned long argument)
{
	CHECK(fd >= 0);
	if (request_count < 16) {
		requests[request_count] = request;
		arguments[request_count++] = argument;
	}
	if (fail_ioctl) {
		errno = fail_ioctl;
		return -1;
	}
	if (request == kcovdbg_request('c', 'r', 1, 8) || request == kcovdbg_request('d', 'r', 1, 8)) {
		fake_size = argument * 8;
		return ftruncate(fd, 2 * fake_size);
	}
	if (request == RESET_TRACE) {
		static const uint64_t zeros[64];

		CHECK(bitmap_words < 64);
		return pwrite(fd, zeros, (bitmap_words + 1) * 8, 0) < 0 ? -1 : 0;
	}
	return 0;
}

static int fake_map(void *address, size_t length, int fd, size_t offset)
{
	void *at = mmap(address, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);

	return at == MAP_FAILED ? -1 : 0;
}

static int fake_close(int fd)
{
	closed++;
	return close(fd);
}

static const struct kcovdbg_device fake = { fake_open, fake_ioctl, fake_map, fake_close };

static int is_mapped(const void *address)
{
	unsigned char there;
	int pipes[2], result;

	/* The kernel reads the byte for us: a fault is an errno. */
	CHECK(!pipe(pipes));
	result = write(pipes[1], address, 1) == 1 && read(pipes[0], &there, 1) == 1;
	close(pipes[0]);
	close(pipes[1]);
	return result;
}

static void test_calls(void)
{
	struct kcovdbg_mode mode = { kcovdbg_request('c', 0, 100, 0), 1, 0, 4, 0, { 0 } };
	uint64_t handles[] = { 1ULL << 56 | 3 };
	struct kcovdbg_kcov kcov;
	unsigned char *area;
	uint64_t *words;

	request_count = 0;
	CHECK(!kcovdbg_open(&kcov, &fake, "/fake", 8));
	CHECK(kcov.fd >= 1000 || sysconf(_SC_OPEN_MAX) <= 1000);
	CHECK(kcovdbg_map(&kcov, 0) == -EINVAL);
	CHECK(kcovdbg_init(&kcov, 1) == -EINVAL);
	CHECK(kcovdbg_init(&kcov, UINT64_MAX / 2) == -EINVAL);
	CHECK(!request_count);
	CHECK(!kcovdbg_init(&kcov, 1024));
	CHECK(requests[0] == 0x80086301 && arguments[0] == 1024);
	CHECK(!kcovdbg_map(&kcov, 1));
	CHECK(kcovdbg_map(&kcov, 1) == -EINVAL);
	area = kcov.area;
	/* Pages on both sides of each buffer fault. */
	CHECK(is_mapped(area) && is_mapped(area + 8191));
	CHECK(!is_mapped(area - 1) && !is_mapped(area + 8192));
	CHECK(is_mapped(kcov.second) && !is_mapped((unsigned char *)kcov.second - 1));
	CHECK(!is_mapped((unsigned char *)kcov.second + 8192));
	words = kcov.area;
	words[0] = 17;
	((uint64_t *)kcov.second)[0] = 4;
	CHECK(!kcovdbg_enable(&kcov, &mode));
	CHECK(requests[1] == 0x6364 && arguments[1] == 1);
	CHECK(!kcovdbg_count(&kcov, kcov.area, 0) && !kcovdbg_count(&kcov, kcov.second, 0));
	/* A bitmap before the count is forgotten with it. */
	memset(words, 0xff, 8192);
	mode = (struct kcovdbg_mode){ kcovdbg_request('c', 'w', 103, 8), 16, 16, 1, 0, { 0 } };
	CHECK(!kcovdbg_enable(&kcov, &mode));
	CHECK(requests[2] == 0x40086367 && arguments[2] == 16);
	CHECK(!words[0] && !words[15] && !words[16] && words[17] == UINT64_MAX);
	CHECK(!kcovdbg_remote_enable(&kcov, 0, 64, handles, 1, 0x42));
	CHECK(requests[3] == 0x40186366);
	CHECK(!kcovdbg_disable(&kcov));
	CHECK(requests[4] == 0x6365 && !arguments[4]);
	words[0] = words[15] = words[16] = 7;
	bitmap_words = 16;
	CHECK(!kcovdbg_reset_trace(&kcov, RESET_TRACE));
	CHECK(requests[5] == RESET_TRACE && !arguments[5]);
	/* It is the kernel that forgets; nothing behind the count is touched. */
	CHECK(!words[0] && !words[15] && !words[16] && words[17] == UINT64_MAX);
	fail_ioctl = EBUSY;
	CHECK(kcovdbg_enable(&kcov, &mode) == -EBUSY);
	CHECK(kcovdbg_disable(&kcov) == -EBUSY);
	CHECK(kcovdbg_reset_trace(&kcov, RESET_TRACE) == -EBUSY);
	CHECK(kcovdbg_remote_enable(&kcov, 0, 64, NULL, 0, 0) == -EBUSY);
	fail_ioctl = 0;
	kcovdbg_close(&kcov);
	kcovdbg_close(&kcov);
	CHECK(!is_mapped(area));
	fail_open = EACCES;
	CHECK(kcovdbg_open(&kcov, &fake, "/fake", 8) == -EACCES);
	fail_open = 0;
	kcovdbg_close(&kcov);
}

/* Another device, whose numbers kcov-abi.md 8.5 has. */
static void test_other_device(void)
{
	struct kcovdbg_mode mode = {
		.request = kcovdbg_request('d', 0, 100, 0),
		.record_words = 1,
		.requests = {
			.init = kcovdbg_request('d', 'r', 1, 8),
			.disable = kcovdbg_request('d', 0, 101, 0),
			.remote_enable = kcovdbg_request('d', 'w', 102, 8),
			.remote_disable = kcovdbg_request('d', 0, 103, 0),
		},
	};
	uint64_t handles[] = { 1ULL << 56 | 3, 1ULL << 56 | 4 };
	struct kcovdbg_kcov kcov;

	request_count = 0;
	CHECK(!kcovdbg_open(&kcov, &fake, "/fake", 8));
	kcovdbg_use(&kcov, &mode);
	CHECK(!kcovdbg_init(&kcov, 1024));
	CHECK(requests[0] == 0x80086401 && arguments[0] == 1024);
	CHECK(!kcovdbg_map(&kcov, 0));
	CHECK(!kcovdbg_enable(&kcov, &mode));
	CHECK(requests[1] == 0x6464);
	CHECK(!kcovdbg_disable(&kcov));
	CHECK(requests[2] == 0x6465);
	/* It takes one handle. */
	CHECK(kcovdbg_remote_enable(&kcov, 0, 64, handles, 2, 0) == -E2BIG);
	CHECK(kcovdbg_remote_enable(&kcov, 0, 64, handles, 1, 0x42) == -E2BIG);
	CHECK(request_count == 3);
	CHECK(!kcovdbg_remote_enable(&kcov, 0, 64, handles, 1, 0));
	CHECK(requests[3] == 0x40086466);
	CHECK(!kcovdbg_disable(&kcov));
	CHECK(requests[4] == 0x6467);
	kcovdbg_close(&kcov);
}

static struct kcovdbg_run *run(char *const argv[], int syscalls, int expected)
{
	static struct kcovdbg_command command;
	struct kcovdbg_run *made;

	command = (struct kcovdbg_command){
		.path = "/fake",
		.device = &fake,
		.argv = argv,
		.envp = environ,
		/* A request that every file takes. */
		.mode = { .request = FIOCLEX, .record_words = 1 },
		.size = 1024,
		.word_size = 8,
		.syscalls = (uint8_t)syscalls,
		.stdout_fd = -1,
	};
	made = kcovdbg_run_new(&command);
	CHECK(made);
	CHECK(kcovdbg_run_follow(made) == expected);
	return made;
}

static void test_following(void)
{
	char *const plain[] = { "true", NULL }, *const missing[] = { "/nonexistent", NULL };
	char *const family[] = { "sh", "-c", "(exit 1); (exit 2) & wait; exit 7", NULL };
	char *const killed[] = { "sh", "-c", "kill -9 $$", NULL };
	struct kcovdbg_run *made;

	made = run(plain, 0, 0);
	CHECK(kcovdbg_run_task_count(made) == 1);
	CHECK(kcovdbg_run_task(made, 0)->ended && !kcovdbg_run_task(made, 0)->status);
	CHECK(!strcmp(kcovdbg_run_task(made, 0)->comm, "true"));
	CHECK(kcovdbg_run_task(made, 0)->trace.length == 8);
	CHECK(!kcovdbg_run_task(made, 1) && !kcovdbg_run_call_count(made));
	kcovdbg_run_free(made);

	made = run(missing, 0, -ENOENT);
	CHECK(kcovdbg_run_step(made) == KCOVDBG_STEP_EXEC);
	kcovdbg_run_free(made);

	made = run(family, 0, 0);
	CHECK(kcovdbg_run_task_count(made) == 3);
	for (uint32_t i = 0; i < 3; i++) {
		const struct kcovdbg_task *task = kcovdbg_run_task(made, i);

		/* Where ptrace may not do it, as in some containers, it says so. */
		CHECK(task->ended && task->tid == task->tgid && (!task->error || task->step == KCOVDBG_STEP_PASS));
		CHECK(WEXITSTATUS(task->status) == (i ? (int)i : 7));
		CHECK(task->kind == (i ? KCOVDBG_KIND_PROCESS : KCOVDBG_KIND_COMMAND));
		CHECK(!i || task->parent == kcovdbg_run_task(made, 0)->tid);
	}
	kcovdbg_run_free(made);

	made = run(killed, 0, 0);
	CHECK(WTERMSIG(kcovdbg_run_task(made, 0)->status) == SIGKILL);
	kcovdbg_run_free(made);

	made = run(plain, 1, 0);
	CHECK(kcovdbg_run_call_count(made) > 3);
	CHECK(!kcovdbg_run_call(made, kcovdbg_run_call_count(made) - 1)->returned);
	CHECK(kcovdbg_run_call(made, 0)->returned);
	kcovdbg_run_free(made);

	fail_ioctl = 524;
	made = run(plain, 0, -524);
	CHECK(kcovdbg_run_step(made) == KCOVDBG_STEP_INIT);
	kcovdbg_run_free(made);
	fail_ioctl = 0;
	kcovdbg_run_free(NULL);
}

static struct kcovdbg_run *signaled;
static int reaped, sent;

int __real_kill(pid_t pid, int signal);
int __wrap_kill(pid_t pid, int signal);
pid_t __real_waitpid(pid_t pid, int *status, int options);
pid_t __wrap_waitpid(pid_t pid, int *status, int options);

int __wrap_kill(pid_t pid, int signal)
{
	/* Its number may be that of any other process by now. */
	CHECK(!signaled || pid != reaped);
	sent++;
	return __real_kill(pid, signal);
}

/* The user ends the command at the worst moment: when a process has been reaped and its end is not yet recorded. */
pid_t __wrap_waitpid(pid_t pid, int *status, int options)
{
	pid_t found = __real_waitpid(pid, status, options);

	if (signaled && found > 0 && !WIFSTOPPED(*status)) {
		reaped = found;
		kcovdbg_run_signal(signaled, SIGKILL);
	}
	return found;
}

static void test_signals(void)
{
	char *const family[] = { "sh", "-c", "sleep 60 & exit 7", NULL };
	struct kcovdbg_command command = {
		.path = "/fake",
		.device = &fake,
		.argv = family,
		.envp = environ,
		.mode = { .request = FIOCLEX, .record_words = 1 },
		.size = 1024,
		.word_size = 8,
		.stdout_fd = -1,
	};

	signaled = kcovdbg_run_new(&command);
	CHECK(signaled && !kcovdbg_run_follow(signaled));
	/* Its child was alive when the shell was reaped. */
	CHECK(sent > 0 && WEXITSTATUS(kcovdbg_run_task(signaled, 0)->status) == 7);
	kcovdbg_run_free(signaled);
	signaled = NULL;
}

static void test_growing(void)
{
	uint64_t *array = NULL;
	size_t room = 0;

	CHECK(grow(&array, &room, 3, sizeof(*array)) && room >= 3);
	array[2] = 1;
	CHECK(!grow(&array, &room, SIZE_MAX / 4, sizeof(*array)) && !grow(&array, &room, SIZE_MAX, 1));
	CHECK(room < 1000 && array[2] == 1);
	free(array);
}

int main(void)
{
	test_calls();
	test_growing();
	test_other_device();
	test_following();
	test_signals();
	/* Everything that was opened is closed: the next descriptor is the lowest there is. */
	CHECK(dup(0) == 3);
	return 0;
}
