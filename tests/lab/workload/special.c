// SPDX-License-Identifier: LGPL-2.1-or-later
/* States that only some kernels have: posted series, and local beside remote sessions. */
#include "lab.h"

#include <fcntl.h>
#include <linux/kcov.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HANDLE_BOTH 0x4205UL
#define HANDLE_EXT 0x4206UL

/* Code that enters and leaves functions, fails and succeeds. Raw calls only: they are recorded. */
static void work(void)
{
	char buf[64];

	for (int i = 0; i < 3; i++) {
		syscall(SYS_getppid);
		syscall(SYS_readlinkat, AT_FDCWD, "/proc/self", buf, sizeof(buf));
		syscall(SYS_close, -1);
	}
}

static int carry(struct slot *s, uint32_t cid)
{
	struct vhost v;
	int sent = 0;

	if (vhost_start(&v, cid)) {
		slot_missing(s, "%s", v.why);
		return -1;
	}
	vhost_workers(s);
	for (int i = 0; i < 3; i++)
		sent += !vhost_packet(&v);
	slot_extra(s, ", \"vhost\": \"%s\", \"packets\": %d", v.kind, sent);
	return 0;
}

static struct slot *both_remote;

static void st_both(struct slot *s)
{
	struct slot *r = both_remote;
	struct kc local, remote;

	slot_self(r);
	if (kc_setup(r, &remote, 46 * PAGE_WORDS) ||
	    kc_remote_enable(r, &remote, TRACE_PC, 28 * PAGE_WORDS, NULL, 0,
			     kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, HANDLE_BOTH)) ||
	    carry(r, 53)) {
		slot_missing(s, "%s", r->missing);
		return;
	}
	slot_object(r, &remote, 2, 1);
	if (kc_setup(s, &local, 45 * PAGE_WORDS)) {
		slot_missing(r, "%s", s->missing);
		return;
	}
	slot_object(s, &local, 2, 1);
	atomic_store(&r->ready, 1);
	if (!kc_enable(s, &local, TRACE_CMP))
		work();
}

/* Set up for a mode, in one of the states' sizes. */
static int prepare(struct slot *s, struct kc *k, uint64_t pages, enum trace mode, uint64_t bitmap_words)
{
	if (kc_setup(s, k, pages * PAGE_WORDS))
		return -1;
	k->bitmap_words = bitmap_words;
	if ((mode == TRACE_UNIQ_EDGE || mode == TRACE_UNIQ_BOTH) && kc_map_edges(s, k))
		return -1;
	slot_object(s, k, 2, 1);
	return 0;
}

static void enabled(struct slot *s, uint64_t pages, enum trace mode, uint64_t bitmap_words)
{
	struct kc k;

	if (!prepare(s, &k, pages, mode, bitmap_words) && !kc_enable(s, &k, mode))
		work();
}

static void off(struct slot *s, uint64_t pages, enum trace mode, uint64_t bitmap_words)
{
	struct kc k;

	if (prepare(s, &k, pages, mode, bitmap_words) || kc_enable(s, &k, mode))
		return;
	work();
	kc_disable(s, &k);
	s->refcount = 1;
	s->sequence = 2;
}

static void st_uniq_pc(struct slot *s)
{
	enabled(s, 47, TRACE_UNIQ_PC, 0);
}

static void st_uniq_edge(struct slot *s)
{
	enabled(s, 48, TRACE_UNIQ_EDGE, 0);
}

static void st_uniq_both(struct slot *s)
{
	enabled(s, 49, TRACE_UNIQ_BOTH, 0);
}

static void st_uniq_cmp(struct slot *s)
{
	enabled(s, 50, TRACE_UNIQ_CMP, 0);
}

static void st_uniq_off(struct slot *s)
{
	off(s, 51, TRACE_UNIQ_BOTH, 0);
}

static void st_unique(struct slot *s)
{
	enabled(s, 52, TRACE_UNIQUE, 3 * PAGE_WORDS);
}

static void st_unique_reset(struct slot *s)
{
	struct kc k;

	if (prepare(s, &k, 53, TRACE_UNIQUE, 2 * PAGE_WORDS + 3))
		return;
	slot_call(s, "KCOV_RESET_TRACE 0");
	if (kc_enable(s, &k, TRACE_UNIQUE))
		return;
	work();
	kc_reset(s, &k);
}

/* Guards are numbered as they are met: most numbers don't fit into one word. */
static void st_unique_small(struct slot *s)
{
	enabled(s, 54, TRACE_UNIQUE, 1);
}

static void st_unique_off(struct slot *s)
{
	off(s, 55, TRACE_UNIQUE, PAGE_WORDS);
}

static void st_ext(struct slot *s)
{
	enabled(s, 56, TRACE_PC_EXT, 0);
}

static void st_ext_off(struct slot *s)
{
	off(s, 57, TRACE_PC_EXT, 0);
}

static void st_ext_remote(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 58 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC_EXT, 29 * PAGE_WORDS, NULL, 0,
								 kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, HANDLE_EXT)))
		return;
	slot_object(s, &k, 2, 1);
	carry(s, 54);
}

void states_special(void)
{
	if (kc_has("owner-member")) {
		both_remote = slot_new("kc-both/r");
		spawn_state("kc-both", st_both);
	}
	if (kc_has("unique-maps")) {
		spawn_state("kc-uniq-pc", st_uniq_pc);
		spawn_state("kc-uniq-edge", st_uniq_edge);
		spawn_state("kc-uniq-both", st_uniq_both);
		spawn_state("kc-uniq-cmp", st_uniq_cmp);
		spawn_state("kc-uniq-off", st_uniq_off);
	}
	if (kc_has("unique-bitmap")) {
		spawn_state("kc-unique", st_unique);
		spawn_state("kc-unique-r", st_unique_reset);
		spawn_state("kc-unique-s", st_unique_small);
		spawn_state("kc-unique-off", st_unique_off);
	}
	if (kc_has("ext-records")) {
		spawn_state("kc-ext", st_ext);
		spawn_state("kc-ext-off", st_ext_off);
		spawn_state("kc-ext-remote", st_ext_remote);
	}
}
