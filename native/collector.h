/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One KCOV instance: its file, its buffer, and the calls of KCOV's ABI (include/uapi/linux/kcov.h).
 *
 * Functions return 0 or a negative errno. Nothing here prints, and what runs while a task is enabled makes no system call
 * beside the one asked for, as that would be in the trace.
 */
#ifndef KCOVDBG_COLLECTOR_H
#define KCOVDBG_COLLECTOR_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
/* What KCOV is reached through: the kernel, or a fake device of a test. Each returns -1 and sets errno, as in libc. */
struct kcovdbg_device {
	int (*open)(const char *path);
	int (*ioctl)(int fd, unsigned long request, unsigned long argument);
	/* At this address, over a reservation; length and offset in bytes. */
	int (*map)(void *address, size_t length, int fd, size_t offset);
	int (*close)(int fd);
};

/* How a buffer is collected into: the request that enables it, and its argument. */
struct kcovdbg_mode {
	unsigned long request;
	unsigned long argument;
	uint64_t count_at;	/* Word that counts: words of a bitmap before it. */
	uint8_t record_words;	/* Words of a record. */
	uint8_t second;		/* Whether there is a second buffer behind the first, for edges. */
};

struct kcovdbg_kcov {
	const struct kcovdbg_device *device;
	int fd;			/* -1: closed. */
	uint8_t word_size;	/* Of the kernel, in bytes: 8 or 4. */
	uint64_t size;		/* In words of the kernel; 0 before KCOV_INIT_TRACE. */
	size_t length;		/* In bytes. */
	void *area;		/* NULL before mmap. */
	void *second;		/* The buffer of edges, NULL without one. */
	void *reservation;	/* The mapping with guard pages around it. */
	size_t reserved;
};

/* The kernel's device. */
const struct kcovdbg_device *kcovdbg_kernel(void);
/* KCOV_ENABLE, KCOV_UNIQUE_ENABLE and so on, as this architecture numbers them. */
unsigned long kcovdbg_request(const char *name, uint8_t word_size);

/*
 * Have room for high descriptors. While a process has one thread that takes no time; with several the kernel waits until all
 * CPUs have seen the larger table, for some hundredths of a second (synchronize_rcu() in its fs/file.c).
 */
void kcovdbg_make_room(void);
/* The descriptor is high, so that nobody hits it by accident, and closed by exec. */
int kcovdbg_open(struct kcovdbg_kcov *kcov, const struct kcovdbg_device *device, const char *path, uint8_t word_size);
/* size: in words of the kernel. */
int kcovdbg_init(struct kcovdbg_kcov *kcov, uint64_t size);
/* Between guard pages, as stray writes beside a buffer are hard to find. */
int kcovdbg_map(struct kcovdbg_kcov *kcov, int second);
/* Enable it for the calling thread, and forget what enabling left in the buffer. */
int kcovdbg_enable(struct kcovdbg_kcov *kcov, const struct kcovdbg_mode *mode);
int kcovdbg_remote_enable(struct kcovdbg_kcov *kcov, uint32_t mode, uint32_t area_size, const uint64_t *handles,
			  uint32_t count, uint64_t common_handle);
int kcovdbg_disable(struct kcovdbg_kcov *kcov);
/* The count, and the bitmap before it. */
void kcovdbg_reset(struct kcovdbg_kcov *kcov, uint64_t count_at);
/*
 * KCOV_RESET_TRACE: the kernel forgets them, for the task that collects. A few records of the call's own end follow. The kernels
 * that have it are those with KCOV_UNIQUE_ENABLE, but for the series' first version.
 */
int kcovdbg_reset_trace(struct kcovdbg_kcov *kcov);
/* The count word, with acquire: the records that it counts are there. User space can write it: it isn't to be trusted. */
uint64_t kcovdbg_count(const struct kcovdbg_kcov *kcov, const void *area, uint64_t count_at);
/* Unmap and close; may be called twice. */
void kcovdbg_close(struct kcovdbg_kcov *kcov);
/* cdef end */

#endif
