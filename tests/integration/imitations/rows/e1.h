/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* v4.6 to v4.14: one trace mode. */
#define RELEASE "4.14.336-imitation"
#define CPU_IN_TASK
#define MODE_INIT KCOV_MODE_TRACE
#define MODE_TRACE KCOV_MODE_TRACE
#define NAME_INIT "KCOV_MODE_TRACE"
#define NAME_TRACE "KCOV_MODE_TRACE"

enum kcov_mode { KCOV_MODE_DISABLED = 0, KCOV_MODE_TRACE = 1 };

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
