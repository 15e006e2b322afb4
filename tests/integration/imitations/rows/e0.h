/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The posting of January 2016, version 3: docs/series/draft-2016.md. */
#define RELEASE "4.4.0-kcov-v3"
#define CPU_ON_STACK
#define WORDS_32
#define VMA_REFERENCES
#define MODE_INIT kcov_mode_trace
#define MODE_TRACE kcov_mode_trace
#define NAME_INIT "KCOV_MODE_TRACE"
#define NAME_TRACE "KCOV_MODE_TRACE"

enum kcov_mode { kcov_mode_trace = 1 };

#define TASK_KCOV \
	enum kcov_mode kcov_mode; \
	unsigned int kcov_size; \
	void *kcov_area; \
	struct kcov *kcov;

struct kcov {
	atomic_t rc;
	spinlock_t lock;
	enum kcov_mode mode;
	unsigned int size;
	void *area;
	struct task_struct *t;
};

#define K_COUNT(k) ((k)->rc.counter)
