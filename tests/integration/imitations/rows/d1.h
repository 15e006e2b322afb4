/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* kcov_dataflow as first posted in June 2026, in kernel/kcov.c: a second device with a buffer of its own. */
#define RELEASE "7.2.0-dataflow-v1"
#define CPU_IN_THREAD_INFO
#define FLAG_CTXSW (1u << 30)
#define MODE_CMP KCOV_MODE_TRACE_CMP
#define HAS_REMOTE
#define HAS_SOFTIRQ
#define SAVED_PER_CPU
#define ALLOCATED_EARLY
#define HAS_OWNER
#define HAS_DATAFLOW

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
	u32 kcov_dataflow_seq; \
	unsigned int kcov_df_size; \
	void *kcov_df_area; \
	bool kcov_df_enabled;

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

struct kcov_dataflow {
	refcount_t refcount;
	spinlock_t lock;
	unsigned int size;
	void *area;
	struct task_struct *t;
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
