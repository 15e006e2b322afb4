/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* KCOV_UNIQUE_ENABLE, version 1 of April 2025: struct kcov_state holds the mode too. */
#define RELEASE "6.15.0-unique-enable-v1"
#define CPU_IN_THREAD_INFO
#define FLAG_CTXSW (1u << 30)
#define MODE_CMP KCOV_MODE_TRACE_CMP
#define HAS_REMOTE
#define HAS_SOFTIRQ
#define SAVED_PER_CPU
#define ALLOCATED_EARLY
#define MODE_REMOTE KCOV_MODE_REMOTE
#define MODE_UNIQUE KCOV_MODE_TRACE_UNIQUE_PC

enum kcov_mode {
	KCOV_MODE_INVALID = -1,
	KCOV_MODE_DISABLED = 0,
	KCOV_MODE_INIT = 1,
	KCOV_MODE_TRACE_PC = 2,
	KCOV_MODE_TRACE_CMP = 3,
	KCOV_MODE_REMOTE = 4,
	KCOV_MODE_TRACE_UNIQUE_PC = 5,
};

struct kcov_state {
	unsigned int mode;
	struct {
		unsigned int size;
		void *area;
		unsigned int trace_size;
		unsigned long *trace;
		unsigned int bitmap_size;
		unsigned long *bitmap;
		int sequence;
	} s;
};

#define TASK_KCOV \
	struct kcov_state kcov_state; \
	struct kcov *kcov; \
	u64 kcov_handle; \
	unsigned int kcov_softirq;

struct kcov {
	refcount_t refcount;
	spinlock_t lock;
	struct kcov_state state;
	struct task_struct *t;
	bool remote;
	unsigned int remote_size;
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
	struct kcov *saved_kcov;
	struct kcov_state saved_state;
};

#define HAS_STATE
#define T_MODE(t) ((t)->kcov_state.mode)
#define T_SIZE(t) ((t)->kcov_state.s.size)
#define T_AREA(t) ((t)->kcov_state.s.area)
#define T_SEQUENCE(t) ((t)->kcov_state.s.sequence)
#define T_STATE(t) ((t)->kcov_state.s)
#define K_MODE(k) ((k)->state.mode)
#define K_SIZE(k) ((k)->state.s.size)
#define K_AREA(k) ((k)->state.s.area)
#define K_SEQUENCE(k) ((k)->state.s.sequence)
#define K_STATE(k) ((k)->state.s)
#define S_SIZE(data) ((data)->saved_state.s.size)
#define S_AREA(data) ((data)->saved_state.s.area)
#define S_SEQUENCE(data) ((data)->saved_state.s.sequence)
#define S_STATE(data) ((data)->saved_state.s)
