/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* v5.1 to v5.4: refcount_t; since v4.18 a task's mode is a word with a flag in bit 30. */
#define RELEASE "5.4.296-imitation"
#define CPU_IN_TASK
#define FLAG_CTXSW (1u << 30)
#define MODE_CMP KCOV_MODE_TRACE_CMP

enum kcov_mode { KCOV_MODE_DISABLED = 0, KCOV_MODE_INIT = 1, KCOV_MODE_TRACE_PC = 2, KCOV_MODE_TRACE_CMP = 3 };

#define TASK_KCOV \
	unsigned int kcov_mode; \
	unsigned int kcov_size; \
	void *kcov_area; \
	struct kcov *kcov;

struct kcov {
	refcount_t refcount;
	spinlock_t lock;
	enum kcov_mode mode;
	unsigned int size;
	void *area;
	struct task_struct *t;
};
