/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* KCOV_PC_RANGE, posted in November 2021. */
#define RELEASE "5.16.0-pc-range"
#define CPU_IN_THREAD_INFO
#define FLAG_CTXSW (1u << 30)
#define MODE_CMP KCOV_MODE_TRACE_CMP
#define HAS_REMOTE
#define HAS_SOFTIRQ
#define SAVED_PER_CPU
#define HAS_PC_RANGE

enum kcov_mode { KCOV_MODE_DISABLED = 0, KCOV_MODE_INIT = 1, KCOV_MODE_TRACE_PC = 2, KCOV_MODE_TRACE_CMP = 3 };

#define TASK_KCOV \
	unsigned int kcov_mode; \
	unsigned int kcov_size; \
	void *kcov_area; \
	struct kcov *kcov; \
	u64 kcov_handle; \
	int kcov_sequence; \
	unsigned int kcov_softirq;

struct kcov_pc_range {
	u32 start;
	u32 end;
};

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
	struct kcov_pc_range pc_range;
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
	void *irq_area;
	local_lock_t lock;

	unsigned int saved_mode;
	unsigned int saved_size;
	void *saved_area;
	struct kcov *saved_kcov;
	int saved_sequence;
};
