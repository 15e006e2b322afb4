/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* KCOV_PAUSED, posted from August to October 2026: bit 29 of a task's mode. */
#define RELEASE "7.3.0-paused"
#define CPU_IN_THREAD_INFO
#define FLAG_CTXSW (1u << 30)
#define MODE_CMP KCOV_MODE_TRACE_CMP
#define HAS_REMOTE
#define HAS_SOFTIRQ
#define SAVED_IN_TASK
#define ALLOCATED_EARLY
#define HAS_OWNER
#define FLAG_PAUSED (1u << 29)

enum kcov_mode { KCOV_MODE_DISABLED = 0, KCOV_MODE_INIT = 1, KCOV_MODE_TRACE_PC = 2, KCOV_MODE_TRACE_CMP = 3 };

#define TASK_KCOV \
	unsigned int kcov_mode; \
	unsigned int kcov_size; \
	void *kcov_area; \
	struct kcov *kcov; \
	struct kcov *kcov_remote; \
	u64 kcov_handle; \
	int kcov_sequence; \
	unsigned int kcov_softirq; \
	unsigned int kcov_saved_mode; \
	unsigned int kcov_saved_size; \
	void *kcov_saved_area; \
	struct kcov *kcov_saved_kcov; \
	int kcov_saved_sequence;

struct kcov {
	refcount_t refcount;
	spinlock_t lock;
	enum kcov_mode mode;
	unsigned int size;
	void *area;
	struct task_struct *t;
	bool remote;
	unsigned int remote_size;
	int sequence;
};

struct kcov_remote {
	u64 handle;
	struct kcov *kcov;
	struct hlist_node hnode;
};

struct kcov_remote_area {
	struct list_head list;
	unsigned int size;
};

struct kcov_percpu_data {
	local_lock_t lock;
};
