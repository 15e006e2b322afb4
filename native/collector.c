// SPDX-License-Identifier: LGPL-2.1-or-later
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "collector.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/ioctl.h>
#include <linux/types.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Programs rarely use descriptors as high as this; fuzzers close and duplicate low ones. */
#define HIGH_FD 1000

/*
 * From include/uapi/linux/kcov.h, which is not installed everywhere. The number of INIT_TRACE has the size of the kernel's long:
 * a 32-bit process on a 64-bit kernel must use the kernel's.
 */
#define KCOV_INIT_TRACE_64 _IOR('c', 1, uint64_t)
#define KCOV_INIT_TRACE_32 _IOR('c', 1, uint32_t)
#define KCOV_DISABLE _IO('c', 101)
#define KCOV_REMOTE_ENABLE _IOW('c', 102, struct remote_arg)

/* struct kcov_remote_arg: 24 bytes on every architecture. */
struct remote_arg {
	__u32 trace_mode;
	__u32 area_size;
	__u32 num_handles;
	__u32 padding;
	__aligned_u64 common_handle;
	__aligned_u64 handles[];
};

_Static_assert(sizeof(struct remote_arg) == 24, "the kernel's struct kcov_remote_arg has 24 bytes");

static int kernel_open(const char *path)
{
	return open(path, O_RDWR | O_CLOEXEC);
}

static int kernel_ioctl(int fd, unsigned long request, unsigned long argument)
{
	return ioctl(fd, request, argument);
}

static int kernel_map(void *address, size_t length, int fd, size_t offset)
{
	void *at = mmap(address, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);

	return at == MAP_FAILED ? -1 : 0;
}

static int kernel_close(int fd)
{
	return close(fd);
}

static const struct kcovdbg_device kernel = { kernel_open, kernel_ioctl, kernel_map, kernel_close };

const struct kcovdbg_device *kcovdbg_kernel(void)
{
	return &kernel;
}

unsigned long kcovdbg_request(char letter, char direction, uint8_t number, uint16_t size)
{
	unsigned int way = direction == 'r' ? _IOC_READ : direction == 'w' ? _IOC_WRITE : _IOC_NONE;

	return _IOC(way, letter, number, size);
}

/* Return a high descriptor of the same file, or the given one when the limit on descriptors has no room. */
static int move_high(const struct kcovdbg_device *device, int fd)
{
	struct rlimit limit;
	int high;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur <= HIGH_FD)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
	if (high < 0)
		return fd;
	device->close(fd);
	return high;
}

void kcovdbg_make_room(void)
{
	int fd = open("/", O_PATH | O_CLOEXEC);

	if (fd >= 0)
		close(move_high(&kernel, fd));
}

int kcovdbg_open(struct kcovdbg_kcov *kcov, const struct kcovdbg_device *device, const char *path, uint8_t word_size)
{
	memset(kcov, 0, sizeof(*kcov));
	kcov->device = device ? device : &kernel;
	kcov->word_size = word_size;
	kcov->fd = kcov->device->open(path);
	if (kcov->fd < 0) {
		kcov->fd = -1;
		return -errno;
	}
	kcov->fd = move_high(kcov->device, kcov->fd);
	return 0;
}

void kcovdbg_use(struct kcovdbg_kcov *kcov, const struct kcovdbg_mode *mode)
{
	kcov->requests = mode->requests;
}

int kcovdbg_init(struct kcovdbg_kcov *kcov, uint64_t size)
{
	unsigned long request = kcov->requests.init;

	if (!request)
		request = kcov->word_size == 8 ? KCOV_INIT_TRACE_64 : KCOV_INIT_TRACE_32;

	/*
	 * Kernels before 5.18 check the object's state before the size, later ones after it. Here the size is always
	 * checked first.
	 */
	if (size < 2 || size > SIZE_MAX / 8 / kcov->word_size || size > ULONG_MAX)
		return -EINVAL;
	if (kcov->device->ioctl(kcov->fd, request, (unsigned long)size))
		return -errno;
	kcov->size = size;
	kcov->length = size * kcov->word_size;
	return 0;
}

