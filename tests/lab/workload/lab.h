/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the files of the guest's workload share. The protocol is described at the top of init.c. */
#ifndef KCOVLAB_H
#define KCOVLAB_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <endian.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

/* Descriptors of USB are little-endian; as a constant, which htole16() is not. */
#define LE16(x) (__BYTE_ORDER == __LITTLE_ENDIAN ? (x) : __builtin_bswap16(x))

/* Buffers are mapped in whole pages, of which arm64 has larger ones. */
#define PAGE ((unsigned long)getpagesize())
#define PAGE_WORDS (PAGE / sizeof(uint64_t))

#define MAX_SLOTS 128
#define MAX_FDS 4
#define MAX_HANDLES 8
#define MAX_WORKERS 4

/* What a session records. Those from TRACE_PC_EXT on are of posted series, each on its kernel only: see kc_has(). */
enum trace {
	TRACE_NONE,
	TRACE_PC,
	TRACE_CMP,
	TRACE_PC_EXT,
	TRACE_UNIQ_PC,
	TRACE_UNIQ_EDGE,
	TRACE_UNIQ_BOTH,
	TRACE_UNIQ_CMP,
	TRACE_UNIQUE,
};

/*
 * One state: filled by the process that is in it, printed by init. It lives in memory shared by
 * all tasks, because a task with KCOV enabled cannot print anything without changing what it would print.
 */
struct slot {
	atomic_int ready;      /* set last, by a plain store: no system call between it and the sleep */
	atomic_int done_calls; /* on start an argument, then progress that a state wants to show */
	bool used;
	char state[32];
	char object[32]; /* the state whose struct kcov this is; empty: there is none */
	pid_t pid, tid;
	unsigned char comm[16];
	int fds[MAX_FDS];
	int nfds;
	uint64_t size;	 /* words; 0: not initialised */
	enum trace mode; /* of the session; TRACE_NONE: there is none */
	bool enabled;	 /* KCOV_ENABLE or KCOV_REMOTE_ENABLE is in force */
	bool remote;
	bool asleep; /* the task sleeps once it stands; false for dead or stopped ones */
	pid_t owner; /* tid that is enabled */
	uint32_t remote_size;
	uint64_t handles[MAX_HANDLES];
	int nhandles;
	uint64_t common;       /* common handle, also in handles[] */
	uint64_t map;	       /* where the buffer is mapped; 0: it isn't */
	uint64_t map_edges;    /* the same of the buffer for edges */
	uint64_t bitmap_words; /* of TRACE_UNIQUE: words before the count */
	pid_t map_tid;	       /* in whose memory */
	int refcount;	       /* what K1 of the invariants expects; 0: unknown */
	int sequence;
	bool volatile_count; /* may change while nobody does anything */
	pid_t workers[MAX_WORKERS];
	int nworkers;
	int df_fd;	  /* kcov_dataflow, in dataflow.c */
	uint64_t df_size; /* words; 0: it isn't used */
	uint64_t df_map;
	uint64_t df_handle;
	bool df_enabled;
	char calls[1024];    /* JSON strings, comma-separated */
	char extra[2048];    /* more JSON members, each with a leading comma */
	char missing[160];   /* why the state couldn't be made */
	uint64_t last_count; /* init: as printed */
	bool counted;
};

struct shared {
	struct slot slots[MAX_SLOTS];
	atomic_int nslots;
	atomic_ulong storm_ops[16];
	atomic_int storm_stop;
	atomic_ulong traffic; /* transfers done by the traffic of the last command */
};

extern struct shared *shm;

/* kcov_use.c: KCOV's own ABI */
struct kc {
	int fd;
	uint64_t size;
	volatile uint64_t *area;
	volatile uint64_t *edges;
	uint64_t bitmap_words;
};

/* What the kernel's command line says of its KCOV: kcovlab.kcov=. Numbers collide, so that none is tried. */
bool kc_has(const char *what);
bool kc_mode_known(enum trace mode);
const char *kc_mode_name(enum trace mode);
unsigned int kc_record_words(enum trace mode);
/* What a task collects by if it may choose: what is special about the kernel. */
enum trace kc_special(void);

