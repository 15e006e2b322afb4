/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* kcov_dataflow in a file of its own, as posted later in 2026. */
#define RELEASE "7.3.0-dataflow-v2"
#define CPU_IN_THREAD_INFO
#define FLAG_CTXSW (1u << 30)
#define MODE_CMP KCOV_MODE_TRACE_CMP
#define HAS_REMOTE
#define HAS_SOFTIRQ
#define SAVED_IN_TASK
#define ALLOCATED_EARLY
#define HAS_OWNER
#define HAS_DATAFLOW
#define DATAFLOW_POINTER

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
	void *kcov_df_area; \
	unsigned int kcov_df_size; \
	u32 kcov_df_seq; \
	bool kcov_df_enabled; \
	struct kcov_dataflow *kcov_df; \
	unsigned int kcov_df_remote_depth; \
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

struct mutex {
	long owner;
	spinlock_t wait_lock;
	struct list_head wait_list;
};

struct kcov_dataflow {
	struct mutex lock;
	unsigned int size;
	void *area;
	struct task_struct *t;
	refcount_t refcount;
	u64 remote_handle;
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
