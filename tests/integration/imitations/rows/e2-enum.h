/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* v4.15 to v4.17: comparisons; a task's mode is the enumeration itself. */
#define RELEASE "4.17.19-imitation"
#define CPU_IN_TASK
#define MODE_CMP KCOV_MODE_TRACE_CMP

enum kcov_mode { KCOV_MODE_DISABLED = 0, KCOV_MODE_INIT = 1, KCOV_MODE_TRACE_PC = 2, KCOV_MODE_TRACE_CMP = 3 };

#define TASK_KCOV \
	enum kcov_mode kcov_mode; \
	unsigned int kcov_size; \
	void *kcov_area; \
	struct kcov *kcov;

struct kcov {
	atomic_t refcount;
	spinlock_t lock;
	enum kcov_mode mode;
	unsigned int size;
	void *area;
	struct task_struct *t;
};

#define K_COUNT(k) ((k)->refcount.counter)
