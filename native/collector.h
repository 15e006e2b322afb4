/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One KCOV instance: its file, its buffer, and the calls of KCOV's ABI (include/uapi/linux/kcov.h).
 *
 * Functions return 0 or a negative errno. Functions that run while a task is enabled make no other system call than the one they
 * are for, as it would be in the trace.
 */
#ifndef KCOVDBG_COLLECTOR_H
#define KCOVDBG_COLLECTOR_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
/* System calls on a KCOV device: the kernel's, or a fake one in tests. Each returns -1 and sets errno, as in libc. */
struct kcovdbg_device {
	int (*open)(const char *path);
	int (*ioctl)(int fd, unsigned long request, unsigned long argument);
	/* At an address within a reservation; length and offset in bytes. */
	int (*map)(void *address, size_t length, int fd, size_t offset);
	int (*close)(int fd);
};

/* The other requests of a device that is not KCOV's own. 0: KCOV's. */
struct kcovdbg_requests {
	unsigned long init;
	unsigned long disable;
	unsigned long remote_enable; /* Takes a pointer to one handle. */
	unsigned long remote_disable;
};

/* A collecting mode: the request that enables it, and its argument. */
struct kcovdbg_mode {
	unsigned long request;
	unsigned long argument;
	uint64_t count_at;    /* Index of the count word: a bitmap may be before it. */
	uint8_t record_words; /* Number of words of a record. */
	uint8_t second;	      /* Whether there is a second buffer, for edges. */
	struct kcovdbg_requests requests;
};

struct kcovdbg_kcov {
	const struct kcovdbg_device *device;
	struct kcovdbg_requests requests;
	int is_remote;	   /* Enabled by kcovdbg_remote_enable(). */
	int fd;		   /* -1: closed. */
	uint8_t word_size; /* Size of a word of the kernel, in bytes: 8 or 4. */
	uint64_t size;	   /* In words of the kernel; 0 before KCOV_INIT_TRACE. */
	size_t length;	   /* In bytes. */
	void *area;	   /* NULL before mmap. */
	void *second;	   /* The buffer of edges, NULL without one. */
	void *reservation; /* The mapping with guard pages around it. */
	size_t reserved;
};

/* The kernel's device. */
const struct kcovdbg_device *kcovdbg_kernel(void);
/* The number of a request of KCOV's file on this architecture. direction: 'r', 'w' or 0. size: of the argument's type. */
unsigned long kcovdbg_request(char letter, char direction, uint8_t number, uint16_t size);

/*
 * Enlarge the descriptor table for high descriptors. With several threads, the kernel waits some hundredths of a second until all
 * CPUs have seen the larger table (synchronize_rcu() in fs/file.c).
 */
void kcovdbg_make_room(void);
/* The descriptor is high, so that programs do not use it by accident, and is closed by exec. */
int kcovdbg_open(struct kcovdbg_kcov *kcov, const struct kcovdbg_device *device, const char *path, uint8_t word_size);
/* Call this before the others if the device may not be KCOV's own. */
void kcovdbg_use(struct kcovdbg_kcov *kcov, const struct kcovdbg_mode *mode);
/* size: in words of the kernel. */
int kcovdbg_init(struct kcovdbg_kcov *kcov, uint64_t size);
/* Between guard pages, as stray writes next to a buffer are hard to find. */
int kcovdbg_map(struct kcovdbg_kcov *kcov, int second);
/* Enable it for the calling thread, and clear the records of enabling. */
int kcovdbg_enable(struct kcovdbg_kcov *kcov, const struct kcovdbg_mode *mode);
/* A device with requests of its own takes one handle: -E2BIG for more. */
int kcovdbg_remote_enable(struct kcovdbg_kcov *kcov, uint32_t mode, uint32_t area_size, const uint64_t *handles, uint32_t count,
			  uint64_t common_handle);
int kcovdbg_disable(struct kcovdbg_kcov *kcov);
/* Clear the count, and a bitmap before it. */
void kcovdbg_reset(struct kcovdbg_kcov *kcov, uint64_t count_at);
/*
 * Let the kernel clear them, for the calling task, by a request that not every kernel has. A few records of the end of the call
 * follow.
 */
int kcovdbg_reset_trace(struct kcovdbg_kcov *kcov, unsigned long request);
/* The count word, with acquire: the records it counts are visible. User space can write it: check it. */
uint64_t kcovdbg_count(const struct kcovdbg_kcov *kcov, const void *area, uint64_t count_at);
/* Unmap and close; may be called twice. */
void kcovdbg_close(struct kcovdbg_kcov *kcov);
/* cdef end */

#endif