int kcovdbg_map(struct kcovdbg_kcov *kcov, int second)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), count = second ? 2 : 1, i;
	size_t step = (kcov->length + page - 1) / page * page + page;
	unsigned char *base;

	if (!kcov->size || kcov->area)
		return -EINVAL;
	kcov->reserved = page + count * step;
	base = mmap(NULL, kcov->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	kcov->reservation = base;
	for (i = 0; i < count; i++) {
		if (kcov->device->map(base + page + i * step, kcov->length, kcov->fd, i * kcov->length)) {
			int error = -errno;

			munmap(base, kcov->reserved);
			kcov->reservation = kcov->area = NULL;
			return error;
		}
		*(i ? &kcov->second : &kcov->area) = base + page + i * step;
	}
	return 0;
}

void kcovdbg_reset(struct kcovdbg_kcov *kcov, uint64_t count_at)
{
	void *areas[] = { kcov->area, kcov->second };

	/* Some kernels have a request for this, but a tracer cannot issue it for the task. */
	if (count_at)
		memset(kcov->area, 0, count_at * kcov->word_size);

	for (int i = 0; i < 2; i++) {
		if (!areas[i])
			continue;
		if (kcov->word_size == 8)
			__atomic_store_n((uint64_t *)areas[i] + count_at, 0, __ATOMIC_SEQ_CST);
		else
			__atomic_store_n((uint32_t *)areas[i] + count_at, 0, __ATOMIC_SEQ_CST);
	}
}

int kcovdbg_reset_trace(struct kcovdbg_kcov *kcov, unsigned long request)
{
	return kcov->device->ioctl(kcov->fd, request, 0) ? -errno : 0;
}

int kcovdbg_enable(struct kcovdbg_kcov *kcov, const struct kcovdbg_mode *mode)
{
	if (kcov->device->ioctl(kcov->fd, mode->request, mode->argument))
		return -errno;
	kcovdbg_reset(kcov, mode->count_at);
	return 0;
}

static int enable_handle(struct kcovdbg_kcov *kcov, uint64_t handle)
{
	if (kcov->device->ioctl(kcov->fd, kcov->requests.remote_enable, (unsigned long)&handle))
		return -errno;
	kcovdbg_reset(kcov, 0);
	kcov->is_remote = 1;
	return 0;
}

int kcovdbg_remote_enable(struct kcovdbg_kcov *kcov, uint32_t mode, uint32_t area_size, const uint64_t *handles, uint32_t count,
			  uint64_t common_handle)
{
	struct remote_arg *arg;
	int error = 0;

	if (kcov->requests.remote_enable)
		return count + !!common_handle == 1 ? enable_handle(kcov, count ? handles[0] : common_handle) : -E2BIG;
	arg = calloc(1, sizeof(*arg) + count * sizeof(arg->handles[0]));
	if (!arg)
		return -ENOMEM;
	arg->trace_mode = mode;
	arg->area_size = area_size;
	arg->num_handles = count;
	arg->common_handle = common_handle;
	for (uint32_t i = 0; i < count; i++)
		arg->handles[i] = handles[i];
	if (kcov->device->ioctl(kcov->fd, KCOV_REMOTE_ENABLE, (unsigned long)arg))
		error = -errno;
	else
		kcovdbg_reset(kcov, 0);
	free(arg);
	return error;
}

int kcovdbg_disable(struct kcovdbg_kcov *kcov)
{
	unsigned long request = kcov->is_remote ? kcov->requests.remote_disable : kcov->requests.disable;

	return kcov->device->ioctl(kcov->fd, request ? request : KCOV_DISABLE, 0) ? -errno : 0;
}

uint64_t kcovdbg_count(const struct kcovdbg_kcov *kcov, const void *area, uint64_t count_at)
{
	if (kcov->word_size == 8)
		return __atomic_load_n((const uint64_t *)area + count_at, __ATOMIC_ACQUIRE);
	return __atomic_load_n((const uint32_t *)area + count_at, __ATOMIC_ACQUIRE);
}

void kcovdbg_close(struct kcovdbg_kcov *kcov)
{
	if (kcov->reservation)
		munmap(kcov->reservation, kcov->reserved);
	kcov->reservation = kcov->area = kcov->second = NULL;
	if (kcov->fd >= 0)
		kcov->device->close(kcov->fd);
	kcov->fd = -1;
	kcov->size = 0;
}