int kc_open(struct slot *s, struct kc *k);
int kc_init(struct slot *s, struct kc *k, uint64_t words);
int kc_map(struct slot *s, struct kc *k);
int kc_setup(struct slot *s, struct kc *k, uint64_t words);
int kc_enable(struct slot *s, struct kc *k, enum trace mode);
int kc_disable(struct slot *s, struct kc *k);
int kc_remote_enable(struct slot *s, struct kc *k, enum trace mode, uint32_t area_size, const uint64_t *handles, int n,
		     uint64_t common);
void kc_close(struct slot *s, struct kc *k);
int kc_map_edges(struct slot *s, struct kc *k);
int kc_reset(struct slot *s, struct kc *k);
uint64_t kc_capacity(uint64_t size, enum trace mode);
/* The count word of the buffer that the mode records into. */
volatile uint64_t *kc_count(struct kc *k, enum trace mode);

/* slot.c: making and telling states */
struct slot *slot_new(const char *state);
struct slot *slot_find(const char *name);
void slot_self(struct slot *s);
void slot_comm(struct slot *s, const char *comm);
void slot_call(struct slot *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void slot_extra(struct slot *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void slot_missing(struct slot *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void slot_object(struct slot *s, const struct kc *k, int refcount, int sequence);
void stand(struct slot *s) __attribute__((noreturn));
pid_t spawn(struct slot *s, void (*fn)(struct slot *));
struct slot *spawn_state(const char *state, void (*fn)(struct slot *));
bool slot_wait(struct slot *s, int ms);
bool slot_settle(struct slot *s, int ms);

/* truth.c: printing */
void truth_open(void);
int truth_fd(void);
FILE *truth_begin(void);
void truth_end(FILE *f);
void truth(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void json_bytes(FILE *f, const void *bytes, size_t n);
void json_string(FILE *f, const char *s);
void json_words(FILE *f, const char *key, const uint64_t *w, size_t n);
bool read_words(pid_t tid, uint64_t addr, uint64_t *words, size_t n);
void truth_slot(struct slot *s);
bool slot_count(struct slot *s, uint64_t *count);
int slurp(const char *path, char *buf, size_t n);
int spew(const char *path, const char *text);
void msleep(unsigned int ms);
uint64_t now_ms(void);

/* system.c: what the guest's kernel says about itself */
void truth_kernel(void);
void truth_tasks(void);
void truth_vmalloc(void);
void truth_maps(void);
unsigned long count_tasks(void);

/* local.c, special.c, remote.c, dead.c, modules.c: the standing states */
void states_local(void);
void states_special(void);
void states_dead(void);
void states_remote(void);
void states_modules(void);
int module_load(const char *name);
void module_functions(struct slot *s, const char *module);

/* dataflow.c */
void states_dataflow(void);
void dataflow_usb(void);
void json_dataflow(FILE *f, struct slot *s);

/* vhost.c */
struct vhost {
	int fd, kick[2], tap;
	int queue; /* the one that takes our packets */
	unsigned char *mem;
	uint16_t avail;
	const char *kind;
	char why[120];
	uint32_t cid;
};
int vhost_start(struct vhost *v, uint32_t cid);
int vhost_packet(struct vhost *v);
void vhost_workers(struct slot *s);
void vhost_traffic(struct slot *s);
void vhost_inflight(struct slot *s);
void vhost_stale(struct slot *s);

/* usb.c, gadget.c */
int usb_dummy_bus(int index);
int usb_find_device(int bus, char *path, size_t n);
void usb_gadget(struct slot *s);
void usb_gadget_mute(struct slot *s);
void usb_traffic_enabled(struct slot *s);
void usb_traffic_plain(struct slot *s);
void usb_traffic_hub(struct slot *s);
void usb_traffic_plug(struct slot *s);
void usb_mute_owner(struct slot *s);
void usb_lost_owner(struct slot *s);
bool usb_have_gadget(void);
void usb_start(void);
void usb_finish(void);
int usb_transfers(struct slot *s, unsigned long rounds);

/* interrupt.c */
void interrupt_traffic(struct slot *s);

/* puzzle.c */
bool puzzle(const char *name, void (*begin)(const char *state, void (*fn)(struct slot *s)));

/* host.c */
void host_run(const char *name);
void host_put(char *name);
void host_get(const char *name);
int tool(int argc, char **argv);

/* capture.c */
bool capture_load(const char *arguments);
void capture(const char *names);

/* commands.c */
void command(char *line);
void reap(void);

#endif
